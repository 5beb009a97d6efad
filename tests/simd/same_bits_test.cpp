// AVX2 and AVX-512 give the same bits, as simd/math.inc promises for sets with FMA.
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>
#include <vector>

#include <gtest/gtest.h>

#include "simd/vec_ops.hpp"
#include "support/random.hpp"

namespace attn {
namespace {

template <class T>
using Bits = std::conditional_t<sizeof(T) == 4, std::uint32_t, std::uint64_t>;

/// Numbers of every sign and exponent, and as many from [-16, 16]; including NaN, infinities and
/// subnormals.
template <class T>
std::vector<T> arguments() {
  attn_test::Random random(11);
  const auto half = [&] { return static_cast<std::uint64_t>(random.uniform() * 0x1p32); };
  std::vector<T> x;
  for (int i = 0; i < 200000; ++i) {
    x.push_back(std::bit_cast<T>(static_cast<Bits<T>>(half() << 32 | half())));
    x.push_back(static_cast<T>(32 * random.uniform() - 16));
  }
  return x;
}

template <class T>
class SameBitsTest : public ::testing::Test {};
using Types = ::testing::Types<float, double>;
TYPED_TEST_SUITE(SameBitsTest, Types);

template <class T>
void expect_same_bits(VecOp op, const char* name, T least, T most) {
  std::vector<T> x;
  for (T value : arguments<T>()) {
    if (!(value < least || value > most)) x.push_back(value);
  }
  const auto n = static_cast<index_t>(x.size());
  std::vector<T> avx2(x.size()), avx512(x.size());
  vec_ops<T>(Isa::avx2).apply(op, n, x.data(), x.data(), x.data(), avx2.data());
  vec_ops<T>(Isa::avx512).apply(op, n, x.data(), x.data(), x.data(), avx512.data());
  for (std::size_t i = 0; i < x.size(); ++i) {
    if (std::isnan(avx2[i]) && std::isnan(avx512[i])) continue;
    ASSERT_EQ(std::bit_cast<Bits<T>>(avx2[i]), std::bit_cast<Bits<T>>(avx512[i]))
        << name << "(" << x[i] << "): " << avx2[i] << " and " << avx512[i];
  }
}

TYPED_TEST(SameBitsTest, OfAvx2AndAvx512) {
  if (!is_available(Isa::avx2) || !is_available(Isa::avx512)) {
    GTEST_SKIP() << "needs a machine with AVX2 and AVX-512, or emulation";
  }
  using T = TypeParam;
  constexpr bool kFloat = sizeof(T) == 4;
  constexpr T kInf = std::numeric_limits<T>::infinity();
  expect_same_bits<T>(VecOp::round, "round", -kInf, kInf);
  expect_same_bits<T>(VecOp::sqrt, "sqrt", -kInf, kInf);
  expect_same_bits<T>(VecOp::exp2, "exp2", -kInf, kInf);
  expect_same_bits<T>(VecOp::exp, "exp", -kInf, kInf);
  expect_same_bits<T>(VecOp::silu, "silu", -kInf, kInf);
  expect_same_bits<T>(VecOp::gelu, "gelu", -kInf, kInf);
  expect_same_bits<T>(VecOp::tanh, "tanh", -kInf, kInf);
  expect_same_bits<T>(VecOp::log, "log", -kInf, kInf);
  expect_same_bits<T>(VecOp::exp2_flush, "exp2_flush", -kInf, kFloat ? 127 : 1023);
  expect_same_bits<T>(VecOp::exp_flush, "exp_flush", -kInf, kFloat ? 88 : 709);
  // Numbers only: the bits of a NaN are not promised.
  std::vector<T> normal;
  for (T value : arguments<T>()) {
    if (std::isnormal(value) && value > 0) normal.push_back(value);
  }
  std::vector<T> exponent(normal.size());
  vec_ops<T>(Isa::avx512)
      .apply(VecOp::exponent, static_cast<index_t>(normal.size()), normal.data(), normal.data(),
             normal.data(), exponent.data());
  for (std::size_t i = 0; i < normal.size(); ++i) {
    ASSERT_EQ(exponent[i], static_cast<T>(std::ilogb(normal[i]))) << normal[i];
  }
}

}  // namespace
}  // namespace attn
