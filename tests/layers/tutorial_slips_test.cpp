// Mistakes in five attention tutorials, and attn's result for what each tutorial means.
#include <cmath>

#include <gtest/gtest.h>

#include "attn/kernels/rows/softmax.hpp"
#include "attn/layers/embedding/padding.hpp"
#include "attn/layers/encoder_layer.hpp"

#include "support/references/reference_transformer.hpp"

namespace attn {
namespace {

using attn_test::Random;
using attn_test::to_array;
using attn_test::unlike;

MultiHeadAttention<float> random_attention(Random& random,
                                           const MultiHeadAttentionOptions& options) {
  MultiHeadAttention<float> module(options);
  attn_test::randomize(module, random);
  return module;
}

/// The tutorial's numbers depend on a hidden random state. Testable: permuting tokens permutes the
/// rows.
TEST(TutorialSlips, T000PermutedTokensGivePermutedRows) {
  Random random(1);
  const auto module = random_attention(random, {.embed_dim = 16, .num_heads = 4});
  const auto x = random.tensor<float, 3>({1, 4, 16});
  constexpr index_t kOrder[] = {2, 0, 1, 3};
  const Tensor3<float> y = module(x);
  Tensor3<float> turned(x.shape()), expected(x.shape());
  for (index_t i = 0; i < 4; ++i) {
    copy(x.view().select(1, kOrder[i]), turned.view().select(1, i));
    copy(std::as_const(y).view().select(1, kOrder[i]), expected.view().select(1, i));
  }
  EXPECT_EQ(unlike(module(turned), expected), "");
}

/// reshape(-1, heads, dim) of (batch, n, heads * dim) mixes tokens into heads; intended: feature h
/// * dim + j of token i is feature j of head h.
TEST(TutorialSlips, T001HeadsAreCutFromFeatures) {
  Random random(2);
  constexpr index_t kHeads = 3, kTokens = 5, kDim = 4;
  const auto x = random.tensor<float, 3>({2, kTokens, kHeads * kDim});
  const TensorView4<const float> heads = split_heads(x, kHeads);
  const TensorView4<const float> reshaped(x.data(), {2, kHeads, kTokens, kDim});
  bool same = true;
  for (index_t b = 0; b < 2; ++b) {
    for (index_t h = 0; h < kHeads; ++h) {
      for (index_t i = 0; i < kTokens; ++i) {
        for (index_t j = 0; j < kDim; ++j) {
          EXPECT_EQ(heads(b, h, i, j), x(b, i, h * kDim + j));
          same = same && heads(b, h, i, j) == reshaped(b, h, i, j);
        }
      }
    }
  }
  EXPECT_FALSE(same);
  EXPECT_EQ(to_array(combine_heads(heads)).data, to_array(x).data);
}

/// The tutorial multiplies scores by a mask of -inf, which gives NaN for 0 and flips negative
/// scores; intended: adding the mask.
TEST(TutorialSlips, T001InfinityIsAdded) {
  Random random(3);
  const auto module = random_attention(random, {.embed_dim = 12, .num_heads = 3});
  const auto x = random.tensor<float, 3>({2, 4, 12});
  Tensor2<float> bias({4, 4});
  for (index_t i = 0; i < 4; ++i) {
    for (index_t j = i + 1; j < 4; ++j) bias(i, j) = -std::numeric_limits<float>::infinity();
  }
  const Tensor3<float> y = module(x, {.mask = additive_mask(bias)});
  EXPECT_EQ(unlike(y, module(x, {.mask = causal()})), "");
}

/// The full listing projects keys and values with q_project; intended: separate projections.
TEST(TutorialSlips, T002KeysAndValuesHaveTheirOwnProjections) {
  Random random(4);
  auto module = random_attention(random, {.embed_dim = 12, .num_heads = 3});
  const auto x = random.tensor<float, 3>({2, 4, 12});
  const Tensor3<float> y = module(x);
  const auto q = linear(x, module.q_weight(), module.q_bias());
  const auto k = linear(x, module.k_weight(), module.k_bias());
  const auto v = linear(x, module.v_weight(), module.v_bias());
  const auto attend = [&](const Tensor3<float>& keys, const Tensor3<float>& values) {
    return module.out_proj()(combine_heads(scaled_dot_product_attention(
        split_heads(q, 3), split_heads(keys, 3), split_heads(values, 3))));
  };
  EXPECT_EQ(unlike(y, attend(k, v)), "");
  EXPECT_NE(unlike(y, attend(q, q)), "");
  EXPECT_NE(unlike(y, attend(q, v)), "");
  EXPECT_NE(unlike(y, attend(k, q)), "");
}

/// unsqueeze(1) broadcasts a mask (seq, seq) on the axis of heads. In attn it is (q_len, kv_len)
/// for every head and batch row, even if heads and tokens have the same number.
TEST(TutorialSlips, T002MaskOfTwoAxesIsNotOfHeads) {
  Random random(5);
  constexpr index_t kSeq = 4;
  const auto module = random_attention(random, {.embed_dim = 12, .num_heads = kSeq});
  const auto x = random.tensor<float, 3>({kSeq, kSeq, 12});
  Tensor2<bool> visible({kSeq, kSeq});
  Tensor3<bool> per_row({kSeq, kSeq, kSeq});
  for (index_t i = 0; i < kSeq; ++i) {
    for (index_t j = 0; j <= i; ++j) {
      visible(i, j) = true;
      for (index_t b = 0; b < kSeq; ++b) per_row(b, i, j) = true;
    }
  }
  const Tensor3<float> expected = module(x, {.mask = causal()});
  EXPECT_EQ(unlike(module(x, {.mask = keep_mask(visible)}), expected), "");
  EXPECT_EQ(unlike(module(x, {.mask = keep_mask(per_row.view().unsqueeze(1))}), expected), "");
}

/// The page is incomplete. Intended: a pad mask (batch, 1, seq) AND a subsequent mask (1, seq,
/// seq), norms after the residual, eps 1e-6.
TEST(TutorialSlips, T003MasksCombineAndNormsComeLast) {
  Random random(6);
  EncoderLayer<float> layer(
      {.d_model = 8, .nhead = 2, .dim_feedforward = 12, .layer_norm_eps = 1e-6});
  layer.visit_parameters([&]<int Rank>(std::string_view name, TensorView<float, Rank> p) {
    if (name.starts_with("norm")) return;
    for (index_t i = 0; i < p.size(); ++i) p.data()[i] = static_cast<float>(random.normal()) / 3;
  });
  const Tensor2<int> ids({2, 4}, {1, 2, 3, 4, 1, 2, 0, 0});
  auto x = random.tensor<float, 3>({2, 4, 8});
  Tensor3<bool> pad({2, 1, 4}), subsequent({1, 4, 4});
  for (index_t b = 0; b < 2; ++b) {
    for (index_t j = 0; j < 4; ++j) pad(b, 0, j) = ids(b, j) != 0;
  }
  for (index_t i = 0; i < 4; ++i) {
    for (index_t j = 0; j <= i; ++j) subsequent(0, i, j) = true;
  }
  const Mask page = keep_mask(pad.view().unsqueeze(1)) & keep_mask(subsequent.view().unsqueeze(1));
  const Tensor2<bool> padding = find_padding(ids, 0);
  const Tensor3<float> y = layer(x, {.mask = page});
  EXPECT_EQ(unlike(y, layer(x, {.mask = key_padding_mask(padding) & causal()})), "");

  // With zero weights of attention and feed-forward, only the norms remain: small rows show eps.
  EncoderLayer<float> norms(
      {.d_model = 8, .nhead = 2, .dim_feedforward = 12, .layer_norm_eps = 1e-6});
  for (float& value : x.elements()) value *= 1e-3f;
  const LayerNorm<float> same(8, 1e-6), other(8, 1e-5);
  EXPECT_EQ(unlike(norms(x), same(same(x))), "");
  EXPECT_NE(unlike(norms(x), other(other(x))), "");
}

/// masked_fill with -1e-9 masks nothing out; a masked key has weight 0.
TEST(TutorialSlips, T004MaskedKeysHaveNoWeight) {
  const Tensor4<float> q({1, 1, 2, 2}, {1, 0, 0, 2}), k({1, 1, 2, 2}, {1, 1, 0, 1});
  const Tensor2<bool> visible({1, 2}, {true, false});
  Tensor4<float> weights({1, 1, 2, 2});
  scaled_dot_product_attention(q, k, k,
                               {.mask = keep_mask(visible), .scale = 1.0, .weights = weights});
  const Tensor2<float> filled({2, 2}, {1, -1e-9f, 2, -1e-9f});
  const Tensor2<float> leaking = softmax(filled);
  for (index_t i = 0; i < 2; ++i) {
    EXPECT_EQ(weights(0, 0, i, 0), 1.0f);
    EXPECT_EQ(weights(0, 0, i, 1), 0.0f);
    EXPECT_GT(leaking(i, 1), 0.1f);
  }
}

/// The "multi-head" demonstration with one matrix is one head of width 6, which differs from two
/// heads of width 3.
TEST(TutorialSlips, T004HeadsHaveScoresOfTheirOwn) {
  Random random(7);
  auto one = random_attention(random, {.embed_dim = 6, .num_heads = 1, .output_projection = false});
  MultiHeadAttention<float> two({.embed_dim = 6, .num_heads = 2, .output_projection = false});
  copy(one.q_weight(), two.q_weight());
  copy(one.k_weight(), two.k_weight());
  copy(one.v_weight(), two.v_weight());
  const auto x = random.tensor<float, 3>({1, 3, 6});
  EXPECT_NE(unlike(one(x, {.scale = 1.0}), two(x, {.scale = 1.0})), "");
  // A module of two heads equals two modules of one head.
  const Tensor3<float> y = two(x, {.scale = 1.0});
  for (index_t h = 0; h < 2; ++h) {
    MultiHeadAttention<float> head(
        {.embed_dim = 6, .num_heads = 1, .head_dim = 3, .output_projection = false});
    const auto rows = [&](TensorView2<float> w) {
      return TensorView2<const float>(w.slice(0, 3 * h, 3 * h + 3));
    };
    copy(rows(two.q_weight()), head.q_weight());
    copy(rows(two.k_weight()), head.k_weight());
    copy(rows(two.v_weight()), head.v_weight());
    EXPECT_EQ(unlike(head(x, {.scale = 1.0}),
                     Tensor3<float>(std::as_const(y).view().slice(2, 3 * h, 3 * h + 3))),
              "");
  }
}

}  // namespace
}  // namespace attn
