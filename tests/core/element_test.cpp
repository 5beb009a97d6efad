// Elements: all 65,536 values of each 16-bit float, rounding, limits, names and sizes.
#include "attn/core/element.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <sstream>

#include <gtest/gtest.h>

#include "attn/core/tensor.hpp"

namespace attn {
namespace {

TEST(DType, NamesLeadBack) {
  for (const auto& row : detail::kDTypes) {
    EXPECT_EQ(name(row.dtype), row.name);
    EXPECT_EQ(element_size(row.dtype), row.size);
    EXPECT_EQ(dtype_from_name(row.name), row.dtype);
  }
  EXPECT_EQ(dtype_from_name("f32"), std::nullopt);
  EXPECT_EQ(dtype_from_name(""), std::nullopt);
  EXPECT_EQ(dtype_from_name("F4"), std::nullopt);
}

TEST(DType, CounterpartsInCpp) {
  static_assert(dtype_of<float>() == DType::F32 && dtype_of<double>() == DType::F64);
  static_assert(dtype_of<float16>() == DType::F16 && dtype_of<bfloat16>() == DType::BF16);
  static_assert(dtype_of<bool>() == DType::BOOL);
  static_assert(dtype_of<std::int8_t>() == DType::I8 && dtype_of<std::uint8_t>() == DType::U8);
  static_assert(dtype_of<std::int16_t>() == DType::I16 && dtype_of<std::uint16_t>() == DType::U16);
  static_assert(dtype_of<std::int32_t>() == DType::I32 && dtype_of<std::uint32_t>() == DType::U32);
  static_assert(dtype_of<std::int64_t>() == DType::I64 && dtype_of<std::uint64_t>() == DType::U64);
  static_assert(dtype_of<long long>() == DType::I64);  // not the same type as int64_t everywhere
  static_assert(!TensorElement<char> && !TensorElement<wchar_t> && !TensorElement<long double>);
}

// The value of the bits by IEEE 754, in arithmetic instead of bit operations.
double meaning(unsigned bits, int exponent_bits, int mantissa_bits) {
  const int mantissa = static_cast<int>(bits & ((1u << mantissa_bits) - 1));
  const int exponent = static_cast<int>(bits >> mantissa_bits & ((1u << exponent_bits) - 1));
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const double sign = bits >> 15 ? -1 : 1;
  if (exponent == (1 << exponent_bits) - 1) {
    return mantissa == 0 ? sign * std::numeric_limits<double>::infinity()
                         : std::numeric_limits<double>::quiet_NaN();
  }
  if (exponent == 0) return sign * std::ldexp(mantissa, 1 - bias - mantissa_bits);
  return sign * std::ldexp(mantissa + (1 << mantissa_bits), exponent - bias - mantissa_bits);
}

template <class Stored>
class Float16Test : public testing::Test {};
using Float16Types = testing::Types<float16, bfloat16>;
TYPED_TEST_SUITE(Float16Test, Float16Types);

template <class T>
constexpr int kMantissaBits = std::numeric_limits<T>::digits - 1;

TYPED_TEST(Float16Test, EveryValueWidensExactlyAndComesBack) {
  using T = TypeParam;
  constexpr int kMantissa = kMantissaBits<T>;
  for (unsigned bits = 0; bits < 65536; ++bits) {
    const T narrow = T::from_bits(static_cast<std::uint16_t>(bits));
    const float value = narrow;
    const double expected = meaning(bits, 15 - kMantissa, kMantissa);
    if (std::isnan(expected)) {
      // Sign and payload are kept, aligned at the payload's highest bit.
      const auto wide = std::bit_cast<std::uint32_t>(value);
      const unsigned mantissa = bits & ((1u << kMantissa) - 1);
      ASSERT_TRUE(std::isnan(value)) << bits;
      ASSERT_EQ(wide >> 31, bits >> 15) << bits;
      ASSERT_EQ(wide & 0x7FFFFFu, mantissa << (23 - kMantissa)) << bits;
      ASSERT_EQ(T(value).bits(), bits | 1u << (kMantissa - 1)) << bits;  // quiet
      ASSERT_TRUE(std::isnan(float(T(std::numeric_limits<double>::quiet_NaN()))));
    } else {
      ASSERT_EQ(static_cast<double>(value), expected) << bits;
      ASSERT_EQ(std::signbit(value), std::signbit(expected)) << bits;
      ASSERT_EQ(T(value).bits(), bits);
      ASSERT_EQ(T(static_cast<double>(value)).bits(), bits);
    }
  }
}

// Midway between each value and the next, and slightly to either side, as float and as double.
TYPED_TEST(Float16Test, RoundsToNearestTiesToEven) {
  using T = TypeParam;
  const unsigned infinity = std::numeric_limits<T>::infinity().bits();
  for (unsigned bits = 0; bits < infinity; ++bits) {
    const double low = meaning(bits, 15 - kMantissaBits<T>, kMantissaBits<T>);
    // As if exponents were unbounded: a number that rounds to the value after the largest becomes
    // infinite.
    const double step = std::ldexp(
        1.0, std::max(std::ilogb(low > 0 ? low : 1e-99), std::numeric_limits<T>::min_exponent - 1) -
                 kMantissaBits<T>);
    const double middle = low + step / 2, bit = std::ldexp(step, -30);
    for (double sign : {1.0, -1.0}) {
      const unsigned sign_bit = sign < 0 ? 0x8000u : 0;
      ASSERT_EQ(T(sign * middle).bits(), sign_bit | (bits + bits % 2)) << bits;
      ASSERT_EQ(T(sign * (middle - bit)).bits(), sign_bit | bits) << bits;
      ASSERT_EQ(T(sign * (middle + bit)).bits(), sign_bit | (bits + 1)) << bits;
      const float tie = static_cast<float>(sign * middle);
      if (static_cast<double>(tie) != sign * middle) continue;  // below the smallest float
      ASSERT_EQ(T(tie).bits(), sign_bit | (bits + bits % 2)) << bits;
      ASSERT_EQ(T(std::nextafter(tie, 0.0f)).bits(), sign_bit | bits) << bits;
      ASSERT_EQ(T(std::nextafter(tie, tie * 2)).bits(), sign_bit | (bits + 1)) << bits;
    }
  }
}

TYPED_TEST(Float16Test, Limits) {
  using T = TypeParam;
  using Limits = std::numeric_limits<T>;
  const auto successor = [](T x) { return T::from_bits(static_cast<std::uint16_t>(x.bits() + 1)); };
  EXPECT_TRUE(Limits::is_specialized && Limits::is_iec559 && Limits::has_infinity);
  EXPECT_EQ(Limits::epsilon(), successor(T(1)) - 1.0f);
  EXPECT_EQ(Limits::epsilon(), std::ldexp(1.0f, 1 - Limits::digits));
  EXPECT_EQ(Limits::min(), std::ldexp(1.0f, Limits::min_exponent - 1));
  EXPECT_EQ(static_cast<double>(Limits::max()),
            std::ldexp(2.0 - Limits::epsilon(), Limits::max_exponent - 1));
  EXPECT_TRUE(std::isinf(float(successor(Limits::max()))));
  EXPECT_EQ(Limits::lowest(), -float(Limits::max()));
  EXPECT_TRUE(std::isnan(float(Limits::quiet_NaN())) && std::isnan(float(Limits::signaling_NaN())));
  EXPECT_EQ(Limits::denorm_min(), std::ldexp(1.0f, Limits::min_exponent - Limits::digits));
  EXPECT_EQ(Limits::max_exponent10, int(std::log10(float(Limits::max()))));
  EXPECT_EQ(Limits::min_exponent10, int(std::log10(float(Limits::min()))));
  EXPECT_EQ(Limits::digits10, int((Limits::digits - 1) * std::log10(2)));
  EXPECT_EQ(Limits::max_digits10, int(std::ceil(Limits::digits * std::log10(2) + 1)));
}

TYPED_TEST(Float16Test, ComputesInFloatInTensorsAndPrints) {
  using T = TypeParam;
  Tensor2<T> x({2, 2}, {T(1), T(-2.5f), T(3), T(4)});
  static_assert(std::same_as<decltype(x(0, 0) + x(0, 1)), float>);
  x(0, 0) = T(x(0, 1) * x(1, 0) + 1);
  EXPECT_EQ(x(0, 0), -6.5f);
  EXPECT_LT(x(0, 0), x(0, 1));
  std::ostringstream text;
  text << x(0, 0) << ' ' << Tensor2<T>(x.view().transpose(0, 1))(0, 1);
  EXPECT_EQ(text.str(), "-6.5 3");
  EXPECT_EQ(Tensor1<T>({1})(0), 0.0f);
}

TEST(Elements, WorkAtCompileTime) {
  static_assert(float16::from_bits(0x3C00) == 1.0f && float16::from_bits(0x7BFF) == 65504.0f);
  static_assert(float16(0x1p-24f).bits() == 1 && bfloat16(1.0).bits() == 0x3F80);
  static_assert(float16(65520.0f).bits() == 0x7C00 && float16(2049).bits() == float16(2048).bits());
}

TEST(Elements, AccumulateWider) {
  static_assert(std::same_as<Accumulator<float16>, float>);
  static_assert(std::same_as<Accumulator<bfloat16>, float>);
  static_assert(std::same_as<Accumulator<std::int8_t>, std::int32_t>);
  static_assert(std::same_as<Accumulator<float>, float>);
  static_assert(std::same_as<Accumulator<double>, double>);
}

}  // namespace
}  // namespace attn
