// Options that modules add to each call: window, softcap, scale and biases.
#include <gtest/gtest.h>

#include "attn/layers/decoder.hpp"
#include "attn/layers/encoder.hpp"
#include "attn/layers/multi_head_attention_backward.hpp"

#include "support/array.hpp"
#include "support/error_of.hpp"
#include "support/models/module_gradients.hpp"
#include "support/models/parameters.hpp"

namespace attn {
namespace {

using attn_test::contains;
using attn_test::error_of;
using attn_test::Index;
using attn_test::names_and_shapes_of;
using attn_test::Random;
using attn_test::random_module;
using attn_test::to_array;

MultiHeadAttentionOptions small_options() { return {.embed_dim = 12, .num_heads = 3}; }

TEST(OwnAttentionOptions, WindowAndSoftcapAreThoseOfACall) {
  MultiHeadAttentionOptions own = small_options();
  own.window = 2;
  own.softcap = 0.7;
  Random random(1), again(1);
  const auto module = random_module<MultiHeadAttention<float>>(random, own);
  const auto plain = random_module<MultiHeadAttention<float>>(again, small_options());
  const auto x = random.tensor<float, 3>({2, 9, 12});
  const auto expected = plain(x, {.mask = causal() & sliding_window(2, -1), .softcap = 0.7});
  EXPECT_EQ(to_array(module(x, {.mask = causal()})).data, to_array(expected).data);
  // A narrower window and the softcap of the call take precedence.
  EXPECT_EQ(to_array(module(x, {.mask = causal() & sliding_window(1, 0), .softcap = 2})).data,
            to_array(plain(x, {.mask = causal() & sliding_window(1, 0), .softcap = 2})).data);
  // Step by step.
  KvCache<float> cache = module.make_cache(2, 9);
  for (index_t i = 0; i < 9; ++i) {
    const auto step = module(Tensor3<float>(const_view(x).slice(1, i, i + 1)), {.mask = causal()},
                             {.cache = &cache});
    for (index_t d = 0; d < 12; ++d) EXPECT_NEAR(step(1, 0, d), expected(1, i, d), 1e-5);
  }
  own.window = -2;
  EXPECT_TRUE(contains(error_of<ValueError>([&] { MultiHeadAttention<float>{own}; }),
                       "window must be at least -1; found -2"));
}

TEST(OwnAttentionOptions, SinksAndAlibiAreThoseOfACall) {
  MultiHeadAttentionOptions own = small_options();
  own.sinks = own.alibi = true;
  Random random(3), again(3);
  auto module = random_module<MultiHeadAttention<float>>(random, own);
  const auto plain = random_module<MultiHeadAttention<float>>(again, small_options());
  EXPECT_EQ(names_and_shapes_of(module).back(), "sinks(3)");
  Tensor1<float> sinks({3}), slopes = alibi_slopes<float>(3);
  module.visit_parameters([&](std::string_view name, const auto& view) {
    if (name == "sinks") std::copy_n(view.data(), 3, sinks.data());
  });
  const auto x = random.tensor<float, 3>({2, 9, 12});
  const auto expected = plain(x, {.mask = causal(), .alibi_slopes = slopes, .sinks = sinks});
  EXPECT_EQ(to_array(module(x, {.mask = causal()})).data, to_array(expected).data);
  // Those of a call take precedence.
  sinks(1) += 2;
  slopes(0) = 0;
  EXPECT_EQ(to_array(module(x, {.alibi_slopes = slopes, .sinks = sinks})).data,
            to_array(plain(x, {.alibi_slopes = slopes, .sinks = sinks})).data);
  // In 16 bits: sinks are widened.
  Random third(3), fourth(3);
  auto half = random_module<MultiHeadAttention<bfloat16>>(third, own);
  const auto plain_half = random_module<MultiHeadAttention<bfloat16>>(fourth, small_options());
  Tensor1<float> half_sinks({3});
  half.visit_parameters([&](std::string_view name, const auto& view) {
    if (name == "sinks") std::copy_n(view.data(), 3, half_sinks.data());
  });
  const auto y = random.tensor<bfloat16, 3>({1, 5, 12});
  const Tensor1<float> same = alibi_slopes<float>(3);
  const auto from_call = plain_half(y, {.alibi_slopes = same, .sinks = half_sinks});
  const auto from_module = half(y);
  for (index_t i = 0; i < y.size(); ++i) {
    EXPECT_EQ(float{from_module.data()[i]}, float{from_call.data()[i]});
  }
}

TEST(OwnAttentionOptions, ASymmetricWindowIsOnBothSides) {
  MultiHeadAttentionOptions own = small_options();
  own.window = 2;
  own.symmetric_window = true;
  Random random(1), again(1);
  const auto module = random_module<MultiHeadAttention<float>>(random, own);
  const auto plain = random_module<MultiHeadAttention<float>>(again, small_options());
  const auto x = random.tensor<float, 3>({2, 9, 12});
  const Tensor1<index_t> starts({3}, {0, 4, 9}), lengths({2}, {9, 5});
  EXPECT_EQ(to_array(module(x)).data, to_array(plain(x, {.mask = sliding_window(2, 2)})).data);
  EXPECT_EQ(to_array(module(x, {.mask = key_lengths(lengths)})).data,
            to_array(plain(x, {.mask = key_lengths(lengths) & sliding_window(2, 2)})).data);
  const Tensor3<float> row(const_view(x).slice(0, 0, 1));
  EXPECT_EQ(to_array(module(row, {.cu_seqlens_q = starts, .cu_seqlens_k = starts})).data,
            to_array(plain(row, {.mask = sliding_window(2, 2),
                                 .cu_seqlens_q = starts,
                                 .cu_seqlens_k = starts}))
                .data);
}

TEST(OwnAttentionOptions, BackwardKnowsThem) {
  MultiHeadAttentionOptions own = small_options();
  own.window = 1;
  own.softcap = 0.8;
  own.out_proj_bias = false;
  own.rotary = RotaryOptions{
      .max_positions = 9,
      .scaling = {.kind = RotaryScalingKind::dynamic, .factor = 2, .original_max_positions = 3}};
  Random random(2);
  auto module = random_module<MultiHeadAttention<double>>(random, own);
  auto x = random.tensor<double, 3>({2, 5, 12});
  const auto d = random.tensor<double, 3>({2, 5, 12});
  Tensor3<double> out({2, 5, 12}), d_x({2, 5, 12});
  MultiHeadAttentionSaved<double> saved;
  auto gradients = gradients_of(module);
  const AttentionOptions<double> options{.mask = causal()};
  forward(module, x, x, x, out, saved, options);
  const auto whole = module(x, options);
  for (index_t i = 0; i < out.size(); ++i) EXPECT_NEAR(out.data()[i], whole.data()[i], 1e-12);
  backward(module, d, saved, {.d_query = d_x}, gradients, options);
  attn_test::expect_module_gradients(random, module, gradients, [&] {
    module.forward(x, x, x, out, options);
    return attn_test::weighted_sum(d.elements(), out.elements());
  });
}

TEST(OwnAttentionOptions, BiasesInAndOut) {
  const auto names = [](bool bias, std::optional<bool> in, std::optional<bool> out) {
    MultiHeadAttentionOptions o = small_options();
    o.bias = bias;
    o.in_proj_bias = in;
    o.out_proj_bias = out;
    std::string text;
    for (const std::string& one : names_and_shapes_of(MultiHeadAttention<float>(o)))
      if (one.find("bias") != one.npos) text += one + ' ';
    return text;
  };
  EXPECT_EQ(names(true, {}, {}), "in_proj_bias(36) out_proj.bias(12) ");
  EXPECT_EQ(names(false, {}, {}), "");
  EXPECT_EQ(names(false, true, {}), "in_proj_bias(36) ");
  EXPECT_EQ(names(true, false, {}), "out_proj.bias(12) ");
  EXPECT_EQ(names(true, {}, false), "in_proj_bias(36) ");
  // A layer without biases may have attention with biases.
  TransformerLayerOptions layer{.d_model = 12, .nhead = 3, .dim_feedforward = 4, .bias = false};
  layer.attention.in_proj_bias = true;
  EXPECT_EQ(names_and_shapes_of(EncoderLayer<float>(layer))[1], "self_attn.in_proj_bias(36)");
}

TEST(StackWindows, AreThoseOfEachLayer) {
  TransformerStackOptions options{.num_layers = 3,
                                  .layer = {.d_model = 12, .nhead = 3, .dim_feedforward = 8}};
  Random random(4), again(4);
  auto plain = random_module<Encoder<float>>(random, options);
  options.windows = {1, -1};
  const auto stack = random_module<Encoder<float>>(again, options);
  const auto x = random.tensor<float, 3>({1, 6, 12});
  Tensor3<float> expected = x;
  for (std::size_t n = 0; n < 3; ++n) {
    Mask mask = causal();
    if (n != 1) mask = mask & sliding_window(1, -1);
    plain.layers[n].forward(expected, expected, {.mask = mask});
  }
  EXPECT_EQ(to_array(stack(x, {.mask = causal()})).data, to_array(expected).data);
  options.windows = {-3};
  EXPECT_TRUE(contains(error_of<ValueError>([&] { Encoder<float>{options}; }), "at least -1"));
  // Cross-attention has no window.
  options.windows = {0};
  const Decoder<float> decoder(options);
  EXPECT_EQ(decoder.layers[2].self_attn.options().window, 0);
  EXPECT_EQ(decoder.layers[2].multihead_attn.options().window, -1);
}

}  // namespace
}  // namespace attn
