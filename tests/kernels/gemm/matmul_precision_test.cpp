// MatmulPrecision: gemm in bfloat16 parts against double, special values, equal bits.
#include <cmath>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

#include "attn/kernels/gemm/gemm.hpp"

#include "support/isas.hpp"
#include "support/matmul_bound.hpp"
#include "support/placed.hpp"
#include "support/references/reference.hpp"
#include "support/thread_executor.hpp"
#include "support/tolerance.hpp"

namespace attn {
namespace {

using attn_test::Array;
using attn_test::extended_isas;
using attn_test::Index;
using attn_test::Layout;
using attn_test::Placed;
using attn_test::Random;
using attn_test::same_bits;
using attn_test::ThreadExecutor;
using attn_test::to_array;

const MatmulPrecision kPrecisions[] = {MatmulPrecision::highest, MatmulPrecision::high,
                                       MatmulPrecision::medium};

/// A product with an epilogue.
struct PartsProduct {
  Index m, n, k;
  Array<float> a, b, c, bias, residual;  // an empty residual means c
  float alpha = 1, beta = 0;
  Activation activation = Activation::none;

  explicit PartsProduct(Random& random) {
    const std::vector<Index> sizes = {0, 1, 2, 3, 7, 15, 16, 17, 31, 33, 65, 130, 385, 400, 700};
    do {
      m = random.pick(sizes), n = random.pick(sizes), k = random.pick(sizes);
    } while (m * n * k > 300000);
    a = random.array<float>({m, k});
    b = random.array<float>({k, n});
    c = random.array<float>({m, n});
    if (random.chance(0.5)) bias = random.array<float>({n});
    if (random.chance(0.3)) alpha = static_cast<float>(random.normal());
    if (random.chance(0.5)) beta = random.chance(0.5) ? 1 : static_cast<float>(random.normal());
    if (random.chance(0.5)) residual = random.array<float>({m, n});
    if (random.chance(0.3)) activation = Activation::relu;
  }

