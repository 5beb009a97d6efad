// Element types in files: which types load as which, conversion, overflow.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <optional>
#include <span>
#include <string_view>
#include <type_traits>
#include <utility>

#include "attn/core/element.hpp"
#include "attn/core/view.hpp"
#include "attn/io/quote.hpp"

ATTN_NAMESPACE_BEGIN

static_assert(std::endian::native == std::endian::little,
              "files are little-endian where nothing else is said, and so are the machines that "
              "attn runs on");

namespace detail {

template <class T>
inline constexpr bool is_float_element = std::is_floating_point_v<T> || Float16Element<T>;

/// The stored types from which a T can be loaded, for errors.
template <class T>
constexpr std::string_view loadable_types() {
  return is_float_element<T>       ? "hold F16, BF16, F32 or F64"
         : std::is_same_v<T, bool> ? "hold BOOL"
                                   : "hold integers";
}

/// Calls f with a value of the stored type, if a T can be loaded from it; else returns false.
template <class T, class F>
bool with_stored_type(const std::optional<DType>& dtype, F&& f) {
  if (!dtype) return false;
  if constexpr (is_float_element<T>) {
    return with_dtype<float16, bfloat16, float, double>(*dtype, f);
  } else if constexpr (std::is_same_v<T, bool>) {
    // Read as bytes, which are then checked to be 0 or 1.
    return dtype == DType::BOOL && (f(std::uint8_t{}), true);
  } else {
    return with_dtype<std::int8_t, std::uint8_t, std::int16_t, std::uint16_t, std::int32_t,
                      std::uint32_t, std::int64_t, std::uint64_t>(*dtype, f);
  }
}

/// The element at `from`, aligned or not. Swapped: with the other byte order.
template <class Stored>
Stored stored_element(const std::byte* from, bool is_swapped) {
  std::byte bytes[sizeof(Stored)];
  std::memcpy(bytes, from, sizeof(Stored));
  if (is_swapped) std::reverse(bytes, bytes + sizeof(Stored));
  Stored value;
  std::memcpy(&value, bytes, sizeof(Stored));
  return value;
}

/// Whether E rounds a finite number to infinity: float16 does from 65520 on.
template <class E, class T>
bool overflows(T value) {
  const auto number = static_cast<double>(value);
  return std::isfinite(number) && !std::isfinite(static_cast<double>(static_cast<E>(value)));
}

/// Whether a finite number of a file's type may overflow E: bfloat16 has almost the range of float.
template <class E>
constexpr bool may_overflow(DType stored) {
  if constexpr (std::is_same_v<E, float16>) return stored != DType::F16;
  if constexpr (std::is_same_v<E, bfloat16>) return stored == DType::F32 || stored == DType::F64;
  return std::is_same_v<E, float> && stored == DType::F64;
}

/// Throws ValueError for a number that overflows(): the check before weights are stored in fewer
/// bits.
template <class E, class T>
void check_overflow(std::string_view function, std::string_view what, std::span<const T> values) {
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (!overflows<E>(values[i])) continue;
    throw ValueError(message(
        function, what,
        concat(
            "hold numbers that fit ", attn::name(dtype_of<E>()), ", at most ",
            attn::to_string(static_cast<double>(static_cast<E>((std::numeric_limits<E>::max)())))),
        concat(attn::to_string(static_cast<double>(values[i])), " at element ", i)));
  }
}

/// Calls fail(expected, found) if an integer does not fit T; floats are rounded, if necessary to
/// infinity.
template <class T, class Fail>
void check_stored_values(DType dtype, std::span<const std::byte> data, bool is_swapped,
                         const Fail& fail) {
  if constexpr (!is_float_element<T>) {
    with_stored_type<T>(dtype, [&]<class Stored>(Stored) {
      constexpr bool is_bool = std::is_same_v<T, bool>;
      if constexpr (!is_bool && std::is_same_v<T, Stored>) return;
      for (std::size_t at = 0; at < data.size(); at += sizeof(Stored)) {
        const auto value = stored_element<Stored>(data.data() + at, is_swapped);
        bool fits;
        if constexpr (is_bool) {
          fits = value <= 1;
        } else {
          fits = std::in_range<T>(value);
        }
        if (fits) continue;
        fail(is_bool ? "hold bytes of 0 or 1 only" : concat("fit ", attn::name(dtype_of<T>())),
             concat(value, " at element ", at / sizeof(Stored)));
      }
    });
  }
}

/// Converts elements in order; returns the position after the last.
template <class Stored, class T, int Rank>
const std::byte* decode_elements(const std::byte* from, bool is_swapped, TensorView<T, Rank> out) {
  if constexpr (std::is_same_v<T, Stored>) {
    if (out.is_contiguous() && !is_swapped) {
      const std::size_t bytes = static_cast<std::size_t>(out.size()) * sizeof(T);
      std::memcpy(out.data(), from, bytes);
      return from + bytes;
    }
  }
  for (index_t i = 0; i < out.extent(0); ++i) {
    if constexpr (Rank > 1) {
      from = decode_elements<Stored>(from, is_swapped, out.select(0, i));
    } else {
      out(i) = static_cast<T>(stored_element<Stored>(from, is_swapped));
      from += sizeof(Stored);
    }
  }
  return from;
}

/// Converts the whole data, in order, into `out`; the types were checked.
template <class T, int Rank>
void decode_stored(DType dtype, std::span<const std::byte> data, bool is_swapped,
                   TensorView<T, Rank> out) {
  // Without elements, another extent may still be as large as 2^40.
  if (out.size() == 0) return;
  with_stored_type<T>(
      dtype, [&]<class Stored>(Stored) { decode_elements<Stored>(data.data(), is_swapped, out); });
}

}  // namespace detail

ATTN_NAMESPACE_END
