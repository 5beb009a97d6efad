// Vit: packed and unpacked on every instruction set, functors, and bad input.
#include "attn/models/vit.hpp"

#include <gtest/gtest.h>

#include "support/array.hpp"
#include "support/error_of.hpp"
#include "support/isas.hpp"
#include "support/models/parameters.hpp"

namespace attn {
namespace {

using attn_test::contains;
using attn_test::error_of;
using attn_test::Random;
using attn_test::random_module;
using attn_test::to_array;

const VitOptions kSmallVit{.image_height = 6,
                           .image_width = 9,
                           .patch_size = 3,
                           .num_channels = 2,
                           .hidden_size = 8,
                           .num_hidden_layers = 2,
                           .num_attention_heads = 2,
                           .intermediate_size = 12,
                           .num_labels = 3};

TEST(Vit, PackedOnEveryInstructionSet) {
  Random random(1);
  auto vit = random_module<Vit<float>>(random, kSmallVit);
  const auto images = random.tensor<float, 4>({2, 2, 6, 9});
  const auto expected = vit(images);
  const auto logits = vit.classify(images);
  EXPECT_EQ(expected.shape(), (Shape<3>{2, 7, 8}));
  EXPECT_EQ(logits.shape(), (Shape<2>{2, 3}));
  vit.pack();
  for (Isa isa : attn_test::available_isas()) {
    const auto found = vit(images, {.execution = {.isa = isa}});
    for (index_t i = 0; i < found.size(); ++i)
      ASSERT_NEAR(found.data()[i], expected.data()[i], 1e-5) << name(isa);
  }
  EXPECT_EQ(to_array(vit.classify(images)).data, to_array(logits).data);
}

// Without a class token the rest is the same: a class token of zeros in a layer that attends to the
// token itself would not be, so no layers.
TEST(Vit, WithoutClassToken) {
  Random random(2);
  VitOptions options = kSmallVit;
  options.num_labels = 0;
  options.num_hidden_layers = 0;
  options.num_register_tokens = 2;
  auto with = random_module<Vit<float>>(random, options);
  options.class_token = false;
  auto without = random_module<Vit<float>>(random, options);
  without.patch_embedding = with.patch_embedding;
  without.register_tokens = with.register_tokens;
  without.encoder = with.encoder;
  copy(with.positions.view().slice(1, 1, 7), without.positions.view());
  const auto images = random.tensor<float, 4>({2, 2, 6, 9});
  const Tensor3<float> expected = with(images), found = without(images);
  ASSERT_EQ(found.shape(), (Shape<3>{2, 8, 8}));
  for (index_t b = 0; b < 2; ++b) {
    for (index_t i = 0; i < 8; ++i) {
      for (index_t d = 0; d < 8; ++d) ASSERT_EQ(found(b, i, d), expected(b, i + 1, d));
    }
  }
}

TEST(Vit, PixelsBehindTheLastPatchHaveNoEffect) {
  Random random(3), again(3);
  VitOptions options = kSmallVit;
  const auto vit = random_module<Vit<float>>(random, options);
  options.image_height = 8;
  options.image_width = 10;
  const auto larger = random_module<Vit<float>>(again, options);
  const auto images = random.tensor<float, 4>({2, 2, 8, 10});
  EXPECT_EQ(to_array(larger(images)).data,
            to_array(vit(images.view().slice(2, 0, 6).slice(3, 0, 9))).data);
}

TEST(Vit, WhatIsRefused) {
  const auto fails = [](auto change, std::string_view part) {
    VitOptions options = kSmallVit;
    change(options);
    EXPECT_TRUE(contains(error_of<ValueError>([&] { Vit<float>{options}; }), part));
  };
  fails([](VitOptions& o) { o.patch_size = 7; },
        "be at most image_height and image_width = 6 and 9; found 7");
  fails([](VitOptions& o) { o.patch_size = 0; }, "patch_size must lie in 1 .. 2^24; found 0");
  fails([](VitOptions& o) { o.num_labels = -1; }, "num_labels must lie in 0");
  fails([](VitOptions& o) { o.class_token = false; }, "class_token must be true for a classifier");
  VitOptions plain = kSmallVit;
  plain.num_labels = 0;
  const Vit<float> vit(plain);
  EXPECT_TRUE(contains(error_of<ValueError>([&] {
                         vit.classify(Tensor4<float>({1, 2, 6, 9}));
                       }),
                       "have a classifier"));
  EXPECT_TRUE(contains(error_of<ShapeError>([&] {
                         vit(Tensor4<float>({1, 2, 9, 6}));
                       }),
                       "(batch, num_channels, image_height, image_width) = (1, 2, 6, 9)"));
}

}  // namespace
}  // namespace attn