  /// Empty if every element of `found` is within the bound of `precision`, plus k + 4 roundings of
  /// float, of the result in double.
  std::string complaint(const Array<float>& found, MatmulPrecision precision) const {
    constexpr double kRounding = 0x1p-23;
    for (Index i = 0; i < m; ++i) {
      for (Index j = 0; j < n; ++j) {
        double sum = 0, sizes = 0;
        for (Index p = 0; p < k; ++p) {
          const double product = double{a(i, p)} * double{b(p, j)};
          sum += product;
          sizes += std::abs(product);
        }
        double x = alpha * sum + (bias ? bias(j) : 0);
        if (activation == Activation::relu) x = std::max(x, 0.0);
        const double added = double{beta} * double{residual ? residual(i, j) : c(i, j)};
        const double scale = std::abs(alpha) * sizes + std::abs(x) + std::abs(added) +
                             (bias ? std::abs(bias(j)) : 0);
        const double bound = std::abs(alpha) * sizes * attn_test::matmul_bound(precision) +
                             static_cast<double>(k + 4) * kRounding * scale;
        const double off = std::abs(x + added - double{found(i, j)});
        if (!(off <= bound)) {
          return "(" + std::to_string(i) + ", " + std::to_string(j) + ") is off by " +
                 std::to_string(off) + ", allowed " + std::to_string(bound);
        }
      }
    }
    return "";
  }
};

TEST(MatmulPrecision, RandomProductsAreWithinTheBoundOfDouble) {
  const ThreadExecutor threads(3);
  for (std::uint64_t draw = 0; draw < attn_test::draws(60); ++draw) {
    Random random(draw);
    const PartsProduct p(random);
    const auto precision = random.pick<MatmulPrecision>(
        {MatmulPrecision::high, MatmulPrecision::high, MatmulPrecision::medium});
    SCOPED_TRACE(random.trace() + ": " + std::to_string(p.m) + " x " + std::to_string(p.n) + " x " +
                 std::to_string(p.k) + ", " + std::string(name(precision)));
    const Placed<float, 2> a(p.a, Layout<2>::any(random, false)),
        b(p.b, Layout<2>::any(random, false));
    const auto c_layout = Layout<2>::any(random, random.chance(0.8));
    Epilogue<float> epilogue{.alpha = p.alpha,
                             .bias = p.bias ? p.bias.view<1>() : TensorView1<const float>(),
                             .activation = p.activation,
                             .beta = p.beta};
    std::optional<Placed<float, 2>> residual;
    if (p.residual) {
      residual.emplace(p.residual, Layout<2>::any(random, random.chance(0.8)));
      epilogue.residual = residual->read();
    }
    for (Isa isa : extended_isas()) {
      Placed<float, 2> c(p.c, c_layout), packed_c(p.c, Layout<2>::contiguous());
      const Execution execution{.executor = draw % 2 == 0 ? &threads : nullptr,
                                .isa = isa,
                                .matmul_precision = precision};
      const MatmulPrecision used = execution.matmul_precision_used();
      gemm(a.read(), b.read(), c.view(), epilogue, execution);
      ASSERT_EQ(p.complaint(c.values(), used), "") << name(isa);
      ASSERT_TRUE(c.gaps_untouched());
      const PackedWeights<float> packed(b.read(), isa, precision);
      ASSERT_EQ(packed.precision(), used);
      ASSERT_EQ(packed.serves(execution), static_cast<bool>(packed));
      gemm(a.read(), packed, packed_c.view(), epilogue);
      ASSERT_EQ(p.complaint(packed_c.values(), used), "") << name(isa);
      if (used != MatmulPrecision::highest) {
        ASSERT_TRUE(same_bits(c.values(), packed_c.values())) << name(isa);
      }
    }
  }
}

TEST(MatmulPrecision, RunsAsTheNextMoreExactOneWhereItIsNotFaster) {
  Random random(1);
  const auto a = random.array<float>({40, 70}), b = random.array<float>({70, 33});
  for (Isa isa : extended_isas()) {
    EXPECT_EQ(precision_on(isa, MatmulPrecision::high),
              isa == Isa::amx ? MatmulPrecision::high : MatmulPrecision::highest);
    EXPECT_EQ(precision_on(isa, MatmulPrecision::medium),
              multiplies_pairs(isa) ? MatmulPrecision::medium : MatmulPrecision::highest);
    Tensor2<float> expected({40, 33});
    gemm(a.view<2>(), b.view<2>(), expected, {}, {.isa = isa});
    for (MatmulPrecision precision : kPrecisions) {
      const Execution execution{.isa = isa, .matmul_precision = precision};
      Tensor2<float> c({40, 33});
      gemm(a.view<2>(), b.view<2>(), c, {}, execution);
      EXPECT_EQ(same_bits(to_array(c), to_array(expected)),
                execution.matmul_precision_used() == MatmulPrecision::highest)
          << name(isa) << ", " << name(precision);
    }
  }
}

TEST(MatmulPrecision, DoubleIgnoresIt) {
  Random random(2);
  const auto a = random.array<double>({9, 20}), b = random.array<double>({20, 7});
  for (Isa isa : extended_isas()) {
    Tensor2<double> c({9, 7}), expected({9, 7});
    gemm(a.view<2>(), b.view<2>(), expected, {}, {.isa = isa});
    gemm(a.view<2>(), b.view<2>(), c, {},
         {.isa = isa, .matmul_precision = MatmulPrecision::medium});
    EXPECT_TRUE(same_bits(to_array(c), to_array(expected)));
    EXPECT_EQ(PackedWeights<double>(b.view<2>(), isa, MatmulPrecision::high).precision(),
              MatmulPrecision::highest);
  }
}

TEST(MatmulPrecision, ARowHasTheSameBitsAloneAndInABatch) {
  Random random(3);
  const ThreadExecutor threads(3);
  const auto a = random.array<float>({101, 300}), b = random.array<float>({300, 70});
  const TensorView2<const float> rows = a.view<2>();
  for (Isa isa : extended_isas()) {
    for (MatmulPrecision precision : kPrecisions) {
      const Execution execution{.isa = isa, .matmul_precision = precision};
      const PackedWeights<float> packed(b.view<2>(), isa, precision);
      Tensor2<float> all({101, 70});
      gemm(rows, b.view<2>(), all, {},
           {.executor = &threads, .isa = isa, .matmul_precision = precision});
      for (Index count : {1, 3, 16, 17}) {
        Tensor2<float> some({count, 70}), by_packed({count, 70});
        for (Index row : {0, 5, 84}) {
          const auto expected = to_array(all.slice(0, row, row + count));
          gemm(rows.slice(0, row, row + count), b.view<2>(), some, {}, execution);
          gemm(rows.slice(0, row, row + count), packed, by_packed);
          ASSERT_TRUE(same_bits(to_array(some), expected))
              << name(isa) << ", " << name(precision) << ", " << count << " rows from " << row;
          ASSERT_TRUE(same_bits(to_array(by_packed), expected)) << name(isa);
        }
      }
      Tensor3<float> batch({3, 101, 70});
      batched_gemm(rows.unsqueeze(0), b.view<2>().unsqueeze(0), batch, {}, execution);
      ASSERT_TRUE(same_bits(to_array(batch.view().select(0, 2)), to_array(all))) << name(isa);
    }
  }
}

/// Every pair of special values as a product of one term, and beside ordinary terms.
TEST(MatmulPrecision, SpecialValuesAreThoseOfFloat) {
  constexpr float kInf = std::numeric_limits<float>::infinity(),
                  kMax = std::numeric_limits<float>::max();
  const std::vector<float> values = {0.0f,     1.0f,        -1.0f,        3.1415927f, -0x1p-100f,
                                     1e30f,    kInf,        -kInf,        kMax,       -kMax,
                                     kMax / 3, 0x1.ffp127f, std::nanf("")};
  const auto count = static_cast<Index>(values.size());
  for (Index terms : {1, 40}) {
    Tensor2<float> a({count, terms}), b({terms, count}), c({count, count});
    for (Index i = 0; i < count; ++i) {
      a(i, 0) = b(0, i) = values[static_cast<std::size_t>(i)];
      for (Index p = 1; p < terms; ++p) a(i, p) = b(p, i) = 0.3f;
    }
    for (Isa isa : extended_isas()) {
      for (MatmulPrecision precision : kPrecisions) {
        gemm(a, b, c, {}, {.isa = isa, .matmul_precision = precision});
        for (Index i = 0; i < count; ++i) {
          for (Index j = 0; j < count; ++j) {
            const float product = a(i, 0) * b(0, j), others = 0.09f * static_cast<float>(terms - 1),
                        found = c(i, j);
            const std::string what = std::to_string(a(i, 0)) + " * " + std::to_string(b(0, j)) +
                                     " in " + std::string(name(precision)) + " on " +
                                     std::string(name(isa));
            if (std::isfinite(product)) {
              const float size = std::abs(product) + others;
              EXPECT_NEAR(found, product + others, 0x1.01p-7f * size + 1e-37f) << what;
            } else if (std::isfinite(a(i, 0)) && std::isfinite(b(0, j))) {
              EXPECT_FALSE(std::isfinite(found)) << what;  // high may have inf - inf
            } else {
              EXPECT_EQ(attn_test::distance(found, product), 0) << what << ": " << found;
            }
          }
        }
      }
    }
  }
}

/// docs/precision.md: numbers below 2^-126, tails among them, count as 0.
TEST(MatmulPrecision, DenormalsCountAsZeroWithTheBoundOfThePage) {
  Tensor2<float> a({1, 2}), b({2, 1}), c({1, 1});
  a(0, 0) = 0x1p-130f;
  a(0, 1) = 0x1.0102p-120f;
  b(0, 0) = b(1, 0) = 0x1p100f;
  const double exact = 0x1p-30 + 0x1.0102p-20;
  for (Isa isa : extended_isas()) {
    for (MatmulPrecision precision : kPrecisions) {
      const Execution execution{.isa = isa, .matmul_precision = precision};
      gemm(a, b, c, {}, execution);
      const double bound =
          attn_test::matmul_bound(execution.matmul_precision_used()) * exact +
          (execution.matmul_precision_used() == MatmulPrecision::highest ? 0x1p-23 * exact
                                                                         : 2 * 0x1p-126 * 0x1p100);
      EXPECT_NEAR(double{c(0, 0)}, exact, bound) << name(isa) << ", " << name(precision);
    }
  }
}

}  // namespace
}  // namespace attn
