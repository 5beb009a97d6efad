// exp2, exp, tanh, silu, gelu and log: errors in units in the last place over samples of their
// whole domain, and results at extremes. tests/slow tests every float.
#include <cmath>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

#include "simd/ulps.hpp"
#include "simd/vec_ops.hpp"
#include "support/isas.hpp"
#include "support/random.hpp"

namespace attn {
namespace {

using attn_test::available_isas;
using attn_test::Random;
using attn_test::UlpRuler;

template <class T>
class MathTest : public ::testing::Test {};
using Types = ::testing::Types<float, double>;
TYPED_TEST_SUITE(MathTest, Types);

template <class T>
std::vector<T> apply(VecOp op, const std::vector<T>& x, Isa isa) {
  std::vector<T> y(x.size());
  vec_ops<T>(isa).apply(op, static_cast<index_t>(x.size()), x.data(), x.data(), x.data(), y.data());
  return y;
}

/// Evenly spaced numbers of [least, most] and random numbers near 0.
template <class T>
std::vector<T> sample(double least, double most) {
  constexpr int kSteps = 100000;
  std::vector<T> x;
  for (int i = 0; i <= kSteps; ++i) {
    x.push_back(static_cast<T>(least + (most - least) * i / kSteps));
  }
  Random random(3);
  for (int i = 0; i < kSteps / 4; ++i) {
    const double near = random.normal() * std::exp2(random.normal());
    if (near >= least && near <= most) x.push_back(static_cast<T>(near));
  }
  return x;
}

template <class T, class Exact>
void expect_within(VecOp op, double bound, const std::vector<T>& x, Exact exact,
                   double bound_without_fma = 0) {
  const UlpRuler<T, long double> ulps;
  for (Isa isa : available_isas()) {
    const auto y = apply(op, x, isa);
    double most = 0;
    T where = 0;
    for (std::size_t i = 0; i < x.size(); ++i) {
      const double error = ulps(y[i], exact(static_cast<long double>(x[i])));
      if (!(error <= most)) most = error, where = x[i];
    }
    EXPECT_LE(most, isa == Isa::scalar ? std::max(bound, bound_without_fma) : bound)
        << "at " << where << " on " << name(isa);
  }
}

TYPED_TEST(MathTest, Exp2IsWithinItsBound) {
  using T = TypeParam;
  const bool is_float = sizeof(T) == 4;
  const auto exact = [](long double x) { return std::exp2(x); };
  expect_within<T>(VecOp::exp2_flush, 1.1,
                   sample<T>(is_float ? -126 : -1022, is_float ? 127 : 1023), exact, 1.3);
  expect_within<T>(VecOp::exp2, 1.1, sample<T>(is_float ? -151 : -1076, is_float ? 129 : 1025),
                   exact, 1.3);
}

TYPED_TEST(MathTest, Exp2FlushesWhatWouldBeSubnormal) {
  using T = TypeParam;
  const T least = sizeof(T) == 4 ? T(-126) : T(-1022);
  const std::vector<T> x = {-kInf<T>,  least - 1, least - 2,
                            least * 2, T(-1e30),  std::numeric_limits<T>::lowest()};
  for (Isa isa : available_isas()) {
    for (T y : apply(VecOp::exp2_flush, x, isa)) EXPECT_EQ(y, T{0}) << name(isa);
    const auto kept = apply<T>(VecOp::exp2_flush, {T{0}, least, T{-1}, T(-0.0)}, isa);
    EXPECT_EQ(kept, (std::vector<T>{T{1}, std::numeric_limits<T>::min(), T(0.5), T{1}}));
    EXPECT_TRUE(std::isnan(apply<T>(VecOp::exp2_flush, {kNaN<T>}, isa)[0])) << name(isa);
  }
}

TYPED_TEST(MathTest, ExpIsWithinItsBound) {
  using T = TypeParam;
  const bool is_float = sizeof(T) == 4;
  expect_within<T>(VecOp::exp, 1.5, sample<T>(is_float ? -87.3 : -708.3, is_float ? 88.7 : 709.7),
                   [](long double x) { return std::exp(x); });
}

TYPED_TEST(MathTest, ExpFlushIsWithinItsBound) {
  using T = TypeParam;
  const bool is_float = sizeof(T) == 4;
  expect_within<T>(
      VecOp::exp_flush, is_float ? 5.0 : 1.5,
      sample<T>(is_float ? -87.3 : -708.3, is_float ? 88 : 709),
      [](long double x) { return std::exp(x); }, 1.5);
}

TYPED_TEST(MathTest, ExpRoundsThroughTheSubnormals) {
  using T = TypeParam;
  const bool is_float = sizeof(T) == 4;
  expect_within<T>(VecOp::exp, 1.5,
                   sample<T>(is_float ? -103.9 : -745.1, is_float ? -87.3 : -708.3),
                   [](long double x) { return std::exp(x); });
}

TYPED_TEST(MathTest, Exp2AndExpOfTheExtremes) {
  using T = TypeParam;
  for (Isa isa : available_isas()) {
    for (VecOp op : {VecOp::exp2, VecOp::exp}) {
      const auto y = apply<T>(op,
                              {-kInf<T>, kInf<T>, kNaN<T>, T{0}, T(-0.0), T(1e4), T(-1e4),
                               std::numeric_limits<T>::max(), std::numeric_limits<T>::lowest()},
                              isa);
      EXPECT_EQ(y[0], T{0}) << name(isa);
      EXPECT_EQ(y[1], kInf<T>) << name(isa);
      EXPECT_TRUE(std::isnan(y[2])) << name(isa);
      EXPECT_EQ(y[3], T{1}) << name(isa);
      EXPECT_EQ(y[4], T{1}) << name(isa);
      EXPECT_EQ(y[5], kInf<T>) << name(isa);
      EXPECT_EQ(y[6], T{0}) << name(isa);
      EXPECT_EQ(y[7], kInf<T>) << name(isa);
      EXPECT_EQ(y[8], T{0}) << name(isa);
    }
  }
}

TYPED_TEST(MathTest, Exp2OfIntegersIsExact) {
  using T = TypeParam;
  using Limits = std::numeric_limits<T>;
  std::vector<T> x;
  for (int n = Limits::min_exponent - Limits::digits - 1; n <= Limits::max_exponent; ++n) {
    x.push_back(static_cast<T>(n));
  }
  for (Isa isa : available_isas()) {
    const auto y = apply<T>(VecOp::exp2, x, isa);
    for (std::size_t i = 0; i < x.size(); ++i) {
      EXPECT_EQ(y[i], std::ldexp(T{1}, static_cast<int>(x[i]))) << x[i] << " on " << name(isa);
    }
  }
}

TYPED_TEST(MathTest, TanhIsWithinItsBound) {
  using T = TypeParam;
  const auto exact = [](long double x) { return std::tanh(x); };
  expect_within<T>(VecOp::tanh, 1.5, sample<T>(-25, 25), exact);
  expect_within<T>(VecOp::tanh, 1.5, sample<T>(-1, 1), exact);
  expect_within<T>(VecOp::tanh, 1.5, sample<T>(-1e-6, 1e-6), exact);
  const double subnormal = 100 * static_cast<double>(std::numeric_limits<T>::denorm_min());
  expect_within<T>(VecOp::tanh, 1.5, sample<T>(-subnormal, subnormal), exact);
}

TYPED_TEST(MathTest, TanhOfTheExtremes) {
  using T = TypeParam;
  for (Isa isa : available_isas()) {
    const auto y =
        apply<T>(VecOp::tanh,
                 {kInf<T>, -kInf<T>, T{0}, T(-0.0), std::numeric_limits<T>::max(), kNaN<T>}, isa);
    EXPECT_EQ(y[0], T{1}) << name(isa);
    EXPECT_EQ(y[1], T{-1}) << name(isa);
    EXPECT_FALSE(y[2] != 0 || std::signbit(y[2])) << name(isa);
    EXPECT_EQ(y[3], T{0}) << name(isa);
    EXPECT_EQ(y[4], T{1}) << name(isa);
    EXPECT_TRUE(std::isnan(y[5])) << name(isa);
  }
}

TYPED_TEST(MathTest, SiluAndGeluAreWithinTheirBounds) {
  using T = TypeParam;
  const bool is_float = sizeof(T) == 4;
  // Down to where the results become 0, including subnormals.
  const double silu_zero = is_float ? -110 : -753, gelu_zero = is_float ? -14.6 : -39.3;
  expect_within<T>(VecOp::silu, 4, sample<T>(silu_zero, 100), attn_test::exact_silu);
  expect_within<T>(VecOp::silu, 4, sample<T>(-5, 5), attn_test::exact_silu);
  expect_within<T>(VecOp::gelu, 7, sample<T>(gelu_zero, 10), attn_test::exact_gelu);
  expect_within<T>(VecOp::gelu, 7, sample<T>(-3, 3), attn_test::exact_gelu);
  const double tiny = 100 * static_cast<double>(std::numeric_limits<T>::min());
  expect_within<T>(VecOp::silu, 4, sample<T>(-tiny, tiny), attn_test::exact_silu);
  expect_within<T>(VecOp::gelu, 7, sample<T>(-tiny, tiny), attn_test::exact_gelu);
}

TYPED_TEST(MathTest, SiluAndGeluOfTheExtremes) {
  using T = TypeParam;
  constexpr T kMax = std::numeric_limits<T>::max();
  for (Isa isa : available_isas()) {
    for (VecOp op : {VecOp::silu, VecOp::gelu}) {
      const auto y = apply<T>(
          op, {-kInf<T>, -kMax, T(-1e4), T{0}, T(-0.0), T(1e4), kMax, kInf<T>, kNaN<T>}, isa);
      for (std::size_t i = 0; i < 5; ++i) EXPECT_EQ(y[i], T{0}) << i << name(isa);
      EXPECT_EQ(y[5], T(1e4)) << name(isa);
      EXPECT_EQ(y[6], kMax) << name(isa);
      EXPECT_EQ(y[7], kInf<T>) << name(isa);
      EXPECT_TRUE(std::isnan(y[8])) << name(isa);
    }
  }
}

TYPED_TEST(MathTest, LogIsWithinItsBound) {
  using T = TypeParam;
  const auto exact = [](long double x) { return std::log(x); };
  expect_within<T>(VecOp::log, 0.9, sample<T>(1e-9, 4), exact);
  expect_within<T>(VecOp::log, 0.9, sample<T>(0.99, 1.01), exact);
  using Limits = std::numeric_limits<T>;
  expect_within<T>(VecOp::log, 0.9, sample<T>(1e30, static_cast<double>(Limits::max())), exact);
  // Every exponent, including subnormals.
  std::vector<T> x;
  for (T power = Limits::denorm_min(); power < kInf<T>; power *= 2) {
    for (T factor : {T(1), T(1.25), T(1.41421356), T(1.41421357), T(1.75), T(1.99999)}) {
      if (power * factor < kInf<T>) x.push_back(power * factor);
    }
  }
  expect_within<T>(VecOp::log, 0.9, x, exact);
}

TYPED_TEST(MathTest, LogOfTheExtremes) {
  using T = TypeParam;
  for (Isa isa : available_isas()) {
    const auto y = apply<T>(VecOp::log,
                            {T{0}, T(-0.0), T{1}, kInf<T>, T{-1}, -kInf<T>, kNaN<T>,
                             -std::numeric_limits<T>::denorm_min()},
                            isa);
    EXPECT_EQ(y[0], -kInf<T>) << name(isa);
    EXPECT_EQ(y[1], -kInf<T>) << name(isa);
    EXPECT_EQ(y[2], T{0}) << name(isa);
    EXPECT_EQ(y[3], kInf<T>) << name(isa);
    for (std::size_t i = 4; i < y.size(); ++i) EXPECT_TRUE(std::isnan(y[i])) << i << name(isa);
  }
}

}  // namespace
}  // namespace attn
