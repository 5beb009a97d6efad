// exp, exp2_flush and erf: errors in units in the last place over their whole domain, and what becomes of the extremes.
#include <cmath>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

#include "simd/vec_ops.hpp"
#include "support/isas.hpp"
#include "support/random.hpp"

namespace attn {
namespace {

using attn_test::available_isas;
using attn_test::Random;

template <class T>
class MathTest : public ::testing::Test {};
using Types = ::testing::Types<float, double>;
TYPED_TEST_SUITE(MathTest, Types);

template <class T>
constexpr T kInf = std::numeric_limits<T>::infinity();
template <class T>
constexpr T kNaN = std::numeric_limits<T>::quiet_NaN();

/// |got - exact| in units of the last place of the T nearest to `exact` (subnormal spacing below the smallest normal).
template <class T>
double ulps(T got, long double exact) {
  const T nearest = std::abs(static_cast<T>(exact));
  const T above = std::nextafter(nearest, kInf<T>);
  const long double unit = static_cast<long double>(above) - static_cast<long double>(nearest);
  return static_cast<double>(std::abs(static_cast<long double>(got) - exact) / unit);
}

template <class T>
std::vector<T> apply(VecOp op, const std::vector<T>& x, Isa isa) {
  std::vector<T> y(x.size());
  VecOps<T>(isa).apply(op, static_cast<index_t>(x.size()), x.data(), x.data(), x.data(), y.data());
  return y;
}

/// Even steps over [least, most] and random numbers near 0.
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
  expect_within<T>(
      VecOp::exp2_flush, 1.1, sample<T>(is_float ? -126 : -1022, is_float ? 127 : 1023),
      [](long double x) { return std::exp2(x); }, 1.3);
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

TYPED_TEST(MathTest, ExpIsWithinTwoUlps) {
  using T = TypeParam;
  const bool is_float = sizeof(T) == 4;
  expect_within<T>(VecOp::exp, 2.0, sample<T>(is_float ? -87.3 : -708.3, is_float ? 88.7 : 709.7),
                   [](long double x) { return std::exp(x); });
}

TYPED_TEST(MathTest, ExpRoundsThroughTheSubnormals) {
  using T = TypeParam;
  const bool is_float = sizeof(T) == 4;
  expect_within<T>(VecOp::exp, 2.0,
                   sample<T>(is_float ? -103.9 : -745.1, is_float ? -87.3 : -708.3),
                   [](long double x) { return std::exp(x); });
}

TYPED_TEST(MathTest, ExpOfTheExtremes) {
  using T = TypeParam;
  for (Isa isa : available_isas()) {
    const auto y = apply<T>(VecOp::exp,
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

TYPED_TEST(MathTest, ErfIsWithinTwoUlps) {
  using T = TypeParam;
  expect_within<T>(VecOp::erf, 2.0, sample<T>(-6.5, 6.5),
                   [](long double x) { return std::erf(x); });
  expect_within<T>(VecOp::erf, 2.0, sample<T>(-1e-6, 1e-6),
                   [](long double x) { return std::erf(x); });
}

TYPED_TEST(MathTest, ErfOfTheExtremes) {
  using T = TypeParam;
  for (Isa isa : available_isas()) {
    const auto y = apply<T>(VecOp::erf, {kInf<T>, -kInf<T>, T{0}, T{100}, kNaN<T>}, isa);
    EXPECT_EQ(y[0], T{1}) << name(isa);
    EXPECT_EQ(y[1], T{-1}) << name(isa);
    EXPECT_EQ(y[2], T{0}) << name(isa);
    EXPECT_EQ(y[3], T{1}) << name(isa);
    EXPECT_TRUE(std::isnan(y[4])) << name(isa);
  }
}

}  // namespace
}  // namespace attn
