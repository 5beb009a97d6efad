// Attention on floats with MatmulPrecision high and medium: against double, same bits, NaN in
// masked keys, and what explain() says.
#include <cmath>

#include <gtest/gtest.h>

#include "attn/attention/explain.hpp"

#include "support/draws/attention_draw.hpp"
#include "support/isas.hpp"
#include "support/matmul_bound.hpp"
#include "support/thread_executor.hpp"
#include "support/tolerance.hpp"

namespace attn {
namespace {

using attn_test::Array;
using attn_test::AttentionDraw;
using attn_test::extended_isas;
using attn_test::Index;
using attn_test::Random;
using attn_test::ReferenceOptions;
using attn_test::run_library;
using attn_test::same_bits;
using attn_test::ThreadExecutor;

const MatmulPrecision kBelowHighest[] = {MatmulPrecision::high, MatmulPrecision::medium};

/// The largest length of a row.
double largest_row(const Array<float>& x) {
  const Index n = x.shape.back();
  double largest = 0;
  for (Index row = 0; row < x.size() / n; ++row) {
    double sum = 0;
    for (Index j = 0; j < n; ++j) {
      const double value = double{x.data[static_cast<std::size_t>(row * n + j)]};
      sum += value * value;
    }
    largest = std::max(largest, sum);
  }
  return std::sqrt(largest);
}

TEST(FloatParts, AnyOptionsWithinTheBoundOfDouble) {
  for (std::uint64_t draw = 0; draw < attn_test::draws(120); ++draw) {
    Random random(draw);
    AttentionDraw<float> call(random, 200000);
    if (random.chance(0.8)) call.options.qv = {};
    const auto precision = random.pick<MatmulPrecision>(
        {MatmulPrecision::high, MatmulPrecision::high, MatmulPrecision::medium});
    SCOPED_TRACE(random.trace() + ": " + call.text() + ", " + std::string(name(precision)));
    const auto exact = attn_test::reference_attention(call.q.as<double>(), call.k.as<double>(),
                                                      call.v.as<double>(), call.options);
    const auto dim = static_cast<double>(call.q.extent(3));
    const double scale = std::abs(call.options.scale.value_or(1 / std::sqrt(dim)));
    for (Isa isa : extended_isas()) {
      const Execution execution{.isa = isa, .matmul_precision = precision};
      const double share = attn_test::matmul_bound(execution.matmul_precision_used());
      // A score is off by at most `off`, so that weights have the factor e^(2 off); weights and
      // values are then rounded, and float has its own roundings.
      const double off = share * scale * largest_row(call.q) * largest_row(call.k);
      const double bound =
          (std::expm1(2 * off) + share + 1e-4) * max_abs(call.v) / (1 - call.options.dropout);
      const auto got = run_library(call, execution);
      ASSERT_EQ(attn_test::difference(got.y, exact.y, bound, isa), "");
      ASSERT_EQ(attn_test::difference(got.lse, exact.lse, off + 1e-4 * (1 + max_abs(call.q)), isa),
                "");
    }
  }
}

TEST(FloatParts, AttentionHasTheSameBitsForThreadsBatchAndPlace) {
  for (std::uint64_t draw = 0; draw < attn_test::draws(40); ++draw) {
    Random random(300 + draw);
    AttentionDraw<float> call(random, 200000);
    call.options.qv = {};
    SCOPED_TRACE(random.trace() + ": " + call.text());
    const SerialExecutor serial;
    const ThreadExecutor threads(3);
    const Index last = call.q.extent(0) - 1;
    for (Isa isa : extended_isas()) {
      for (MatmulPrecision precision : kBelowHighest) {
        const Execution alone{.executor = &serial, .isa = isa, .matmul_precision = precision};
        const auto expected = run_library(call, alone);
        const auto threaded =
            run_library(call, {.executor = &threads, .isa = isa, .matmul_precision = precision});
        ASSERT_TRUE(same_bits(threaded, expected)) << name(isa);
        if (alone.matmul_precision_used() == MatmulPrecision::highest) {
          ASSERT_TRUE(same_bits(run_library(call, {.executor = &serial, .isa = isa}), expected));
        }
        if (call.options.dropout > 0) continue;  // depends on the index of the batch row
        const auto row = run_library(call.with_batch({last}), alone);
        ASSERT_TRUE(same_bits(row.y, AttentionDraw<float>::pick_rows(expected.y, {last})));
      }
    }
  }
}

TEST(FloatParts, MaskedPoisonChangesNoBit) {
  Random random(11);
  AttentionDraw<float> call(random, 100);
  call.options = {};
  call.q = random.array<float>({1, 2, 40, 24});
  call.k = random.array<float>({1, 1, 700, 24});
  call.v = random.array<float>({1, 1, 700, 20});
  auto mask = random.bits({1, 1, 40, 700}, 0.9);
  for (Index i = 0; i < 40; ++i) mask(0, 0, i, 300) = mask(0, 0, i, 301) = i == 39 ? 1 : 0;
  call.options.masks.push_back({ReferenceOptions::Mask::Kind::keep, mask});
  AttentionDraw<float> poisoned = call;
  poisoned.k(0, 0, 300, 5) = poisoned.v(0, 0, 300, 6) = std::nanf("");
  poisoned.v(0, 0, 301, 3) = std::numeric_limits<float>::infinity();
  for (Isa isa : extended_isas()) {
    for (MatmulPrecision precision : kBelowHighest) {
      const Execution execution{.isa = isa, .matmul_precision = precision};
      const auto expected = run_library(call, execution), got = run_library(poisoned, execution);
      for (Index row = 0; row < 80; ++row) {
        for (Index n = 0; n < 20; ++n) {
          const auto at = static_cast<std::size_t>(row * 20 + n);
          if (row % 40 == 39) {
            EXPECT_TRUE(std::isnan(got.y.data[at])) << name(isa);
          } else {
            ASSERT_EQ(std::bit_cast<std::uint32_t>(got.y.data[at]),
                      std::bit_cast<std::uint32_t>(expected.y.data[at]))
                << name(isa) << ", " << row;
          }
        }
      }
    }
  }
}

TEST(FloatParts, AnInfiniteValueIsInfiniteInTheResult) {
  Tensor4<float> q({1, 1, 40, 8}), v({1, 1, 50, 20});
  v.fill(-3.7f);
  v(0, 0, 17, 4) = std::numeric_limits<float>::infinity();
  for (Isa isa : extended_isas()) {
    for (MatmulPrecision precision : kBelowHighest) {
      const auto y =
          scaled_dot_product_attention(q, Tensor4<float>({1, 1, 50, 8}), v,
                                       {.execution = {.isa = isa, .matmul_precision = precision}});
      for (Index i = 0; i < 40; ++i) {
        EXPECT_EQ(y(0, 0, i, 4), std::numeric_limits<float>::infinity()) << name(isa);
        EXPECT_NEAR(y(0, 0, i, 5), -3.7f, 3.7f * 0x1p-8f) << name(isa);
      }
    }
  }
}

TEST(FloatParts, ExplainSaysWhatRuns) {
  const Tensor4<float> q({1, 8, 64, 64}), one({1, 8, 1, 64});
  const Tensor4<bfloat16> small({1, 8, 64, 64});
  for (Isa isa : extended_isas()) {
    for (MatmulPrecision precision : kBelowHighest) {
      const Execution execution{.isa = isa, .matmul_precision = precision};
      const auto told = explain(q, q, q, {.execution = execution});
      EXPECT_EQ(told.matmul_precision, execution.matmul_precision_used());
      EXPECT_EQ(told.text().find(name(precision)) != std::string::npos,
                execution.matmul_precision_used() == precision)
          << told.text();
      EXPECT_EQ(explain(one, q, q, {.execution = execution}).matmul_precision,
                MatmulPrecision::highest);
      EXPECT_EQ(explain(small, small, small, {.execution = execution}).matmul_precision,
                MatmulPrecision::highest);
    }
  }
}

}  // namespace
}  // namespace attn
