// Attention on pairs of bfloat16: against double, same bits, NaN in masked keys.
#include <cmath>

#include <gtest/gtest.h>

#include "attn/attention/explain.hpp"

#include "support/draws/attention_draw.hpp"
#include "support/isas.hpp"
#include "support/thread_executor.hpp"
#include "support/tolerance.hpp"

namespace attn {
namespace {

using attn_test::Array;
using attn_test::AttentionDraw;
using attn_test::extended_isas;
using attn_test::Index;
using attn_test::LibraryOptions;
using attn_test::Random;
using attn_test::ReferenceOptions;
using attn_test::same_bits;
using attn_test::ThreadExecutor;

/// Output and lse.
struct PairResult {
  Array<bfloat16> y;
  Array<float> lse;
};

PairResult run_pairs(const AttentionDraw<float>& call, const Execution& execution) {
  const auto [batch, heads, q_len, kv_len] = call.scores();
  PairResult result{Array<bfloat16>({batch, heads, q_len, call.v.extent(3)}),
                    Array<float>({batch, heads, q_len})};
  const auto q = call.q.as<bfloat16>(), k = call.k.as<bfloat16>(), v = call.v.as<bfloat16>();
  const LibraryOptions<float> library(call.options);
  AttentionOptions<float> options = library.get();
  options.lse = result.lse.view<3>();
  options.execution = execution;
  scaled_dot_product_attention(q.view<4>(), k.view<4>(), v.view<4>(), result.y.view<4>(), options);
  return result;
}

/// A draw of numbers that bfloat16 can store, without qv, which is float.
AttentionDraw<float> draw_pairs(Random& random) {
  AttentionDraw<float> call(random, 300000);
  call.options.qv = {};
  for (Array<float>* x : {&call.q, &call.k, &call.v}) *x = x->as<bfloat16>().as<float>();
  return call;
}

TEST(PairPath, AnyOptionsWithinTheRoundingOfWeights) {
  for (std::uint64_t draw = 0; draw < attn_test::draws(150); ++draw) {
    Random random(draw);
    const AttentionDraw<float> call = draw_pairs(random);
    SCOPED_TRACE(random.trace() + ": " + call.text());
    const auto exact = attn_test::reference_attention(call.q.as<double>(), call.k.as<double>(),
                                                      call.v.as<double>(), call.options);
    // Each weight is rounded by 2^-8, which is as much of the result; scores have a few float
    // roundings.
    const double bound = 0x1p-7 * max_abs(call.v) / (1 - call.options.dropout);
    for (Isa isa : extended_isas()) {
      const PairResult got = run_pairs(call, {.isa = isa});
      ASSERT_EQ(attn_test::difference(got.y.as<float>(), exact.y, bound, isa), "");
      ASSERT_EQ(attn_test::difference(got.lse, exact.lse, 1e-4 * (1 + max_abs(call.q)), isa), "");
    }
  }
}

TEST(PairPath, SameBitsForThreadsBatchAndPlace) {
  for (std::uint64_t draw = 0; draw < attn_test::draws(60); ++draw) {
    Random random(700 + draw);
    const AttentionDraw<float> call = draw_pairs(random);
    SCOPED_TRACE(random.trace() + ": " + call.text());
    const SerialExecutor serial;
    const Index batch = call.q.extent(0);
    for (Isa isa : extended_isas()) {
      const PairResult expected = run_pairs(call, {.executor = &serial, .isa = isa});
      const ThreadExecutor executor(3);
      const PairResult threaded = run_pairs(call, {.executor = &executor, .isa = isa});
      ASSERT_TRUE(same_bits(threaded.y, expected.y) && same_bits(threaded.lse, expected.lse));
      if (call.options.dropout > 0) continue;  // depends on the index of the batch row
      const auto alone = run_pairs(call.with_batch({batch - 1}), {.executor = &serial, .isa = isa});
      ASSERT_TRUE(same_bits(alone.y, AttentionDraw<float>::pick_rows(expected.y, {batch - 1})));
    }
  }
}

TEST(PairPath, RowsHaveTheBitsOfThoseInOtherTasks) {
  Random random(9);
  AttentionDraw<float> call(random, 100);
  call.options = {};
  call.options.causal = true;
  call.options.left = 300;
  call.q = random.array<float>({1, 2, 900, 40});
  call.k = random.array<float>({1, 1, 1300, 40});
  call.v = random.array<float>({1, 1, 1300, 24});
  const SerialExecutor serial;
  const ThreadExecutor threads(4);
  EXPECT_TRUE(same_bits(run_pairs(call, {.executor = &threads}).y,
                        run_pairs(call, {.executor = &serial}).y));
}

TEST(PairPath, MaskedPoisonChangesNoBit) {
  Random random(11);
  AttentionDraw<float> call(random, 100);
  call.options = {};
  call.q = random.array<float>({1, 2, 40, 24});
  call.k = random.array<float>({1, 1, 700, 24});
  call.v = random.array<float>({1, 1, 700, 20});
  call.options.causal = true;
  auto mask = random.bits({1, 1, 40, 700}, 0.9);
  for (Index i = 0; i < 40; ++i) mask(0, 0, i, 300) = 0;
  mask(0, 0, 39, 699) = 1;
  call.options.masks.push_back({ReferenceOptions::Mask::Kind::keep, mask});
  for (Isa isa : extended_isas()) {
    const PairResult expected = run_pairs(call, {.isa = isa});
    AttentionDraw<float> poisoned = call;
    poisoned.k(0, 0, 300, 5) = poisoned.v(0, 0, 300, 6) = std::nanf("");
    poisoned.v(0, 0, 301, 3) = std::numeric_limits<float>::infinity();  // kept for nine of ten rows
    poisoned.v(0, 0, 699, 7) = std::nanf("");                           // kept for the last row
    const PairResult got = run_pairs(poisoned, {.isa = isa});
    for (Index row = 0; row < 80; ++row) {
      const Index i = row % 40;
      for (Index n = 0; n < 20; ++n) {
        const auto at = static_cast<std::size_t>(row * 20 + n);
        const bool sees = (n == 3 && mask(0, 0, i, 301) != 0) || (n == 7 && i == 39);
        if (sees) {
          EXPECT_FALSE(std::isfinite(static_cast<float>(got.y.data[at]))) << name(isa);
        } else {
          ASSERT_EQ(got.y.data[at].bits(), expected.y.data[at].bits()) << name(isa) << " " << row;
        }
      }
    }
  }
}

TEST(PairPath, ExplainSaysItsTiles) {
  const Tensor4<bfloat16> q({1, 8, 64, 64});
  for (Isa isa : extended_isas()) {
    const auto told = explain(q, q, q, {.execution = {.isa = isa}});
    EXPECT_EQ(told.product_queries == 32, multiplies_pairs(isa)) << name(isa);
  }
}

}  // namespace
}  // namespace attn
