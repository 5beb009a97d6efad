// Shapes: extents as fixed-rank arrays of 64-bit integers, with checked sizes and readable text.
#pragma once

#include <array>
#include <cstddef>
#include <span>
#include <string>

#include "attn/core/error.hpp"

ATTN_NAMESPACE_BEGIN

/// Extents, strides (in elements) and positions: signed and 64 bits wide throughout.
using index_t = std::ptrdiff_t;

template <int Rank>
using Shape = std::array<index_t, static_cast<std::size_t>(Rank)>;

/// "(2, 4, 128, 64)"
ATTN_COLD inline std::string to_string(std::span<const index_t> shape) {
  std::string text = "(";
  for (std::size_t i = 0; i < shape.size(); ++i) {
    if (i > 0) text += ", ";
    text += std::to_string(shape[i]);
  }
  return text += ")";
}

/// Number of elements. Throws ShapeError for a negative extent and for a product past 2^63 - 1.
template <std::size_t N>
index_t size_of(const std::array<index_t, N>& shape) {
  index_t size = 1;
  bool overflow = false, empty = false;
  for (index_t extent : shape) {
    if (extent < 0) {
      throw ShapeError(message("Shape", "every extent", "be at least 0", to_string(shape)));
    }
    empty = empty || extent == 0;
    if (!empty) overflow = __builtin_mul_overflow(size, extent, &size) || overflow;
  }
  if (empty) return 0;
  if (overflow) {
    throw ShapeError(message("Shape", "the number of elements", "fit 63 bits", to_string(shape)));
  }
  return size;
}

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
