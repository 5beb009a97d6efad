// MultiHeadAttention: parameter names and shapes for all options; bad input.
#include <map>
#include <string>

#include <gtest/gtest.h>

#include "attn/layers/multi_head_attention.hpp"

#include "support/array.hpp"
#include "support/error_of.hpp"

namespace attn {
namespace {

using attn_test::all_are;
using attn_test::contains;
using attn_test::error_of;

std::map<std::string, std::string> shapes(const MultiHeadAttentionOptions& options) {
  std::map<std::string, std::string> result;
  const MultiHeadAttention<float> module(options);
  module.visit_parameters([&](std::string_view name, const auto& view) {
    result[std::string(name)] = to_string(view.shape());
  });
  return result;
}
using Shapes = std::map<std::string, std::string>;

TEST(MultiHeadAttentionParameters, ByPyTorchsNames) {
  EXPECT_EQ(shapes({.embed_dim = 12, .num_heads = 3}), (Shapes{{"in_proj_weight", "(36, 12)"},
                                                               {"in_proj_bias", "(36)"},
                                                               {"out_proj.weight", "(12, 12)"},
                                                               {"out_proj.bias", "(12)"}}));
  EXPECT_EQ(shapes({.embed_dim = 12, .num_heads = 3, .bias = false, .kdim = 5, .vdim = 7}),
            (Shapes{{"q_proj_weight", "(12, 12)"},
                    {"k_proj_weight", "(12, 5)"},
                    {"v_proj_weight", "(12, 7)"},
                    {"out_proj.weight", "(12, 12)"}}));
  EXPECT_EQ(
      shapes({.embed_dim = 12,
              .num_heads = 3,
              .bias = false,
              .add_bias_kv = true,
              .head_dim = 2,
              .head_dim_v = 5,
              .output_projection = false}),
      (Shapes{{"in_proj_weight", "(27, 12)"}, {"bias_k", "(1, 1, 6)"}, {"bias_v", "(1, 1, 15)"}}));
}

TEST(MultiHeadAttentionParameters, OfGroupedHeadsOneByOne) {
  EXPECT_EQ(shapes({.embed_dim = 12,
                    .num_heads = 6,
                    .num_kv_heads = 2,
                    .output_projection = false,
                    .query_key_norm = NormKind::rms,
                    .separate_in_proj = true}),
            (Shapes{{"q_proj_weight", "(12, 12)"},
                    {"k_proj_weight", "(4, 12)"},
                    {"v_proj_weight", "(4, 12)"},
                    {"q_proj_bias", "(12)"},
                    {"k_proj_bias", "(4)"},
                    {"v_proj_bias", "(4)"},
                    {"q_norm.weight", "(2)"},
                    {"k_norm.weight", "(2)"}}));
}

TEST(MultiHeadAttentionErrors, Options) {
  const auto error = [](const MultiHeadAttentionOptions& options) {
    return error_of<ValueError>([&] { MultiHeadAttention<float>{options}; });
  };
  EXPECT_EQ(error({}), "[MultiHeadAttention] embed_dim must be positive; found 0.");
  EXPECT_EQ(error({.embed_dim = 12, .num_heads = 0}),
            "[MultiHeadAttention] num_heads must be positive; found 0.");
  EXPECT_EQ(error({.embed_dim = 12, .clip_qkv = -1}),
            "[MultiHeadAttention] clip_qkv must be finite and not negative; found -1.");
  EXPECT_EQ(error({.embed_dim = 12, .num_heads = 5}),
            "[MultiHeadAttention] num_heads must divide embed_dim = 12; found 5.");
  EXPECT_TRUE(contains(error({.embed_dim = 12, .kdim = -3}), "not be negative; found -3."));
  EXPECT_NO_THROW((MultiHeadAttention<float>({.embed_dim = 12, .num_heads = 5, .head_dim = 4})));
  EXPECT_EQ(error({.embed_dim = 12, .num_heads = 4, .num_kv_heads = 3}),
            "[MultiHeadAttention] num_kv_heads must divide num_heads = 4; found 3.");
  EXPECT_EQ(error({.embed_dim = 4, .num_heads = 2, .head_dim = index_t{1} << 62}),
            "[MultiHeadAttention] head_dim and head_dim_v must be at most 2^40 / num_heads; found "
            "4611686018427387904.");
  EXPECT_EQ(error({.embed_dim = 12, .num_heads = 4, .rotary = RotaryOptions{}}),
            "[MultiHeadAttention] rotary.dim must be even and at most head_dim = 3; found 3.");
  EXPECT_EQ(error({.embed_dim = 8, .num_heads = 2, .rotary = RotaryOptions{.dim = 6}}),
            "[MultiHeadAttention] rotary.dim must be even and at most head_dim = 4; found 6.");
  EXPECT_EQ(error({.embed_dim = 8, .num_heads = 2, .rotary = RotaryOptions{.max_positions = 0}}),
            "[MultiHeadAttention] rotary.max_positions must be positive; found 0.");
}

TEST(MultiHeadAttentionErrors, Shapes) {
  const MultiHeadAttention<float> module({.embed_dim = 12, .num_heads = 3, .kdim = 5, .vdim = 7});
  const Tensor3<float> q({2, 4, 12}), k({2, 6, 5}), v({2, 6, 7});
  Tensor3<float> y({2, 4, 12});
  y.fill(7);
  const auto error = [&](const auto& q_, const auto& k_, const auto& v_,
                         const AttentionOptions<float>& options = {},
                         const MultiHeadAttentionCall<float>& call = {}) {
    return error_of<ShapeError>([&] { module.forward(q_, k_, v_, y, options, call); });
  };
  using X = Tensor3<float>;
  EXPECT_EQ(error(X({2, 4, 11}), k, v),
            "[MultiHeadAttention] query must have shape (2, 4, 12); found (2, 4, 11).");
  EXPECT_EQ(error(q, X({2, 6, 12}), v),
            "[MultiHeadAttention] key must have shape (2, 6, 5); found (2, 6, 12).");
  EXPECT_EQ(error(q, X({3, 6, 5}), v),
            "[MultiHeadAttention] key must have shape (2, 6, 5); found (3, 6, 5).");
  EXPECT_EQ(error(q, k, X({2, 5, 7})),
            "[MultiHeadAttention] value must have shape (2, 6, 7); found (2, 5, 7).");
  EXPECT_EQ(error(X({2, 5, 12}), k, v),
            "[MultiHeadAttention] out must have shape (2, 5, 12); found (2, 4, 12).");
  const X residual({2, 4, 11});
  EXPECT_EQ(error(q, k, v, {}, {.residual = residual}),
            "[MultiHeadAttention] residual must have shape (2, 4, 12); found (2, 4, 11).");
  X average({2, 4, 7});
  EXPECT_TRUE(
      contains(error(q, k, v, {.average_weights = average}), "(2, 4, 6); found (2, 4, 7)."));
  Tensor4<float> weights({2, 3, 4, 7});
  EXPECT_TRUE(contains(error(q, k, v, {.weights = weights}),
                       "weights must have shape (batch, num_heads, q_len, kv_len) = (2, 3, 4, 6); "
                       "found (2, 3, 4, 7)."));
  const Tensor2<bool> mask({4, 7});
  EXPECT_TRUE(contains(error(q, k, v, {.mask = drop_mask(mask)}),
                       "mask must broadcast to (batch, num_heads, q_len, kv_len) = (2, 3, 4, 6); "
                       "found (1, 1, 4, 7)."));
  EXPECT_TRUE(all_are(y, 7));
}

TEST(MultiHeadAttentionErrors, EmptySequencesAreNone) {
  const MultiHeadAttention<float> module({.embed_dim = 12, .num_heads = 3});
  const Tensor3<float> none({2, 0, 12}), some({2, 4, 12});
  Tensor3<float> y({2, 4, 12}), empty({2, 0, 12});
  y.fill(7);
  EXPECT_NO_THROW(module.forward(none, some, some, empty));
  module.forward(some, none, none, y);  // queries without a key get 0, and the output bias
  EXPECT_TRUE(all_are(y, 0));
}

/// A mask of the wrong shape is refused before it is read, with appended keys, too.
TEST(MultiHeadAttentionErrors, MasksWithAppendedKeys) {
  const MultiHeadAttention<float> module(
      {.embed_dim = 12, .num_heads = 3, .add_bias_kv = true, .add_zero_attn = true});
  const Tensor3<float> x({2, 4, 12});
  Tensor3<float> y({2, 4, 12});
  y.fill(7);
  const Tensor2<bool> mask({2, 2});
  const Tensor1<index_t> lengths({1}, {3}), too_long({2}, {4, 5});
  EXPECT_THROW(module.forward(x, x, x, y, {.mask = drop_mask(mask)}), ShapeError);
  EXPECT_THROW(module.forward(x, x, x, y, {.mask = key_lengths(lengths)}), ShapeError);
  EXPECT_THROW(module.forward(x, x, x, y, {.mask = key_lengths(too_long)}), ValueError);
  EXPECT_TRUE(all_are(y, 7));
}

}  // namespace
}  // namespace attn
