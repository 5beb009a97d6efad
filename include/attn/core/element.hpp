// Element types: float16, bfloat16, their accumulators, and names of types in files.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <bit>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <string_view>
#include <type_traits>

#include "attn/core/config.hpp"

ATTN_NAMESPACE_BEGIN

namespace detail {

/// Rounds to odd: returns the float next to x towards zero, with its last bit set unless x is a
/// float. Rounding this again to fewer bits gives the result of rounding x once. Source: Boldo and
/// Melquiond, "When double rounding is odd" (2005).
constexpr float round_to_odd(double x) {
  const float nearest = static_cast<float>(x);
  const double back = static_cast<double>(nearest);
  if (back == x || x != x) return nearest;
  auto bits = std::bit_cast<std::uint32_t>(nearest);
  const bool is_farther = x < 0 ? back < x : back > x;
  if (is_farther) --bits;
  return std::bit_cast<float>(bits | 1);
}

/// Exact for every bit pattern: subnormals, infinities, signs and NaN payloads.
constexpr float widen_float16(std::uint16_t half) {
  const std::uint32_t sign = (half & 0x8000u) << 16;
  const std::uint32_t exponent = (half >> 10) & 0x1Fu;
  const std::uint32_t mantissa = half & 0x3FFu;
  std::uint32_t magnitude;
  if (exponent == 0) {
    // Zero or subnormal: mantissa * 2^-24, which is a normal float.
    magnitude = std::bit_cast<std::uint32_t>(static_cast<float>(mantissa) * 0x1p-24f);
  } else if (exponent == 31) {
    magnitude = 0x7F800000u | mantissa << 13;
  } else {
    magnitude = (exponent + (127 - 15)) << 23 | mantissa << 13;
  }
  return std::bit_cast<float>(sign | magnitude);
}

/// Rounds to nearest, ties to even; a NaN becomes quiet and keeps its upper payload, as in F16C.
constexpr std::uint16_t narrow_to_float16(float x) {
  const auto bits = std::bit_cast<std::uint32_t>(x);
  const std::uint32_t sign = bits >> 16 & 0x8000u, magnitude = bits & 0x7FFFFFFFu;
  std::uint32_t half;
  if (magnitude > 0x7F800000u) {
    half = 0x7E00u | (magnitude >> 13 & 0x3FFu);
  } else if (magnitude >= 0x477FF000u) {  // 65520, halfway to 2^16
    half = 0x7C00u;
  } else if (magnitude < 0x38800000u) {  // below 2^-14: multiples of 2^-24, the last bit of 0.5f
    const float sum = std::bit_cast<float>(magnitude) + 0.5f;
    half = std::bit_cast<std::uint32_t>(sum) - std::bit_cast<std::uint32_t>(0.5f);
  } else {
    half = (magnitude - (112u << 23) + 0xFFFu + (magnitude >> 13 & 1u)) >> 13;
  }
  return static_cast<std::uint16_t>(sign | half);
}

/// Rounds to nearest, ties to even; a NaN becomes quiet.
constexpr std::uint16_t narrow_to_bfloat16(float x) {
  const auto bits = std::bit_cast<std::uint32_t>(x);
  if (x != x) return static_cast<std::uint16_t>(bits >> 16 | 0x40u);
  return static_cast<std::uint16_t>((bits + 0x7FFFu + (bits >> 16 & 1u)) >> 16);
}

}  // namespace detail

/// IEEE 754 binary16: 11 bits of precision, largest value 65504. A storage type: arithmetic
/// converts to float, exactly; conversion back is explicit, `float16(x)`, and rounds once, to
/// nearest even.
class float16 {
 public:
  float16() = default;
  constexpr explicit float16(float x) : bits_(detail::narrow_to_float16(x)) {}
  constexpr explicit float16(double x) : float16(detail::round_to_odd(x)) {}
  template <std::integral I>
  constexpr explicit float16(I x) : float16(static_cast<double>(x)) {}
  static constexpr float16 from_bits(std::uint16_t bits) {
    float16 x{};
    x.bits_ = bits;
    return x;
  }

  constexpr operator float() const { return detail::widen_float16(bits_); }
  constexpr std::uint16_t bits() const { return bits_; }

 private:
  std::uint16_t bits_;
};

