// Patches: cuts images into the patches of a vision transformer.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attn/core/tensor.hpp"

ATTN_NAMESPACE_BEGIN

/// Extracts squares of `patch` x `patch` pixels, row by row: images (batch, channels, height,
/// width) to (batch, patches, channels * patch * patch). A convolution with kernel and stride
/// `patch` is then `linear` with its weight (out, channels, patch, patch) viewed as (out, -1)
/// (Dosovitskiy et al., "An image is worth 16x16 words", 2021). Throws ShapeError unless `patch`
/// divides height and width.
template <TensorLike Images>
Tensor3<scalar_t<Images>> extract_patches(const Images& images, index_t patch) {
  using T = scalar_t<Images>;
  ATTN_ASSERT_AXES(Images, 4, "extract_patches: images", "(batch, channels, height, width)");
  const auto x = detail::view_as<const T, 4>(images);
  const index_t height = x.extent(2), width = x.extent(3);
  if (patch < 1 || height % patch != 0 || width % patch != 0) {
    throw_shape("extract_patches", "images",
                "have a height and a width that the patch of " + std::to_string(patch) + " divides",
                x.shape());
  }
  const index_t rows = height / patch, columns = width / patch;
  Tensor3<T> result({x.extent(0), rows * columns, x.extent(1) * patch * patch});
  if (result.size() == 0) return result;
  copy(x.split(2, rows).split(4, columns).permute({0, 2, 4, 1, 3, 5}),
       result.reshape({x.extent(0), rows, columns, x.extent(1), patch, patch}));
  return result;
}

ATTN_NAMESPACE_END
