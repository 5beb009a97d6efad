// DType: the element types of safetensors files, and the exact widening of 16-bit floats.
#pragma once

#include <bit>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <type_traits>

#include "attn/core/config.hpp"

ATTN_NAMESPACE_BEGIN

/// Spelled as in the files. The order is that of the reference implementation, which lays out
/// tensors by descending type: wide elements first, so that none is misaligned.
/// The types below one byte (F4, F6) are not known here.
enum class DType : std::uint8_t {
  BOOL,
  U8,
  I8,
  F8_E5M2,
  F8_E4M3,
  F8_E8M0,
  I16,
  U16,
  F16,   ///< IEEE 754 binary16
  BF16,  ///< the upper half of a binary32
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

/// Nothing for an unknown name. Names are upper case.
constexpr std::optional<DType> dtype_from_name(std::string_view text) {
  for (const detail::DTypeRow& row : detail::kDTypes) {
    if (row.name == text) return row.dtype;
  }
  return std::nullopt;
}

/// Integers of 8 to 64 bits, signed or not; characters and bool are none.
template <class T>
concept TensorInteger =
    std::integral<T> && sizeof(T) <= 8 && !std::same_as<T, bool> && !std::same_as<T, char> &&
    !std::same_as<T, wchar_t> && !std::same_as<T, char8_t> && !std::same_as<T, char16_t> &&
    !std::same_as<T, char32_t>;

/// What a tensor read from a file, or written to one, may hold.
template <class T>
concept TensorElement =
    std::same_as<T, float> || std::same_as<T, double> || std::same_as<T, bool> || TensorInteger<T>;

/// The type that a T is stored as without conversion.
template <TensorElement T>
constexpr DType dtype_of() {
  if constexpr (std::same_as<T, bool>) {
    static_assert(sizeof(bool) == 1);
    return DType::BOOL;
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

/// The bits of an F16 or BF16: storage only, no arithmetic.
struct Half {
  std::uint16_t bits;
};
struct BFloat16 {
  std::uint16_t bits;
};

/// Exact for every bit pattern: subnormals, infinities, signs and NaN payloads included.
constexpr float widen(Half h) {
  const std::uint32_t sign = (h.bits & 0x8000u) << 16;
  const std::uint32_t exponent = (h.bits >> 10) & 0x1Fu;
  const std::uint32_t mantissa = h.bits & 0x3FFu;
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

constexpr float widen(BFloat16 b) { return std::bit_cast<float>(std::uint32_t{b.bits} << 16); }

ATTN_NAMESPACE_END
