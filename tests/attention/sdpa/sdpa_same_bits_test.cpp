// Same inputs give the same bits for any threads, batch, batch row, strides and chunks.
#include <thread>

#include <gtest/gtest.h>

#include "attn/attention/explain.hpp"

#include "support/draws/attention_draw.hpp"
#include "support/isas.hpp"
#include "support/thread_executor.hpp"

namespace attn {
namespace {

using attn_test::Array;
using attn_test::AttentionDraw;
using attn_test::available_isas;
using attn_test::Index;
using attn_test::Layout;
using attn_test::Placed;
using attn_test::Random;
using attn_test::ReferenceOptions;
using attn_test::run_library;
using attn_test::same_bits;
using attn_test::ThreadExecutor;
using attn_test::to_array;

template <class T>
class SdpaSameBitsTest : public ::testing::Test {};
using Types = ::testing::Types<float, double>;
TYPED_TEST_SUITE(SdpaSameBitsTest, Types);

/// A call large enough for several threads.
template <class T>
AttentionDraw<T> large(Random& random, Index q_len, Index kv_len) {
  AttentionDraw<T> call(random, 100);
  call.options = {};
  call.q = random.array<T>({2, 4, q_len, 24});
  call.k = random.array<T>({2, 2, kv_len, 24});
  call.v = random.array<T>({2, 2, kv_len, 24});
  return call;
}

TYPED_TEST(SdpaSameBitsTest, OnAnyNumberOfThreads) {
  using T = TypeParam;
  Random random(1);
  for (const auto& [q_len, kv_len] : {std::pair{130, 300}, {1, 2050}, {7, 700}, {401, 97}}) {
    for (const bool masked : {false, true}) {
      auto call = large<T>(random, q_len, kv_len);
      call.options.causal = masked;
      if (masked) call.options.key_lengths = {kv_len, kv_len / 2};
      SCOPED_TRACE(call.text());
      for (Isa isa : available_isas()) {
        const SerialExecutor serial;
        const auto expected = run_library(call, {.executor = &serial, .isa = isa});
        for (int threads : {2, 3, 8, 33}) {
          const ThreadExecutor executor(threads);
          EXPECT_TRUE(same_bits(run_library(call, {.executor = &executor, .isa = isa}), expected))
              << name(isa) << " with " << threads;
        }
#if defined(_OPENMP)
        const OpenMPExecutor openmp(3);
        EXPECT_TRUE(same_bits(run_library(call, {.executor = &openmp, .isa = isa}), expected));
#endif
      }
    }
  }
}

TYPED_TEST(SdpaSameBitsTest, InAnyBatch) {
  using T = TypeParam;
  for (std::uint64_t draw = 0; draw < attn_test::draws(60); ++draw) {
    Random random(draw);
    AttentionDraw<T> call(random, 150000);
    call.options.dropout = 0;  // which drops other keys in another batch row
    SCOPED_TRACE(random.trace() + ": " + call.text());
    const Index batch = call.q.extent(0);
    for (Isa isa : available_isas()) {
      const auto all = run_library(call, {.isa = isa});
      const auto row_of = [](const auto& result, Index b) {
        auto row = result;
        for (auto* part :
             {&row.y, &row.weights, &row.lse, &row.average, &row.column_sums, &row.max_logits}) {
          *part = AttentionDraw<T>::pick_rows(*part, {b});
        }
        return row;
      };
      for (Index b = 0; b < batch; ++b) {
        const auto expected = row_of(all, b);
        ASSERT_TRUE(same_bits(run_library(call.with_batch({b}), {.isa = isa}), expected)) << b;
        const std::vector<Index> rows = {0, b, batch - 1, b, b};
        const auto mixed = run_library(call.with_batch(rows), {.isa = isa});
        for (Index at : {1, 3, 4}) ASSERT_TRUE(same_bits(row_of(mixed, at), expected)) << b << at;
      }
    }
  }
}

TYPED_TEST(SdpaSameBitsTest, AtAnyStrides) {
  using T = TypeParam;
  for (std::uint64_t draw = 500; draw < 500 + attn_test::draws(60); ++draw) {
    Random random(draw);
    const AttentionDraw<T> call(random, 150000);
    SCOPED_TRACE(random.trace() + ": " + call.text());
    const attn_test::LibraryOptions<T> library(call.options);
    for (Isa isa : available_isas()) {
      const auto expected = run_library(call, {.isa = isa});
      const Placed<T, 4> q(call.q, Layout<4>::any(random)), k(call.k, Layout<4>::any(random)),
          v(call.v, Layout<4>::any(random));
      const Placed<T, 4> out(expected.y.template library_shape<4>(), Layout<4>::any(random));
      AttentionOptions<T> options = library.get();
      options.execution.isa = isa;
      scaled_dot_product_attention(q.read(), k.read(), v.read(), out.view(), options);
      ASSERT_TRUE(same_bits(out.values(), expected.y)) << name(isa);
    }
  }
}

/// Few queries and keys of (batch, seq, heads, dim), where heads take blocks of keys in turn, some
/// of them with split keys. More heads than one task takes, not a multiple of that number, and as
/// few as threads leave to each.
TYPED_TEST(SdpaSameBitsTest, WhereHeadsLieSideBySide) {
  using T = TypeParam;
  Random random(3);
  const Layout<4> seq_major{{0, 2, 1, 3}};
  for (const Index kv_len : {300, 2100}) {
    const Index most = kv_len < 512 ? 2 : 3;  // 5 rows with one block of keys would be tiled
    for (const Index group : {Index{1}, most}) {
      AttentionDraw<T> call(random, 100);
      call.q = random.array<T>({2, 21 * group, 2, 9});
      call.k = random.array<T>({2, 21, kv_len, 9});
      call.v = random.array<T>({2, 21, kv_len, 9});
      call.options = {};
      call.options.causal = true;
      call.options.key_lengths = {kv_len, 1};
      call.options.left_padding = {kv_len - 40, 0};
      call.options.sinks.assign(static_cast<std::size_t>(21 * group), 0.5);
      for (Index j = 0; j < 9; ++j) call.v(0, 20, 3, j) = std::numeric_limits<T>::quiet_NaN();
      const Placed<T, 4> k(call.k, seq_major), v(call.v, seq_major);
      const attn_test::LibraryOptions<T> library(call.options);
      AttentionOptions<T> options = library.get();
      const AttentionExplanation plan =
          explain(call.q.template view<4>(), k.read(), v.read(), options);
      EXPECT_GT(plan.plan.heads_per_task, 1) << plan.text();
      const auto halve_some = prob_mod([](T p, int, int, int, int j) { return j % 2 ? p : p / 2; });
      for (Isa isa : available_isas()) {
        const auto expected = run_library(call, {.isa = isa});
        Tensor4<T> halved(call.q.template library_shape<4>());
        options.execution.isa = isa;
        scaled_dot_product_attention(call.q.template view<4>(), call.k.template view<4>(),
                                     call.v.template view<4>(), halved, options, halve_some);
        for (const int threads : {1, 2, 7}) {
          const ThreadExecutor executor(threads);
          auto got = expected;
          std::fill(got.y.data.begin(), got.y.data.end(), T{7});
          std::fill(got.weights.data.begin(), got.weights.data.end(), T{7});
          std::fill(got.lse.data.begin(), got.lse.data.end(), T{7});
          AttentionOptions<T> with_outputs = options;
          with_outputs.execution = {.executor = &executor, .isa = isa};
          with_outputs.weights = got.weights.template view<4>();
          with_outputs.lse = got.lse.template view<3>();
          scaled_dot_product_attention(call.q.template view<4>(), k.read(), v.read(),
                                       got.y.template view<4>(), with_outputs);
          EXPECT_TRUE(same_bits(got, expected)) << name(isa) << " with " << threads;
          Tensor4<T> out(halved.shape());
          scaled_dot_product_attention(call.q.template view<4>(), k.read(), v.read(), out,
                                       with_outputs, halve_some);
          EXPECT_TRUE(same_bits(to_array(out), to_array(halved)))
              << name(isa) << " with " << threads << ", prob_mod";
        }
      }
    }
  }
}

/// A prompt prefilled in chunks that all take the tiled path.
TYPED_TEST(SdpaSameBitsTest, HoweverAPrefillIsCut) {
  using T = TypeParam;
  Random random(2);
  auto call = large<T>(random, 300, 300);
  call.options.causal = true;
  for (Isa isa : available_isas()) {
    const auto whole = run_library(call, {.isa = isa}).y;
    for (Index chunk : {64, 97, 150}) {
      for (Index begin = 0; begin < 300; begin += chunk) {
        const Index end = std::min<Index>(begin + chunk, 300);
        if (end - begin < 64) continue;  // may take the decode path
        const auto y = scaled_dot_product_attention(
            call.q.template view<4>().slice(2, begin, end), call.k.template view<4>(),
            call.v.template view<4>(),
            {.mask = causal(), .offset = query_offset(begin), .execution = {.isa = isa}});
        const auto expected = to_array(whole.template view<4>().slice(2, begin, end));
        EXPECT_TRUE(same_bits(to_array(y), expected)) << name(isa) << begin;
      }
    }
  }
}

/// Const inputs, one call per thread, each with its thread's workspace. For ThreadSanitizer.
TYPED_TEST(SdpaSameBitsTest, FromManyThreadsAtOnce) {
  using T = TypeParam;
  Random random(3);
  auto call = large<T>(random, 40, 90);
  call.options.causal = true;
  const SerialExecutor serial;
  for (Isa isa : available_isas()) {
    const auto expected = run_library(call, {.executor = &serial, .isa = isa});
    std::vector<int> same(8);
    std::vector<std::thread> threads;
    for (int& result : same) {
      threads.emplace_back([&] {
        for (int i = 0; i < 3; ++i) {
          result += same_bits(run_library(call, {.executor = &serial, .isa = isa}), expected);
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(same, std::vector<int>(8, 3)) << name(isa);
  }
}

TYPED_TEST(SdpaSameBitsTest, WithAWorkspaceUsedForOtherCallsBefore) {
  using T = TypeParam;
  Workspace workspace;
  for (std::uint64_t draw = 700; draw < 700 + attn_test::draws(30); ++draw) {
    Random random(draw);
    const AttentionDraw<T> call(random, 100000);
    SCOPED_TRACE(random.trace() + ": " + call.text());
    Workspace fresh;
    EXPECT_TRUE(same_bits(run_library(call, {.workspace = &workspace}),
                          run_library(call, {.workspace = &fresh})));
  }
}

}  // namespace
}  // namespace attn
