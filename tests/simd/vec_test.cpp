// Vec: every operation against plain arithmetic; partial loads at the edge of a page.
#include <cmath>
#include <functional>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

#include "simd/vec_ops.hpp"
#include "support/guarded.hpp"
#include "support/isas.hpp"
#include "support/random.hpp"

namespace attn {
namespace {

using attn_test::available_isas;
using attn_test::Index;
using attn_test::PageGuarded;
using attn_test::Random;

template <class T>
class VecTest : public ::testing::Test {};
using Types = ::testing::Types<float, double>;
TYPED_TEST_SUITE(VecTest, Types);

/// Equal, or both NaN.
template <class T>
bool same(T a, T b) {
  return a == b || (std::isnan(a) && std::isnan(b));
}

/// Random numbers, including zeros, infinities and NaN.
template <class T>
std::vector<T> numbers(Random& random, std::size_t n, bool special) {
  std::vector<T> x(n);
  const std::vector<T> specials = {T{0},     T{-0.0}, kInf<T>,
                                   -kInf<T>, kNaN<T>, T(0.5),
                                   T(-1.5),  T(2.5),  std::numeric_limits<T>::max()};
  for (T& value : x) {
    value = special && random.chance(0.3) ? random.pick(specials)
                                          : static_cast<T>(10 * random.normal());
  }
  return x;
}

template <class T>
using Plain = std::function<T(T, T, T)>;

template <class T>
void expect_like(VecOp op, const Plain<T>& plain, bool special = true) {
  constexpr std::size_t kN = 1003;
  Random random(static_cast<std::uint64_t>(op));
  const auto a = numbers<T>(random, kN, special), b = numbers<T>(random, kN, special),
             c = numbers<T>(random, kN, special);
  for (Isa isa : available_isas()) {
    std::vector<T> out(kN);
    vec_ops<T>(isa).apply(op, kN, a.data(), b.data(), c.data(), out.data());
    for (std::size_t i = 0; i < kN; ++i) {
      const T expected = plain(a[i], b[i], c[i]);
      ASSERT_TRUE(same(out[i], expected))
          << "op " << static_cast<int>(op) << " of " << a[i] << ", " << b[i] << ", " << c[i]
          << " on " << name(isa) << ": " << out[i] << ", expected " << expected;
    }
  }
}

TYPED_TEST(VecTest, ArithmeticIsThatOfScalars) {
  using T = TypeParam;
  expect_like<T>(VecOp::add, [](T a, T b, T) { return a + b; });
  expect_like<T>(VecOp::subtract, [](T a, T b, T) { return a - b; });
  expect_like<T>(VecOp::multiply, [](T a, T b, T) { return a * b; });
  expect_like<T>(VecOp::divide, [](T a, T b, T) { return a / b; });
  expect_like<T>(VecOp::sqrt, [](T a, T, T) { return std::sqrt(a); });
}

TYPED_TEST(VecTest, OfANaNMaxAndMinGiveTheSecondOperand) {
  using T = TypeParam;
  expect_like<T>(VecOp::max, [](T a, T b, T) { return a > b ? a : b; });
  expect_like<T>(VecOp::min, [](T a, T b, T) { return a < b ? a : b; });
}

TYPED_TEST(VecTest, LessIsFalseOfANaN) {
  using T = TypeParam;
  expect_like<T>(VecOp::select_less, [](T a, T b, T c) { return a < b ? a : c; });
}

TYPED_TEST(VecTest, RoundsHalvesToEven) {
  using T = TypeParam;
  expect_like<T>(
      VecOp::round, [](T a, T, T) { return std::nearbyint(a); }, false);
  std::vector<T> halves, out;
  for (int i = -1000; i <= 1000; ++i) halves.push_back(static_cast<T>(i) / T{2});
  out.resize(halves.size());
  for (Isa isa : available_isas()) {
    vec_ops<T>(isa).apply(VecOp::round, static_cast<index_t>(halves.size()), halves.data(),
                          halves.data(), halves.data(), out.data());
    for (std::size_t i = 0; i < out.size(); ++i) {
      ASSERT_EQ(out[i], std::nearbyint(halves[i])) << halves[i] << " on " << name(isa);
    }
  }
}

TYPED_TEST(VecTest, FmaRoundsOnceWhereTheSetHasIt) {
  using T = TypeParam;
  constexpr std::size_t kN = 999;
  Random random(77);
  const auto a = numbers<T>(random, kN, false), b = numbers<T>(random, kN, false),
             c = numbers<T>(random, kN, false);
  std::vector<T> out(kN);
  for (Isa isa : available_isas()) {
    for (const VecOp op : {VecOp::fma, VecOp::fnma}) {
      vec_ops<T>(isa).apply(op, kN, a.data(), b.data(), c.data(), out.data());
      for (std::size_t i = 0; i < kN; ++i) {
        const T x = op == VecOp::fma ? a[i] : -a[i];
        const T product = x * b[i];
        const bool twice = isa == Isa::scalar && out[i] == product + c[i];
        ASSERT_TRUE(twice || out[i] == std::fma(x, b[i], c[i])) << i << " on " << name(isa);
      }
    }
  }
}

TYPED_TEST(VecTest, Pow2IsExact) {
  using T = TypeParam;
  const int least = sizeof(T) == 4 ? -127 : -1023, most = -least;
  std::vector<T> n, out;
  for (int i = least; i <= most; ++i) n.push_back(static_cast<T>(i));
  out.resize(n.size());
  for (Isa isa : available_isas()) {
    vec_ops<T>(isa).apply(VecOp::pow2, static_cast<index_t>(n.size()), n.data(), n.data(), n.data(),
                          out.data());
    EXPECT_EQ(out[0], T{0}) << name(isa);
    for (std::size_t i = 1; i < n.size(); ++i) {
      ASSERT_EQ(out[i], std::ldexp(T{1}, least + static_cast<int>(i))) << n[i] << name(isa);
    }
  }
}

TYPED_TEST(VecTest, ExponentIsTheFloorOfLog2) {
  using T = TypeParam;
  using Limits = std::numeric_limits<T>;
  std::vector<T> x, out;
  for (T power = Limits::min(); power < kInf<T>; power *= 2) {
    x.push_back(power);
    x.push_back(power * T(1.5));
    x.push_back(power * (2 - Limits::epsilon()));
  }
  out.resize(x.size());
  for (Isa isa : available_isas()) {
    vec_ops<T>(isa).apply(VecOp::exponent, static_cast<index_t>(x.size()), x.data(), x.data(),
                          x.data(), out.data());
    for (std::size_t i = 0; i < x.size(); ++i) {
      ASSERT_EQ(out[i], std::ilogb(x[i])) << x[i] << " on " << name(isa);
    }
  }
}

TYPED_TEST(VecTest, PartialLoadsAndStoresTouchNothingElse) {
  using T = TypeParam;
  for (Isa isa : available_isas()) {
    const VecTable<T>& ops = vec_ops<T>(isa);
    const int lanes = ops.lanes;
    for (Index n = 0; n <= lanes; ++n) {
      // The first n elements before an inaccessible page.
      const PageGuarded<T> from(n);
      for (Index i = 0; i < n; ++i) from.data()[i] = static_cast<T>(i + 1);
      std::vector<T> to(static_cast<std::size_t>(lanes) + 1, T{-1});
      ops.copy_part(from.data(), n, to.data(), lanes);
      for (Index i = 0; i < lanes; ++i) {
        EXPECT_EQ(to[static_cast<std::size_t>(i)], i < n ? static_cast<T>(i + 1) : T{0});
      }
      EXPECT_EQ(to.back(), T{-1});

      const PageGuarded<T> short_to(n);
      ops.copy_part(to.data(), lanes, short_to.data(), n);
      for (Index i = 0; i < n; ++i) EXPECT_EQ(short_to.data()[i], static_cast<T>(i + 1));

      std::vector<T> kept(static_cast<std::size_t>(lanes), T{9});
      ops.copy_part(to.data(), lanes, kept.data(), n);
      for (Index i = n; i < lanes; ++i) EXPECT_EQ(kept[static_cast<std::size_t>(i)], T{9});
    }
    // A count larger than the number of lanes means all lanes.
    std::vector<T> x(static_cast<std::size_t>(lanes), T{3}), y(x.size());
    ops.copy_part(x.data(), lanes + 100, y.data(), lanes + 100);
    EXPECT_EQ(x, y);
  }
}

TYPED_TEST(VecTest, WholeVectorsAtAnyAddress) {
  using T = TypeParam;
  Random random(5);
  for (Isa isa : available_isas()) {
    const VecTable<T>& ops = vec_ops<T>(isa);
    const auto lanes = static_cast<std::size_t>(ops.lanes);
    for (std::size_t shift = 0; shift < lanes; ++shift) {
      const auto x = numbers<T>(random, 2 * lanes, false);
      std::vector<T> y(2 * lanes);
      ops.copy(x.data() + shift, y.data() + lanes - shift);
      T total = 0, most = -kInf<T>, magnitude = 0;
      for (std::size_t i = 0; i < lanes; ++i) {
        EXPECT_EQ(y[lanes - shift + i], x[shift + i]);
        total += x[shift + i];
        magnitude += std::abs(x[shift + i]);
        most = std::max(most, x[shift + i]);
      }
      EXPECT_NEAR(ops.sum(x.data() + shift), total,
                  8 * std::numeric_limits<T>::epsilon() * magnitude);
      EXPECT_EQ(ops.max_lane(x.data() + shift), most);
      ops.all(T{2.5}, y.data());
      for (std::size_t i = 0; i < lanes; ++i) EXPECT_EQ(y[i], T{2.5});
    }
  }
}

TEST(VecIntegers, ProductsOfLowHalvesHighHalvesAndXor) {
  constexpr std::size_t kN = 64;
  Random random(3);
  std::vector<std::uint64_t> a(kN), b(kN);
  std::vector<std::uint32_t> product(2 * kN), high(2 * kN), either(2 * kN);
  for (std::size_t i = 0; i < kN; ++i) {
    a[i] = static_cast<std::uint64_t>(random.integer(0, Index{1} << 62)) * 3;
    b[i] = i % 8 == 0 ? ~std::uint64_t{0}
                      : static_cast<std::uint64_t>(random.integer(0, Index{1} << 62)) * 3;
  }
  const auto number = [](const std::vector<std::uint32_t>& halves, std::size_t i) {
    return halves[2 * i] | std::uint64_t{halves[2 * i + 1]} << 32;
  };
  for (Isa isa : available_isas()) {
    vec_ops<std::uint64_t>(isa).apply(kN, a.data(), b.data(), product.data(), high.data(),
                                      either.data());
    for (std::size_t i = 0; i < kN; ++i) {
      EXPECT_EQ(number(product, i), (a[i] & 0xffffffff) * (b[i] & 0xffffffff)) << name(isa);
      EXPECT_EQ(number(high, i), a[i] >> 32) << name(isa);
      EXPECT_EQ(number(either, i), a[i] ^ b[i]) << name(isa);
    }
  }
}

}  // namespace
}  // namespace attn