/// The upper half of a float: 8 bits of precision, the range of float. A storage type like float16.
class bfloat16 {
 public:
  bfloat16() = default;
  constexpr explicit bfloat16(float x) : bits_(detail::narrow_to_bfloat16(x)) {}
  constexpr explicit bfloat16(double x) : bfloat16(detail::round_to_odd(x)) {}
  template <std::integral I>
  constexpr explicit bfloat16(I x) : bfloat16(static_cast<double>(x)) {}
  static constexpr bfloat16 from_bits(std::uint16_t bits) {
    bfloat16 x{};
    x.bits_ = bits;
    return x;
  }

  constexpr operator float() const { return std::bit_cast<float>(std::uint32_t{bits_} << 16); }
  constexpr std::uint16_t bits() const { return bits_; }

 private:
  std::uint16_t bits_;
};

static_assert(std::is_trivially_copyable_v<float16> && std::is_trivially_copyable_v<bfloat16>);

/// 16-bit floating-point types.
template <class T>
concept Float16Element = std::same_as<T, float16> || std::same_as<T, bfloat16>;

/// Integers of 8 to 64 bits, signed or unsigned; excludes character types and bool.
template <class T>
concept IntegerElement =
    std::integral<T> && sizeof(T) <= 8 && !std::same_as<T, bool> && !std::same_as<T, char> &&
    !std::same_as<T, wchar_t> && !std::same_as<T, char8_t> && !std::same_as<T, char16_t> &&
    !std::same_as<T, char32_t>;

/// Element types that files may hold.
template <class T>
concept TensorElement = std::same_as<T, float> || std::same_as<T, double> || Float16Element<T> ||
                        std::same_as<T, bool> || IntegerElement<T>;

namespace detail {

/// For overloads that catch types that a constraint refuses, so that the error is one line.
template <class T>
void assert_tensor_element() {
  // named, because clang would otherwise print why it is not satisfied
  constexpr bool is_element = TensorElement<T>;
  static_assert(is_element,
                "tensors in files have elements of float, double, bfloat16, float16, bool or an "
                "integer of 8 to 64 bits");
}

template <class T>
struct AccumulatorOf {
  using type = T;
};
template <Float16Element T>
struct AccumulatorOf<T> {
  using type = float;
};
template <>
struct AccumulatorOf<std::int8_t> {
  using type = std::int32_t;
};

}  // namespace detail

/// The type in which sums of T are kept: float for 16-bit floats, std::int32_t for std::int8_t,
/// otherwise T.
template <class T>
using Accumulator = typename detail::AccumulatorOf<T>::type;

/// Spelled as in safetensors files. Ordered as in the reference implementation, which lays out
/// tensors by descending type: wide elements first, so that all are aligned. Types below one byte
/// (F4, F6) are not supported here.
enum class DType : std::uint8_t {
  BOOL,
  U8,
  I8,
  F8_E5M2,
  F8_E4M3,
  F8_E8M0,
  I16,
  U16,
  F16,   ///< float16
  BF16,  ///< bfloat16
  I32,
  U32,
  F32,
  C64,  ///< two F32
  F64,
  I64,
  U64,
};

namespace detail {

struct DTypeRow {
  DType dtype;
  std::string_view name;
  std::size_t size;
};

/// In the order of the enumeration.
inline constexpr DTypeRow kDTypes[] = {
    {DType::BOOL, "BOOL", 1},       {DType::U8, "U8", 1},           {DType::I8, "I8", 1},
    {DType::F8_E5M2, "F8_E5M2", 1}, {DType::F8_E4M3, "F8_E4M3", 1}, {DType::F8_E8M0, "F8_E8M0", 1},
    {DType::I16, "I16", 2},         {DType::U16, "U16", 2},         {DType::F16, "F16", 2},
    {DType::BF16, "BF16", 2},       {DType::I32, "I32", 4},         {DType::U32, "U32", 4},
    {DType::F32, "F32", 4},         {DType::C64, "C64", 8},         {DType::F64, "F64", 8},
    {DType::I64, "I64", 8},         {DType::U64, "U64", 8},
};

}  // namespace detail

constexpr std::string_view name(DType dtype) {
  return detail::kDTypes[static_cast<std::size_t>(dtype)].name;
}

