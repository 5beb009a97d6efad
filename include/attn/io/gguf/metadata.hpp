// GgufValue: a typed metadata value of a GGUF file.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <concepts>
#include <cstring>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "attn/io/gguf/types.hpp"

ATTN_NAMESPACE_BEGIN

/// Numbered as in the files.
enum class GgufValueType : std::uint32_t {
  U8,
  I8,
  U16,
  I16,
  U32,
  I32,
  F32,
  BOOL,
  STRING,
  ARRAY,
  U64,
  I64,
  F64,
};

namespace detail {

inline constexpr std::string_view kGgufValueNames[] = {
    "U8", "I8", "U16", "I16", "U32", "I32", "F32", "BOOL", "STRING", "ARRAY", "U64", "I64", "F64"};
inline constexpr std::size_t kGgufValueSizes[] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};

constexpr std::string_view name(GgufValueType type) {
  return kGgufValueNames[static_cast<std::size_t>(type)];
}
/// 0 for strings and arrays.
constexpr std::size_t size_of_value(GgufValueType type) {
  return kGgufValueSizes[static_cast<std::size_t>(type)];
}

template <class V>
V gguf_number(const std::byte* from) {
  V value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

}  // namespace detail

/// Types in which a GgufValue can be read: bool; an integer, from any integer type that it fits;
/// float or double, from either; std::string_view, valid as long as the file.
template <class T>
concept GgufElement = std::same_as<T, bool> || std::integral<T> || std::floating_point<T> ||
                      std::same_as<T, std::string_view>;

/// A value, or an array of values of one type. Refers to the file's bytes.
class GgufValue {
 public:
  GgufValue() = default;
  /// For an array: the elements' type, their number, and their bytes.
  GgufValue(GgufValueType type, bool is_array, std::size_t count, std::span<const std::byte> bytes)
      : type_(type), is_array_(is_array), count_(count), bytes_(bytes) {}

  /// The type; for an array, that of its elements.
  GgufValueType type() const { return type_; }
  bool is_array() const { return is_array_; }
  /// Number of elements; 1 for a single value.
  std::size_t size() const { return count_; }
  /// The value's bytes in the file, without an array's type and count.
  std::span<const std::byte> bytes() const { return bytes_; }

  /// Throws DTypeError, naming `subject`, if the value is an array or has another kind; ValueError
  /// if a number does not fit.
  template <GgufElement T>
  T get(std::string_view subject) const {
    if (is_array_) fail<T>(subject, "be a single ");
    return read<T>(bytes_.data(), subject);
  }

  /// Reads all elements of an array, with the same errors.
  template <GgufElement T>
  std::vector<T> array(std::string_view subject) const {
    if (!is_array_) fail<T>(subject, "be an array of ");
    std::vector<T> result;
    result.reserve(count_);
    const std::byte* at = bytes_.data();
    for (std::size_t i = 0; i < count_; ++i) {
      result.push_back(read<T>(at, subject));
      at += type_ == GgufValueType::STRING
                ? sizeof(std::uint64_t) + detail::gguf_number<std::uint64_t>(at)
                : detail::size_of_value(type_);
    }
    return result;
  }

 private:
  template <class T>
  static constexpr std::string_view kind() {
    if constexpr (std::same_as<T, bool>) return "BOOL";
    if constexpr (std::integral<T>) return "integer";
    if constexpr (std::floating_point<T>) return "F32 or F64";
    return "STRING";
  }

  template <class T>
  [[noreturn]] void fail(std::string_view subject, std::string_view expected) const {
    throw DTypeError(message("GgufFile", subject, detail::concat(expected, kind<T>()),
                             detail::concat(is_array_ ? "an array of " : "", detail::name(type_))));
  }

  template <class T>
  T read(const std::byte* from, std::string_view subject) const {
    const std::string_view expected = is_array_ ? "be an array of " : "be of type ";
    if constexpr (std::same_as<T, std::string_view>) {
      if (type_ != GgufValueType::STRING) fail<T>(subject, expected);
      return {reinterpret_cast<const char*>(from) + sizeof(std::uint64_t),
              detail::gguf_number<std::uint64_t>(from)};
    } else if constexpr (std::same_as<T, bool>) {
      if (type_ != GgufValueType::BOOL) fail<T>(subject, expected);
      return std::to_integer<int>(*from) != 0;
    } else if constexpr (std::floating_point<T>) {
      if (type_ == GgufValueType::F32) return static_cast<T>(detail::gguf_number<float>(from));
      if (type_ == GgufValueType::F64) return static_cast<T>(detail::gguf_number<double>(from));
      fail<T>(subject, expected);
    } else {
      switch (type_) {
        case GgufValueType::U8:
          return fit<T>(detail::gguf_number<std::uint8_t>(from), subject);
        case GgufValueType::I8:
          return fit<T>(detail::gguf_number<std::int8_t>(from), subject);
        case GgufValueType::U16:
          return fit<T>(detail::gguf_number<std::uint16_t>(from), subject);
        case GgufValueType::I16:
          return fit<T>(detail::gguf_number<std::int16_t>(from), subject);
        case GgufValueType::U32:
          return fit<T>(detail::gguf_number<std::uint32_t>(from), subject);
        case GgufValueType::I32:
          return fit<T>(detail::gguf_number<std::int32_t>(from), subject);
        case GgufValueType::U64:
          return fit<T>(detail::gguf_number<std::uint64_t>(from), subject);
        case GgufValueType::I64:
          return fit<T>(detail::gguf_number<std::int64_t>(from), subject);
        case GgufValueType::F32:
        case GgufValueType::F64:
        case GgufValueType::BOOL:
        case GgufValueType::STRING:
        case GgufValueType::ARRAY:
          break;
      }
      fail<T>(subject, expected);
    }
  }

  template <class T, class V>
  static T fit(V value, std::string_view subject) {
    if (std::in_range<T>(value)) return static_cast<T>(value);
    throw ValueError(message("GgufFile", subject,
                             detail::concat("lie in ", (std::numeric_limits<T>::min)(), " .. ",
                                            (std::numeric_limits<T>::max)()),
                             std::to_string(value)));
  }

  GgufValueType type_ = GgufValueType::U8;
  bool is_array_ = false;
  std::size_t count_ = 0;
  std::span<const std::byte> bytes_;
};

ATTN_NAMESPACE_END
