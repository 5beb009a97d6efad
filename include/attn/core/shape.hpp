// Shape: extents as fixed-rank arrays of 64-bit integers, with checked sizes and text.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <span>
#include <string>

#include "attn/core/error.hpp"

ATTN_NAMESPACE_BEGIN

/// Extents, strides (in elements) and indices: signed and 64 bits wide throughout.
using index_t = std::ptrdiff_t;

template <int Rank>
using Shape = std::array<index_t, static_cast<std::size_t>(Rank)>;

/// "(2, 4, 128, 64)"
ATTN_COLD inline std::string to_string(std::span<const index_t> shape) {
  std::string text;
  for (std::size_t i = 0; i < shape.size(); ++i) {
    text = detail::join({text, i > 0 ? ", " : "", to_string(shape[i])});
  }
  return detail::join({"(", text, ")"});
}

// The code that throws is a plain function over spans, not a template over the rank: it is compiled
// once per file.
[[noreturn]] ATTN_COLD inline void throw_shape(std::string_view function, std::string_view argument,
                                               std::string_view expected,
                                               std::span<const index_t> found) {
  throw ShapeError(message(function, argument, expected, to_string(found)));
}

namespace detail {

/// a == b without the call of memcmp that compilers generate: a small call compares thirty such
/// arrays, and took 1.03 times as long (attn_report mha_tutorial).
template <std::size_t N>
constexpr bool are_equal(const std::array<index_t, N>& a, const std::array<index_t, N>& b) {
  index_t differences = 0;
  ATTN_UNROLL
  for (std::size_t i = 0; i < N; ++i) differences |= a[i] ^ b[i];
  return differences == 0;
}

[[noreturn]] ATTN_COLD inline void throw_other_shape(std::string_view function,
                                                     std::string_view argument,
                                                     std::string_view axes,
                                                     std::span<const index_t> expected,
                                                     std::span<const index_t> found) {
  throw_shape(function, argument,
              join({"have shape ", axes, axes.empty() ? "" : " = ", to_string(expected)}), found);
}

}  // namespace detail

/// Throws ShapeError unless `found` equals `expected`; `axes` names the axes in the message, or is
/// empty.
template <std::size_t N>
ATTN_INLINE void check_shape(std::string_view function, std::string_view argument,
                             std::string_view axes, const std::array<index_t, N>& expected,
                             const std::array<index_t, N>& found) {
  if (!detail::are_equal(expected, found)) {
    detail::throw_other_shape(function, argument, axes, expected, found);
  }
}
template <std::size_t N>
ATTN_INLINE void check_shape(std::string_view function, std::string_view argument,
                             const std::array<index_t, N>& expected,
                             const std::array<index_t, N>& found) {
  check_shape(function, argument, {}, expected, found);
}

/// Throws ShapeError unless the last extent of x, the input of a layer, is `features`.
inline void check_features(std::string_view layer, std::span<const index_t> x, index_t features) {
  if (x.back() == features) return;
  throw_shape(layer, "x", "have the last extent " + std::to_string(features), x);
}

/// Number of elements. Throws ShapeError for a negative extent and for a product past 2^63 - 1.
inline index_t size_of(std::span<const index_t> shape) {
  index_t size = 1, least = 1;
  bool overflow = false;
  for (index_t extent : shape) {
    least = (std::min)(least, extent);
    overflow = __builtin_mul_overflow(size, extent, &size) || overflow;
  }
  if (least < 0) throw_shape("Shape", "every extent", "be at least 0", shape);
  if (least == 0) return 0;
  if (overflow) throw_shape("Shape", "the number of elements", "fit 63 bits", shape);
  return size;
}

namespace detail {

[[noreturn]] ATTN_COLD inline void throw_axis(std::string_view function, index_t lowest,
                                              index_t highest, index_t found) {
  throw ValueError(message(function, "the axis",
                           join({"be ", to_string(lowest), " to ", to_string(highest)}),
                           to_string(found)));
}

/// Resolves an axis: negative ones count from the last, -1. Throws ValueError for an axis outside
/// of `rank`. Folds to a constant for a constant axis.
constexpr int axis_of(std::string_view function, int rank, int axis) {
  if (axis < -rank || axis >= rank) throw_axis(function, -rank, rank - 1, axis);
  return axis < 0 ? axis + rank : axis;
}

/// n rounded up to a multiple of `step`.
constexpr index_t round_up(index_t n, index_t step) { return (n + step - 1) / step * step; }

}  // namespace detail

/// Strides of a contiguous tensor, last axis fastest.
template <std::size_t N>
constexpr std::array<index_t, N> contiguous_strides(const std::array<index_t, N>& shape) {
  std::array<index_t, N> strides{};
  index_t stride = 1;
  for (std::size_t i = N; i-- > 0;) {
    strides[i] = stride;
    stride *= shape[i] > 0 ? shape[i] : 1;
  }
  return strides;
}

ATTN_NAMESPACE_END