/// Bytes per element.
constexpr std::size_t element_size(DType dtype) {
  return detail::kDTypes[static_cast<std::size_t>(dtype)].size;
}

/// Empty for an unknown name. Names are upper case.
constexpr std::optional<DType> dtype_from_name(std::string_view text) {
  for (const detail::DTypeRow& row : detail::kDTypes) {
    if (row.name == text) return row.dtype;
  }
  return std::nullopt;
}

/// The DType in which a T is stored without conversion.
template <TensorElement T>
constexpr DType dtype_of() {
  if constexpr (std::same_as<T, bool>) {
    static_assert(sizeof(bool) == 1);
    return DType::BOOL;
  } else if constexpr (Float16Element<T>) {
    return std::same_as<T, float16> ? DType::F16 : DType::BF16;
  } else if constexpr (std::floating_point<T>) {
    return std::same_as<T, float> ? DType::F32 : DType::F64;
  } else if constexpr (std::signed_integral<T>) {
    return sizeof(T) == 1   ? DType::I8
           : sizeof(T) == 2 ? DType::I16
           : sizeof(T) == 4 ? DType::I32
                            : DType::I64;
  } else {
    return sizeof(T) == 1   ? DType::U8
           : sizeof(T) == 2 ? DType::U16
           : sizeof(T) == 4 ? DType::U32
                            : DType::U64;
  }
}

namespace detail {

/// Calls f(E{}) with the type of Elements that is stored as `dtype`; returns false if there is
/// none.
template <class... Elements, class F>
bool with_dtype(DType dtype, F&& f) {
  return ((dtype == dtype_of<Elements>() && (f(Elements{}), true)) || ...);
}

/// numeric_limits of a 16-bit binary format with the given bits of precision and exponent.
template <class T, int kDigits, int kMaxExponent>
struct Float16Limits {
  static constexpr bool is_specialized = true, is_signed = true, is_integer = false;
  static constexpr bool is_exact = false, is_bounded = true, is_modulo = false, is_iec559 = true;
  static constexpr bool has_infinity = true, has_quiet_NaN = true, has_signaling_NaN = true;
  static constexpr bool traps = false, tinyness_before = false;
  static constexpr std::float_round_style round_style = std::round_to_nearest;
  static constexpr int radix = 2, digits = kDigits;
  static constexpr int digits10 = (kDigits - 1) * 30103 / 100000;
  static constexpr int max_digits10 = kDigits * 30103 / 100000 + 2;
  static constexpr int max_exponent = kMaxExponent, min_exponent = 3 - kMaxExponent;
  static constexpr int max_exponent10 = (kMaxExponent * 30103 - 1) / 100000;
  static constexpr int min_exponent10 = (min_exponent - 1) * 30103 / 100000;

  static constexpr T(min)() { return bits(1u << kMantissa); }
  static constexpr T(max)() { return bits(kInfinity - 1); }
  static constexpr T lowest() { return bits(0x8000u | (kInfinity - 1)); }
  /// 2^(1 - digits); the exponent bits of 1 are kMaxExponent - 1.
  static constexpr T epsilon() {
    return bits(static_cast<unsigned>(kMaxExponent - kDigits) << kMantissa);
  }
  static constexpr T round_error() { return T(0.5f); }
  static constexpr T infinity() { return bits(kInfinity); }
  static constexpr T quiet_NaN() { return bits(kInfinity | 1u << (kMantissa - 1)); }
  static constexpr T signaling_NaN() { return bits(kInfinity | 1u << (kMantissa - 2)); }
  static constexpr T denorm_min() { return bits(1); }

 private:
  static constexpr int kMantissa = kDigits - 1;
  static constexpr unsigned kInfinity = (2u * kMaxExponent - 1) << kMantissa;
  static constexpr T bits(unsigned x) { return T::from_bits(static_cast<std::uint16_t>(x)); }
};

}  // namespace detail

ATTN_NAMESPACE_END

namespace std {

template <>
class numeric_limits<attn::float16> : public attn::detail::Float16Limits<attn::float16, 11, 16> {};
template <>
class numeric_limits<attn::bfloat16> : public attn::detail::Float16Limits<attn::bfloat16, 8, 128> {
};

}  // namespace std
