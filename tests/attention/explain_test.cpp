// explain(): its plan is the one that runs, and its blocks agree with a brute-force count.
#include "attn/attention/explain.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/draws/attention_draw.hpp"
#include "support/isas.hpp"

namespace attn {
namespace {

using attn_test::AttentionDraw;
using attn_test::Index;
using attn_test::LibraryOptions;
using attn_test::Random;
using ::testing::HasSubstr;

/// Runs serially, reports several threads, and records the number of tasks of each run().
class RecordingExecutor final : public Executor {
 public:
  explicit RecordingExecutor(int threads) : threads_(threads) {}
  int concurrency() const override { return threads_; }
  void run(index_t count, TaskRef task) const override {
    counts.push_back(count);
    for (index_t i = 0; i < count; ++i) task(i, static_cast<int>(i % threads_));
  }
  mutable std::vector<index_t> counts;

 private:
  int threads_;
};

TEST(Explain, ThePlanIsTheOneThatRuns) {
  for (std::uint64_t draw = 0; draw < attn_test::draws(60); ++draw) {
    Random random(draw);
    const AttentionDraw<float> call(random, 4000000);
    SCOPED_TRACE(random.trace() + ": " + call.text());
    const LibraryOptions<float> library(call.options);
    AttentionOptions<float> options = library.get();
    const RecordingExecutor executor(static_cast<int>(random.integer(2, 5)));
    Workspace workspace;
    options.execution = {.executor = &executor, .workspace = &workspace};
    const auto [batch, heads, q_len, kv_len] = call.scores();
    Tensor3<float> average({batch, q_len, kv_len});
    Tensor2<float> most({batch, heads});
    if (random.chance(0.3)) options.average_weights = average;
    if (random.chance(0.3)) options.max_logits = most;
    const auto q = call.q.view<4>(), k = call.k.view<4>(), v = call.v.view<4>();
    const AttentionExplanation explanation = explain(q, k, v, options);
    EXPECT_TRUE(executor.counts.empty());
    EXPECT_EQ(workspace.peak(), 0u);
    auto out = Tensor4<float>({batch, heads, q_len, call.v.extent(3)});
    scaled_dot_product_attention(q, k, v, out, options);
    EXPECT_EQ(workspace.peak(), explanation.plan.workspace_bytes);
    if (explanation.plan.concurrency == 1) {
      EXPECT_TRUE(executor.counts.empty());
    } else {
      ASSERT_FALSE(executor.counts.empty());
      EXPECT_EQ(executor.counts.front(), explanation.plan.tasks);
    }
    EXPECT_EQ(explanation.fused, !options.average_weights);
  }
}

TEST(Explain, BlocksAreThoseOfBruteForce) {
  for (std::uint64_t draw = 0; draw < attn_test::draws(60); ++draw) {
    Random random(draw);
    const AttentionDraw<float> call(random);
    SCOPED_TRACE(random.trace() + ": " + call.text());
    const LibraryOptions<float> library(call.options);
    const AttentionExplanation found =
        explain(call.q.view<4>(), call.k.view<4>(), call.v.view<4>(), library.get());
    const auto [batch, heads, q_len, kv_len] = call.scores();
    const Index kv_heads = call.k.extent(1), group = heads / kv_heads, rows = group * q_len;
    Index empty = 0, partial = 0, full = 0;
    for (Index b = 0; b < batch; ++b) {
      const Index offset = reference_offset(call.options, b, q_len, kv_len);
      for (Index r = 0; r < rows; r += found.tile_rows) {
        for (Index first = 0; first < kv_len; first += found.block_kv) {
          Index seen = 0, all = 0;
          for (Index row = r; row < std::min(r + found.tile_rows, rows); ++row) {
            const Index i = row % q_len;
            for (Index j = first; j < std::min(first + found.block_kv, kv_len); ++j, ++all) {
              seen += is_in_reach(call.options, b, i, j, i + offset);
            }
          }
          Index& count = seen == 0                                          ? empty
                         : seen == all && library.get().mask.num_dense == 0 ? full
                                                                            : partial;
          count += kv_heads;
        }
      }
    }
    EXPECT_EQ(found.empty, empty);
    EXPECT_EQ(found.partial, partial);
    EXPECT_EQ(found.full, full);
  }
}

TEST(Explain, WorkOfACallThatSeesEverything) {
  const Tensor4<float> q({2, 8, 96, 64}), k({2, 2, 700, 64}), v({2, 2, 700, 48});
  const AttentionExplanation found = explain(q, k, v);
  EXPECT_EQ(found.path, AttentionPath::tiled);
  EXPECT_EQ(found.flops, 2.0 * 2 * 8 * 96 * 700 * (64 + 48));
  EXPECT_EQ(found.bytes, 4.0 * (2 * 8 * 96 + 2 * 2 * 700) * (64 + 48));
  EXPECT_EQ(found.empty + found.partial, 0);
  EXPECT_TRUE(found.fused && !found.two_pass);
}

TEST(Explain, QueriesOfValuesAreWork) {
  const Tensor4<float> q({2, 8, 96, 64}), qv({2, 8, 96, 48}), k({2, 2, 700, 64}),
      v({2, 2, 700, 48});
  const AttentionExplanation found = explain(q, k, v, {.qv = qv});
  EXPECT_EQ(found.flops, 2.0 * 2 * 8 * 96 * 700 * (64 + 48 + 48));
  EXPECT_EQ(found.bytes, 4.0 * (2 * 8 * 96 * (64 + 48 + 48) + 2 * 2 * 700 * (64 + 48)));
  EXPECT_TRUE(found.fused && !found.two_pass);
}

TEST(Explain, SplitKeysOfOneQuery) {
  const Tensor4<float> q({1, 4, 1, 64}), kv({1, 1, 5000, 64});
  const AttentionExplanation found = explain(q, kv, kv);
  EXPECT_EQ(found.path, AttentionPath::decode);
  EXPECT_EQ(found.plan.tasks, 3);
  EXPECT_EQ(found.plan.kv_splits, 3);
  const auto halve = prob_mod([](float p, int, int, int, int) { return p / 2; });
  const AttentionExplanation whole = explain(q, kv, kv, {}, halve);
  EXPECT_EQ(whole.plan.kv_splits, 0);  // a prob_mod needs final weights
  EXPECT_TRUE(whole.two_pass);
}

TEST(Explain, HeadsOfOneTask) {
  const Tensor4<float> q({1, 40, 1, 8}), kv({1, 40, 3000, 8}), turned({1, 3000, 40, 8});
  const RecordingExecutor threads(3);
  const AttentionOptions<float> options{.execution = {.executor = &threads}};
  EXPECT_EQ(explain(q, kv, kv, options).plan.heads_per_task, 1);
  const auto side_by_side = turned.view().transpose(1, 2);
  const AttentionPlan plan = explain(q, side_by_side, side_by_side, options).plan;
  EXPECT_EQ(plan.heads_per_task, AttentionPlan::kMaxHeads);
  EXPECT_EQ(plan.tasks, 3 * 2);
  EXPECT_EQ(plan.kv_splits, 40 * 2);
  const auto one = side_by_side.slice(2, 0, 2000).slice(1, 0, 4);
  const AttentionPlan small = explain(q.view().slice(1, 0, 4), one, one, options).plan;
  EXPECT_EQ(small.heads_per_task, 4) << "too little work for threads";
  const Tensor4<float> wide({1, 2000, 4, 128}), queries({1, 4, 1, 128});
  const auto keys = wide.view().transpose(1, 2);
  const AttentionPlan shared = explain(queries, keys, keys, options).plan;
  EXPECT_EQ(shared.heads_per_task, 1) << "one task per thread";
  EXPECT_EQ(shared.tasks, 4);
}

TEST(Explain, SequencesOfBothPaths) {
  const Tensor1<index_t> q_starts({3}, {0, 1, 40}), kv_starts({3}, {0, 20, 60});
  const Tensor4<float> q({1, 2, 40, 16}), kv({1, 2, 60, 16});
  EXPECT_EQ(explain(q, kv, kv, {.cu_seqlens_q = q_starts, .cu_seqlens_k = kv_starts}).path,
            AttentionPath::mixed);
}

TEST(Explain, InWords) {
  const Tensor4<float> q({1, 8, 2048, 64});
  const Isa isa = attn_test::available_isas().front();
  const std::string set(name(isa));
  const std::string text = explain(q, q, q, {.mask = causal(), .execution = {.isa = isa}}).text();
  EXPECT_THAT(text, HasSubstr("tiled on " + set + ", fused"));
  EXPECT_THAT(text, HasSubstr("backend    " + set + " of F32, products of " +
                              (isa == Isa::scalar ? "6 x 8" : "")));
  EXPECT_THAT(text, HasSubstr("full"));
}

}  // namespace
}  // namespace attn
