// Empty axes: without queries nothing is written, without keys every row is fully masked.
#include <limits>
#include <vector>

#include <gtest/gtest.h>

#include "attn/attention/explain.hpp"
#include "attn/attention/sdpa.hpp"

#include "support/array.hpp"
#include "support/error_of.hpp"
#include "support/isas.hpp"

namespace attn {
namespace {

using attn_test::all_are;
using attn_test::available_isas;
using attn_test::error_of;

constexpr float kInfinite = std::numeric_limits<float>::infinity();

/// Optional outputs, which lie in memory even if they have no elements.
struct Outputs {
  std::vector<float> memory = std::vector<float>(4096, 7.0f);
  AttentionOptions<float> options;

  Outputs(index_t batch, index_t heads, index_t q_len, index_t kv_len,
          AttentionOptions<float> told = {})
      : options(std::move(told)) {
    float* at = memory.data();
    const auto take = [&](const auto& shape) {
      float* begin = at;
      at += size_of(shape);
      return begin;
    };
    const Shape<4> scores{batch, heads, q_len, kv_len};
    options.weights = {take(scores), scores};
    options.scores = {take(scores), scores};
    options.average_weights = {take(Shape<3>{batch, q_len, kv_len}), {batch, q_len, kv_len}};
    options.column_sums = {take(Shape<3>{batch, heads, kv_len}), {batch, heads, kv_len}};
    options.max_logits = {take(Shape<2>{batch, heads}), {batch, heads}};
    options.lse = {take(Shape<3>{batch, heads, q_len}), {batch, heads, q_len}};
    end = at;
  }
  /// Whether the memory after the outputs is unchanged.
  bool rest_untouched() const {
    return std::all_of(static_cast<const float*>(end), memory.data() + memory.size(),
                       [](float x) { return x == 7; });
  }
  float* end;
};

TEST(EmptyAxes, WithoutQueriesOutputsAreSumsOfNothing) {
  const Tensor1<index_t> lengths({2}, {3, 1});
  for (const auto& [batch, heads, kv_heads, q_len, kv_len] :
       {std::tuple<index_t, index_t, index_t, index_t, index_t>{0, 4, 2, 5, 7},
        {2, 0, 0, 5, 7},
        {2, 0, 3, 5, 7},
        {2, 4, 2, 0, 7},
        {2, 4, 2, 0, 3000},
        {0, 0, 0, 0, 0}}) {
    for (Isa isa : available_isas()) {
      const Tensor4<float> q({batch, heads, q_len, 8}), k({batch, kv_heads, kv_len, 8});
      Outputs outputs(batch, heads, q_len, std::min<index_t>(kv_len, 7),
                      {.mask = batch == 2 ? causal() & key_lengths(lengths) : causal(),
                       .execution = {.isa = isa}});
      const auto keys = k.view().slice(2, 0, std::min<index_t>(kv_len, 7));
      AttentionOptions<float>& options = outputs.options;
      Workspace none;
      options.execution.workspace = &none;
      auto y = scaled_dot_product_attention(q, keys, keys, options);
      EXPECT_EQ(y.shape(), q.shape());
      EXPECT_TRUE(all_are(options.average_weights, 0));
      EXPECT_TRUE(all_are(options.column_sums, 0));
      EXPECT_TRUE(all_are(options.max_logits, -kInfinite));
      EXPECT_TRUE(outputs.rest_untouched());
      EXPECT_EQ(workspace_bytes(q, keys, keys, y, options), 0u);
      EXPECT_EQ(none.capacity(), 0u);
      const AttentionExplanation found = explain(q, k, k);
      EXPECT_EQ(found.plan.tasks, 0);
      EXPECT_EQ(found.flops, 0);
    }
  }
}

TEST(EmptyAxes, WithoutKeysEveryRowIsOneThatSeesNothing) {
  const Tensor1<float> sinks({4}, {0.5f, -kInfinite, 2, 1});
  for (const index_t q_len : {1, 3, 40}) {
    for (const bool has_sinks : {false, true}) {
      for (const MaskedRow masked_row : {MaskedRow::zero, MaskedRow::mean}) {
        for (Isa isa : available_isas()) {
          const Tensor4<float> q({2, 4, q_len, 8}), k({2, 2, 0, 8}), v({2, 2, 0, 6});
          Outputs outputs(2, 4, q_len, 0,
                          {.mask = causal(), .masked_row = masked_row, .execution = {.isa = isa}});
          if (has_sinks) outputs.options.sinks = sinks;
          Tensor4<float> y({2, 4, q_len, 6});
          y.fill(7);
          scaled_dot_product_attention(q, k, v, y, outputs.options);
          EXPECT_TRUE(all_are(y, 0));
          EXPECT_TRUE(all_are(outputs.options.max_logits, -kInfinite));
          for (index_t h = 0; h < 4; ++h) {
            EXPECT_TRUE(
                all_are(outputs.options.lse.select(1, h), has_sinks ? sinks(h) : -kInfinite));
          }
          EXPECT_TRUE(outputs.rest_untouched());
        }
      }
    }
  }
}

TEST(EmptyAxes, OfPackedSequencesAndPages) {
  const Tensor4<float> q({1, 2, 3, 8}), none({1, 2, 0, 8});
  const Tensor1<index_t> starts({3}, {0, 1, 3}), zeros({3}, {0, 0, 0}), no_sequence({1}, {0});
  Tensor4<float> y({1, 2, 3, 8});
  y.fill(7);
  scaled_dot_product_attention(q, none, none, y, {.cu_seqlens_q = starts, .cu_seqlens_k = zeros});
  EXPECT_TRUE(all_are(y, 0));
  const auto empty = scaled_dot_product_attention(
      none, none, none, {.cu_seqlens_q = no_sequence, .cu_seqlens_k = no_sequence});
  EXPECT_EQ(empty.shape(), none.shape());
  EXPECT_EQ(error_of<ValueError>([&] {
              (void)scaled_dot_product_attention(
                  q, none, none, {.cu_seqlens_q = no_sequence, .cu_seqlens_k = no_sequence});
            }),
            "[scaled_dot_product_attention] cu_seqlens_q(0) must lie in 3 .. 3; found 0.");

  const index_t no_page = 0;
  const TensorView2<const index_t> no_pages(&no_page, {1, 0});
  const Tensor2<index_t> table({1, 2}, {0, 0});
  const Tensor4<float> pages({5, 2, 4, 8}), no_rows({5, 2, 0, 8});
  y.fill(7);
  scaled_dot_product_attention(q, pages, pages, y, {.block_table = no_pages});
  EXPECT_TRUE(all_are(y, 0));
  y.fill(7);
  scaled_dot_product_attention(q, no_rows, no_rows, y, {.block_table = table});
  EXPECT_TRUE(all_are(y, 0));
}

/// weight_heads that is given without elements selects no head.
TEST(EmptyAxes, NoHeadChosen) {
  const Tensor4<float> q({1, 2, 3, 8});
  const index_t head = 0;
  float memory = 7;
  (void)scaled_dot_product_attention(
      q, q, q,
      {.weights = {&memory, {1, 0, 3, 3}}, .weight_heads = TensorView1<const index_t>(&head, {0})});
  EXPECT_EQ(memory, 7);
}

}  // namespace
}  // namespace attn
