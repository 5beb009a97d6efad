// Frames: cuts sequences of vectors into the windows of a convolution over time.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>

#include "attn/core/tensor.hpp"

ATTN_NAMESPACE_BEGIN

/// Windows of `size` consecutive vectors, every `stride` steps, of x (batch, channels, length) with
/// size / 2 zeros on each side: (batch, (length - 1) / stride + 1, channels * size). A convolution
/// with an odd kernel and that padding is then `linear` with its weight (out, channels, size)
/// viewed as (out, -1). Throws ValueError for an even size or a stride below 1, ShapeError for no
/// length.
template <TensorLike X>
Tensor3<scalar_t<X>> extract_frames(const X& x, index_t size, index_t stride) {
  using T = scalar_t<X>;
  ATTN_ASSERT_AXES(X, 3, "extract_frames: x", "(batch, channels, length)");
  const auto from = detail::view_as<const T, 3>(x);
  if (size < 1 || size % 2 == 0) {
    throw ValueError(message("extract_frames", "size", "be odd", std::to_string(size)));
  }
  if (stride < 1) {
    throw ValueError(message("extract_frames", "stride", "be at least 1", std::to_string(stride)));
  }
  const index_t length = from.extent(2);
  if (length < 1) throw_shape("extract_frames", "x", "have a length of at least 1", from.shape());
  Tensor3<T> result({from.extent(0), (length - 1) / stride + 1, from.extent(1) * size});
  for (index_t b = 0; b < result.extent(0); ++b) {
    for (index_t n = 0; n < result.extent(1); ++n) {
      const index_t first = n * stride - size / 2;
      const index_t begin = (std::max)(index_t{0}, -first), end = (std::min)(size, length - first);
      for (index_t c = 0; c < from.extent(1); ++c) {
        T* to = &result(b, n, 0) + c * size;
        for (index_t i = begin; i < end; ++i) to[i] = from(b, c, first + i);
      }
    }
  }
  return result;
}

ATTN_NAMESPACE_END
