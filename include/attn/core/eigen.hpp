// Conversions between Eigen and views. The only header that names Eigen.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <Eigen/Core>

#include "attn/core/argument_types.hpp"

ATTN_NAMESPACE_BEGIN

template <class T>
using EigenMatrix =
    Eigen::Matrix<std::remove_const_t<T>, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

/// Row-major, unaligned (a slice may start anywhere), any distance between rows.
template <class T>
using EigenMap =
    Eigen::Map<std::conditional_t<std::is_const_v<T>, const EigenMatrix<T>, EigenMatrix<T>>,
               Eigen::Unaligned, Eigen::OuterStride<>>;

/// Maps a matrix, a tensor or view of two axes, as an Eigen map, without a copy. Throws ShapeError
/// unless the innermost stride is 1.
template <TensorLike X>
auto eigen_map(X&& x) {
  using T = typename view_t<X>::element_type;
  ATTN_ASSERT_AXES(X, 2, "eigen_map: x", "(rows, columns)");
  const auto m = detail::view_as<T, 2>(x);
  if (m.stride(1) != 1 && m.extent(1) > 1) {
    throw ShapeError(
        message("eigen_map", "the innermost stride", "be 1", std::to_string(m.stride(1))));
  }
  return EigenMap<T>(m.data(), m.extent(0), m.extent(1), Eigen::OuterStride<>(m.stride(0)));
}
template <TemporaryTensor X>
auto eigen_map(X&& x) = delete;  // it would view a temporary tensor

ATTN_NAMESPACE_END
