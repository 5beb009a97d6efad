// find_padding: true for padding tokens; with causal() the masks of PyTorch tutorials.
#include "attn/layers/embedding/padding.hpp"

#include <cstdint>

#include <gtest/gtest.h>

#include "attn/attention/sdpa.hpp"

#include "support/error_of.hpp"
#include "support/random.hpp"

namespace attn {
namespace {

using attn_test::error_of;

TEST(FindPadding, IsTrueForThePaddingAlone) {
  const Tensor2<std::int32_t> ids({2, 3}, {5, 0, 0, 1, -1, 0});
  const Tensor2<bool> padding = find_padding(ids, 0);
  const bool expected[] = {false, true, true, false, false, true};
  for (index_t i = 0; i < 6; ++i) EXPECT_EQ(padding.data()[i], expected[i]) << i;
  EXPECT_TRUE(find_padding(ids, -1)(1, 1));
  const Tensor2<std::uint8_t> bytes({1, 1}, {255});
  EXPECT_FALSE(find_padding(bytes, -1)(0, 0));
  Tensor2<bool> wrong({3, 2});
  EXPECT_EQ(error_of<ShapeError>([&] { find_padding(ids, 0, wrong); }),
            "[find_padding] out must have shape (2, 3); found (3, 2).");
}

/// get_pad_mask & get_subsequent_mask of the tutorials: (batch, 1, seq) and (1, seq, seq).
TEST(FindPadding, PadAndSubsequentMasksKeepTheSameKeys) {
  attn_test::Random random(1);
  const Tensor2<int> ids({2, 4}, {3, 1, 0, 0, 2, 2, 1, 0});
  const auto x = random.tensor<float, 4>({2, 1, 4, 8});
  const Tensor2<bool> padding = find_padding(ids, 0);
  Tensor4<float> weights({2, 1, 4, 4});
  scaled_dot_product_attention(x, x, x,
                               {.mask = key_padding_mask(padding) & causal(), .weights = weights});
  for (index_t b = 0; b < 2; ++b) {
    for (index_t i = 0; i < 4; ++i) {
      for (index_t j = 0; j < 4; ++j) {
        EXPECT_EQ(weights(b, 0, i, j) > 0, ids(b, j) != 0 && j <= i) << b << i << j;
      }
    }
  }
}

}  // namespace
}  // namespace attn
