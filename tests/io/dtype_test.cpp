// Element types: names, sizes, C++ counterparts, and all 65,536 values of each 16-bit float.
#include "attn/io/dtype.hpp"

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

#include <gtest/gtest.h>

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
  static_assert(dtype_of<bool>() == DType::BOOL);
  static_assert(dtype_of<std::int8_t>() == DType::I8 && dtype_of<std::uint8_t>() == DType::U8);
  static_assert(dtype_of<std::int16_t>() == DType::I16 && dtype_of<std::uint16_t>() == DType::U16);
  static_assert(dtype_of<std::int32_t>() == DType::I32 && dtype_of<std::uint32_t>() == DType::U32);
  static_assert(dtype_of<std::int64_t>() == DType::I64 && dtype_of<std::uint64_t>() == DType::U64);
  static_assert(dtype_of<long long>() == DType::I64);  // not the same type as int64_t everywhere
  static_assert(!TensorElement<char> && !TensorElement<wchar_t> && !TensorElement<long double>);
}

// What the bits mean by IEEE 754, in arithmetic instead of bit tricks.
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
void check_all(int exponent_bits, int mantissa_bits) {
  for (unsigned bits = 0; bits < 65536; ++bits) {
    const float value = widen(Stored{static_cast<std::uint16_t>(bits)});
    const double expected = meaning(bits, exponent_bits, mantissa_bits);
    if (std::isnan(expected)) {
      // Sign and payload stay; the payload's highest bit stays the highest.
      const auto wide = std::bit_cast<std::uint32_t>(value);
      const unsigned mantissa = bits & ((1u << mantissa_bits) - 1);
      ASSERT_TRUE(std::isnan(value)) << bits;
      ASSERT_EQ(wide >> 31, bits >> 15) << bits;
      ASSERT_EQ(wide & 0x7FFFFFu, mantissa << (23 - mantissa_bits)) << bits;
    } else {
      ASSERT_EQ(static_cast<double>(value), expected) << bits;
      ASSERT_EQ(std::signbit(value), std::signbit(expected)) << bits;
    }
  }
}

TEST(DType, EveryHalfWidensExactly) { check_all<Half>(5, 10); }

TEST(DType, EveryBFloat16WidensExactly) { check_all<BFloat16>(8, 7); }

TEST(DType, WideningWorksAtCompileTime) {
  static_assert(widen(Half{0x3C00}) == 1.0f && widen(Half{0xC000}) == -2.0f);
  static_assert(widen(Half{0x0001}) == 0x1p-24f && widen(Half{0x7BFF}) == 65504.0f);
  static_assert(widen(BFloat16{0x3F80}) == 1.0f);
}

}  // namespace
}  // namespace attn
