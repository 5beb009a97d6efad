// LayerStack: names, stacks without layers, caches, and errors that change nothing.
#include "attn/layers/layer_stack.hpp"

#include <algorithm>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "attn/core/compare.hpp"
#include "attn/layers/decoder.hpp"
#include "attn/layers/encoder.hpp"

#include "support/array.hpp"
#include "support/draws/transformer_options.hpp"
#include "support/error_of.hpp"
#include "support/models/parameters.hpp"

namespace attn {
namespace {

using attn_test::all_are;
using attn_test::error_of;
using attn_test::names_of;
using attn_test::to_array;

// A stack as a function of x, its output and its caches; and the number of cached keys.
using Caches = std::vector<KvCache<float>>;
void run(const Encoder<float>& encoder, const Tensor3<float>&, TensorView3<const float> x,
         TensorView3<float> out, Caches* caches = nullptr) {
  encoder.forward(x, out, {.mask = causal()}, {},
                  caches != nullptr ? *caches : std::span<KvCache<float>>());
}
Caches caches_of(const Encoder<float>& encoder, index_t capacity) {
  return encoder.make_caches(2, capacity);
}
index_t held(const KvCache<float>& cache) { return cache.length(); }

using DecoderCaches = std::vector<DecoderLayerCache<float>>;
void run(const Decoder<float>& decoder, const Tensor3<float>& memory, TensorView3<const float> x,
         TensorView3<float> out, DecoderCaches* caches = nullptr) {
  decoder.forward(x, memory, out, {.mask = causal()}, {},
                  caches != nullptr ? *caches : std::span<DecoderLayerCache<float>>());
}
DecoderCaches caches_of(const Decoder<float>& decoder, index_t capacity) {
  return decoder.make_caches(2, capacity, 3);
}
index_t held(const DecoderLayerCache<float>& cache) {
  return cache.self.length() + cache.memory.length();
}

TEST(LayerStack, EveryLayerHasItsRotaryOptions) {
  TransformerStackOptions options{.num_layers = 3, .layer = {.d_model = 8, .nhead = 2}};
  options.layer.attention.rotary = RotaryOptions{.theta = 500};
  const Encoder<float> stack(options);
  for (const EncoderLayer<float>& layer : stack.layers) {
    ASSERT_TRUE(layer.self_attn.options().rotary.has_value());
    EXPECT_EQ(layer.self_attn.options().rotary->theta, 500);
    EXPECT_EQ(layer.self_attn.options().rotary->dim, 4);
  }
  MultiHeadAttention<float> other({.embed_dim = 8, .num_heads = 1});
  EXPECT_TRUE(attn_test::contains(
      error_of<ValueError>([&] { other.share_rotary(stack.layers[0].self_attn); }),
      "have heads of 8; found 4"));
}

TEST(LayerStack, LatentAttentionAndDenseLayersHaveTheirConditions) {
  TransformerStackOptions options{.num_layers = 3, .layer = {.d_model = 8, .nhead = 2}};
  const auto error = [&] { return error_of<ValueError>([&] { Encoder<float> stack(options); }); };
  options.dense_layers = 1;
  EXPECT_TRUE(attn_test::contains(error(), "dense_layers must be 0 without experts"));
  options.layer.experts = {.num_experts = 2, .dim_feedforward = 4};
  options.layer.latent = {.kv_lora_rank = 3, .head_dim = 2, .rotary_dim = 2};
  options.layer.attention.rotary = RotaryOptions{.theta = 500};
  const Encoder<float> stack(options);
  EXPECT_FALSE(stack.layers[0].experts);
  EXPECT_TRUE(stack.layers[1].experts);
  EXPECT_EQ(stack.layers[2].latent_attn.rotary_table(), stack.layers[0].latent_attn.rotary_table());
  EXPECT_EQ(stack.layers[2].rotary()->theta, 500);
  EXPECT_EQ(stack.make_caches(1, 5)[2].options().head_dim_v, 3);
  EXPECT_TRUE(
      attn_test::contains(error_of<ValueError>([&] { DecoderLayer<float> layer(options.layer); }),
                          "experts must have its default"));
  options.windows = {2};
  EXPECT_TRUE(attn_test::contains(error(), "be none with latent attention; found some"));
}

template <class Stack>
class LayerStackTest : public ::testing::Test {
 protected:
  static constexpr bool kEncodes = std::is_same_v<Stack, Encoder<float>>;
  std::string name = kEncodes ? "[Encoder]" : "[Decoder]";
  attn_test::Random random{1};
  Stack stack = attn_test::random_module<Stack>(random, attn_test::stack_options(true, 9));
  Tensor3<float> x = random.tensor<float, 3>({2, 4, 16}),
                 memory = random.tensor<float, 3>({2, 3, 16});
};
using Stacks = ::testing::Types<Encoder<float>, Decoder<float>>;
TYPED_TEST_SUITE(LayerStackTest, Stacks);

TYPED_TEST(LayerStackTest, ParametersByPyTorchsNames) {
  using Layer = typename decltype(this->stack.layers)::value_type;
  const TransformerLayerOptions layer{.d_model = 4, .nhead = 2, .bias = false};
  std::vector<std::string> expected;
  for (const std::string prefix : {"layers.0.", "layers.1."}) {
    for (const std::string& part : names_of(Layer(layer))) expected.push_back(prefix + part);
  }
  EXPECT_EQ(names_of(TypeParam({.num_layers = 2, .layer = layer})), expected);
  expected.emplace_back("norm.weight");
  EXPECT_EQ(names_of(TypeParam({.num_layers = 2, .layer = layer, .norm = true})), expected);
}

/// The relative bias of a stack applies to self-attention of every call, from the table that all
/// layers share.
TYPED_TEST(LayerStackTest, RelativeBias) {
  TransformerStackOptions options = attn_test::stack_options(true, 9);
  Tensor3<float> y(this->x.shape()), expected(this->x.shape());
  for (const bool bidirectional : {true, false}) {
    options.relative_buckets = 4;
    options.relative_max_distance = 3;
    options.relative_bidirectional = bidirectional;
    const auto with = attn_test::random_module<TypeParam>(this->random, options);
    EXPECT_EQ(names_of(with).front(), "relative_bias");
    TypeParam without = with;
    without.relative_bias = {};
    const Tensor2<float> bias = t5_relative_bias(with.relative_bias, bidirectional, 3);
    const AttentionOptions<float> plain{.mask = causal()},
        biased{.mask = causal(), .relative_bias = bias};
    const auto run_with = [&](const TypeParam& module, const AttentionOptions<float>& call,
                              Tensor3<float>& out) {
      if constexpr (std::is_same_v<TypeParam, Encoder<float>>) {
        module.forward(this->x, out, call);
      } else {
        module.forward(this->x, this->memory, out, call);
      }
    };
    run_with(with, plain, y);
    run_with(without, biased, expected);
    EXPECT_EQ(to_array(y).data, to_array(expected).data);
    run_with(without, plain, expected);
    EXPECT_NE(to_array(y).data, to_array(expected).data);
    EXPECT_EQ(error_of<ValueError>([&] { run_with(with, biased, y); }),
              this->name + " relative_bias must be none: the stack has its own; found one.");
    // Step by step: distances count from all keys that the caches hold.
    auto caches = caches_of(with, 4);
    Tensor3<float> steps(this->x.shape());
    for (const auto& [begin, end] : {std::pair<index_t, index_t>{0, 2}, {2, 3}, {3, 4}}) {
      run(with, this->memory, this->x.view().slice(1, begin, end),
          steps.view().slice(1, begin, end), &caches);
    }
    EXPECT_LT(max_abs_difference(steps, y), 1e-5);
  }
  options.relative_buckets = 3;
  options.relative_bidirectional = true;
  EXPECT_EQ(error_of<ValueError>([&] { TypeParam{options}; }),
            "[t5_relative_bias] num_buckets must be at least 4; found 3.");
  options.relative_buckets = 8;
  options.relative_max_distance = 2;
  EXPECT_TRUE(attn_test::contains(error_of<ValueError>([&] { TypeParam{options}; }),
                                  "max_distance must exceed 2"));
}

TYPED_TEST(LayerStackTest, GroupsApplyTheirLayersInSuccession) {
  const TransformerLayerOptions layer{.d_model = 16, .nhead = 2, .dim_feedforward = 8};
  const auto shared = attn_test::random_module<TypeParam>(
      this->random, TransformerStackOptions{.num_layers = 5, .num_groups = 2, .layer = layer});
  TypeParam plain({.num_layers = 5, .layer = layer});
  ASSERT_EQ(shared.layers.size(), 2u);
  ASSERT_EQ(shared.num_layers(), 5u);
  for (std::size_t n = 0; n < 5; ++n) plain.layers[n] = shared.layers[n < 3 ? 0 : 1];
  Tensor3<float> expected(this->x.shape()), found(this->x.shape());
  run(plain, this->memory, this->x, expected);
  run(shared, this->memory, this->x, found);
  EXPECT_EQ(to_array(found).data, to_array(expected).data);
  auto caches = caches_of(shared, 4);
  ASSERT_EQ(caches.size(), 5u);
  for (const index_t i : {0, 2}) {
    run(shared, this->memory, this->x.view().slice(1, i, i + 2), found.view().slice(1, i, i + 2),
        &caches);
  }
  EXPECT_LT(max_abs_difference(found, expected), 1e-5);
}

TYPED_TEST(LayerStackTest, TheFirstLayerMayHaveNoNorm) {
  TransformerLayerOptions layer{.d_model = 16, .nhead = 2, .dim_feedforward = 8};
  layer.norm_first = true;
  const auto first = attn_test::random_module<TypeParam>(
      this->random, TransformerStackOptions{.num_layers = 2, .layer = layer, .first_norm = false});
  EXPECT_FALSE(first.layers[0].norm1.weight);
  EXPECT_TRUE(first.layers[1].norm1.weight);
  const auto names = names_of(first);
  EXPECT_EQ(std::count(names.begin(), names.end(), "layers.0.norm1.weight"), 0);
  // With an attention of 0, nothing is left of the first sublayer but the residual.
  TypeParam without = first;
  without.layers[0].self_attn.out_proj().weight.fill(0);
  TypeParam with_norm = without;
  with_norm.layers[0].norm1 = first.layers[1].norm1;
  Tensor3<float> expected(this->x.shape()), found(this->x.shape());
  run(with_norm, this->memory, this->x, expected);
  run(without, this->memory, this->x, found);
  EXPECT_EQ(to_array(found).data, to_array(expected).data);
  run(first, this->memory, this->x, found);
  EXPECT_NE(to_array(found).data, to_array(expected).data);
}

TYPED_TEST(LayerStackTest, WithoutLayersIsItsNorm) {
  Tensor3<float> y(this->x.shape());
  run(TypeParam({.num_layers = 0}), this->memory, this->x, y);
  EXPECT_EQ(to_array(y).data, to_array(this->x).data);
  run(TypeParam({.num_layers = 0, .layer = {.d_model = 16}, .norm = true}), this->memory, this->x,
      y);
  EXPECT_EQ(to_array(y).data, to_array(LayerNorm<float>(16)(this->x)).data);
}

TYPED_TEST(LayerStackTest, InPlaceAndInPartsOfLongerSequences) {
  Tensor3<float> y(this->x.shape()), longer({2, 7, 16});
  run(this->stack, this->memory, this->x, y);
  const TensorView3<float> part = longer.view().slice(1, 2, 6);
  copy(this->x, part);
  run(this->stack, this->memory, part, part);
  EXPECT_EQ(to_array(part).data, to_array(y).data);
  EXPECT_TRUE(all_are(longer.view().slice(1, 0, 2), 0));
  EXPECT_TRUE(all_are(longer.view().slice(1, 6, 7), 0));
}

TYPED_TEST(LayerStackTest, ErrorsOfOptionsAndShapes) {
  EXPECT_EQ(error_of<ValueError>([] { TypeParam({.num_layers = -1}); }),
            "[TransformerStackOptions] num_layers must be at least 0; found -1.");
  const TransformerLayerOptions layer{.d_model = 16};
  EXPECT_EQ(
      error_of<ValueError>([&] { TypeParam({.num_layers = 2, .num_groups = 3, .layer = layer}); }),
      "[TransformerStackOptions] num_groups must lie in 0 .. num_layers; found 3.");
  EXPECT_EQ(error_of<ValueError>(
                [&] { TypeParam({.num_layers = 2, .layer = layer, .first_norm = false}); }),
            "[TransformerStackOptions] first_norm must be true without norm_first, and with "
            "shared_norm or num_groups; found false.");
  Tensor3<float> wrong({2, 4, 15});
  EXPECT_EQ(error_of<ShapeError>([&] { run(this->stack, this->memory, this->x, wrong); }),
            this->name + " out must have shape (2, 4, 16); found (2, 4, 15).");
}

/// An error about caches or output in any layer leaves caches and output unchanged.
TYPED_TEST(LayerStackTest, ErrorsWithCachesChangeNothing) {
  Tensor3<float> y(this->x.shape()), turned({2, 16, 4});
  y.fill(7);
  auto caches = caches_of(this->stack, 5);
  const auto error = [&] {
    return error_of<ValueError>([&] { run(this->stack, this->memory, this->x, y, &caches); });
  };
  EXPECT_THROW(run(this->stack, this->memory, this->x, turned.view().transpose(1, 2), &caches),
               ShapeError);
  caches.back() = caches_of(this->stack, 3).back();
  EXPECT_EQ(error(), this->name +
                         " caches must hold the same positions with the same room; "
                         "found cache 2 unlike cache 0.");
  caches.pop_back();
  EXPECT_EQ(error(), this->name + " caches must be one per layer, 3; found 2.");
  caches = caches_of(this->stack, 3);
  EXPECT_TRUE(attn_test::contains(error(), "[KvCache::append]"));
  for (const auto& cache : caches) EXPECT_EQ(held(cache), 0);
  EXPECT_TRUE(all_are(y, 7));
}

/// Caches are unchanged after late errors, in the last norm of any layer or the final norm.
TYPED_TEST(LayerStackTest, ErrorsOfAnyLayerLeaveTheCaches) {
  auto caches = caches_of(this->stack, 9);
  Tensor3<float> y(this->x.shape()), expected(this->x.shape());
  run(this->stack, this->memory, this->x, y, &caches);
  auto expected_caches = caches;
  run(this->stack, this->memory, this->x, expected, &expected_caches);
  const index_t before = held(caches[0]);
  for (std::size_t broken = 0; broken <= this->stack.layers.size(); ++broken) {
    TypeParam other = this->stack;
    (broken < other.layers.size() ? other.layers[broken].norm2 : other.norm) = LayerNorm<float>(15);
    EXPECT_THROW(run(other, this->memory, this->x, y, &caches), ShapeError);
    for (const auto& cache : caches) EXPECT_EQ(held(cache), before);
    auto none = caches_of(other, 9);
    EXPECT_THROW(run(other, this->memory, this->x, y, &none), ShapeError);
    for (const auto& cache : none) EXPECT_EQ(held(cache), 0);
  }
  run(this->stack, this->memory, this->x, y, &caches);
  EXPECT_EQ(to_array(y).data, to_array(expected).data);
}

}  // namespace
}  // namespace attn
