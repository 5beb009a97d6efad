// The meeting point with Eigen: views as row-major maps. The only file that names Eigen.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <Eigen/Core>

#include "attn/core/view.hpp"

ATTN_NAMESPACE_BEGIN

template <class T>
using EigenMatrix =
    Eigen::Matrix<std::remove_const_t<T>, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

/// Row-major, unaligned (a slice may start anywhere), any distance between rows.
template <class T>
using EigenMap =
    Eigen::Map<std::conditional_t<std::is_const_v<T>, const EigenMatrix<T>, EigenMatrix<T>>,
               Eigen::Unaligned, Eigen::OuterStride<>>;

/// A matrix view as an Eigen map, without a copy. Throws ShapeError unless the innermost stride is
/// 1.
template <class T>
EigenMap<T> eigen_map(const TensorView<T, 2>& m) {
  if (m.stride(1) != 1 && m.extent(1) > 1) {
    throw ShapeError(
        message("eigen_map", "the innermost stride", "be 1", std::to_string(m.stride(1))));
  }
  return {m.data(), m.extent(0), m.extent(1), Eigen::OuterStride<>(m.stride(0))};
}

ATTN_NAMESPACE_END
