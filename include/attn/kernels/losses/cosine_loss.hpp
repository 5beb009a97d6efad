// Cosine embedding loss of positive and negative pairs, with its gradients.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <type_traits>

#include "attn/kernels/losses/loss.hpp"

ATTN_NAMESPACE_BEGIN

struct CosineEmbeddingOptions {
  double margin = 0;  ///< in [-1, 1]: negative pairs with at most this cosine have no loss
};

namespace detail {

template <class T, class Id>
double cosine_embedding_loss(std::string_view function, const TensorView2<const T>& x,
                             const TensorView2<const T>& y, const TensorView1<const Id>& targets,
                             const TensorView2<T>& d_x, const TensorView2<T>& d_y,
                             const CosineEmbeddingOptions& options) {
  static_assert(std::is_signed_v<Id>,
                "cosine_embedding_loss: targets must have signed integers as elements");
  check_shape(function, "y", x.shape(), y.shape());
  check_shape(function, "targets", Shape<1>{x.extent(0)}, targets.shape());
  if (!(options.margin >= -1 && options.margin <= 1)) {
    throw ValueError(message(function, "margin", "lie in -1 .. 1", to_string(options.margin)));
  }
  for (index_t i = 0; i < targets.extent(0); ++i) {
    if (targets(i) == Id{1} || targets(i) == static_cast<Id>(-1)) continue;
    throw ValueError(message(function, "targets(" + std::to_string(i) + ")", "be 1 or -1",
                             std::to_string(targets(i))));
  }
  const double rows = static_cast<double>(x.extent(0));
  double sum = 0;
  for (index_t i = 0; i < x.extent(0); ++i) {
    double xy = 0, xx = 0, yy = 0;
    for (index_t j = 0; j < x.extent(1); ++j) {
      const double a = static_cast<double>(x(i, j)), b = static_cast<double>(y(i, j));
      xy += a * b, xx += a * a, yy += b * b;
    }
    const double lengths = std::sqrt(xx) * std::sqrt(yy);
    const double cosine = lengths == 0 ? 0 : xy / lengths;
    const bool alike = targets(i) == Id{1};
    // Written so that a NaN takes the active branch.
    const bool counts = alike || !(cosine < options.margin);
    if (counts) sum += alike ? 1 - cosine : cosine - options.margin;
    if (!d_x) continue;
    const double d_cosine = counts && lengths != 0 ? (alike ? -1 : 1) / rows : 0;
    for (index_t j = 0; j < x.extent(1); ++j) {
      const double a = static_cast<double>(x(i, j)), b = static_cast<double>(y(i, j));
      d_x(i, j) = static_cast<T>(d_cosine == 0 ? 0 : d_cosine * (b / lengths - cosine * a / xx));
      d_y(i, j) = static_cast<T>(d_cosine == 0 ? 0 : d_cosine * (a / lengths - cosine * b / yy));
    }
  }
  return sum / rows;
}

}  // namespace detail

/// The mean over rows of 1 - cosine(x_i, y_i) where targets(i) is 1, and of max(0, cosine - margin)
/// where it is -1, summed in double: torch.nn.functional.cosine_embedding_loss, without the 1e-12
/// that it adds to squared lengths. A row of zeros has cosine 0. Shapes: x and y (n, dim), targets
/// (n) of any signed integers. Throws ShapeError, and ValueError for other targets and a margin
/// outside -1 .. 1.
template <TensorLike X, TensorLike Y, TensorLike Targets>
double cosine_embedding_loss(const X& x, const Y& y, const Targets& targets,
                             const CosineEmbeddingOptions& options = {}) {
  using T = detail::real_t<X>;
  using Id = detail::id_t<Targets>;
  ATTN_ASSERT_REAL(X, "cosine_embedding_loss: x");
  ATTN_ASSERT_AXES(X, 2, "cosine_embedding_loss: x", "(n, dim)");
  ATTN_ASSERT_INPUT_LIKE(Y, X, "cosine_embedding_loss: y", "x");
  ATTN_ASSERT_AXES(Targets, 1, "cosine_embedding_loss: targets", "(n)");
  ATTN_ASSERT_INTEGERS(Targets, "cosine_embedding_loss: targets");
  return detail::cosine_embedding_loss<T, Id>(
      "cosine_embedding_loss", detail::view_as<const T, 2>(x), detail::view_as<const T, 2>(y),
      detail::view_as<const Id, 1>(targets), {}, {}, options);
}

/// Returns the loss and writes its gradients to d_x and d_y (n, dim), which may be x and y: for a
/// similar pair, or one whose cosine is at least the margin, -+ (y / |x||y| - cosine x / |x|^2) /
/// n, and 0 if one is a row of zeros. Throws ShapeError for other shapes.
template <TensorLike X, TensorLike Y, TensorLike Targets, TensorLike DX, TensorLike DY>
double cosine_embedding_loss_backward(const X& x, const Y& y, const Targets& targets, DX&& d_x,
                                      DY&& d_y, const CosineEmbeddingOptions& options = {}) {
  using T = detail::real_t<X>;
  using Id = detail::id_t<Targets>;
  ATTN_ASSERT_REAL(X, "cosine_embedding_loss_backward: x");
  ATTN_ASSERT_AXES(X, 2, "cosine_embedding_loss_backward: x", "(n, dim)");
  ATTN_ASSERT_INPUT_LIKE(Y, X, "cosine_embedding_loss_backward: y", "x");
  ATTN_ASSERT_AXES(Targets, 1, "cosine_embedding_loss_backward: targets", "(n)");
  ATTN_ASSERT_INTEGERS(Targets, "cosine_embedding_loss_backward: targets");
  ATTN_ASSERT_OUTPUT_LIKE(DX, X, "cosine_embedding_loss_backward: d_x", "x");
  ATTN_ASSERT_OUTPUT_LIKE(DY, X, "cosine_embedding_loss_backward: d_y", "x");
  constexpr std::string_view kFunction = "cosine_embedding_loss_backward";
  const auto xv = detail::view_as<const T, 2>(x);
  const auto dxv = detail::view_as<T, 2>(d_x), dyv = detail::view_as<T, 2>(d_y);
  check_shape(kFunction, "d_x", xv.shape(), dxv.shape());
  check_shape(kFunction, "d_y", xv.shape(), dyv.shape());
  return detail::cosine_embedding_loss<T, Id>(kFunction, xv, detail::view_as<const T, 2>(y),
                                              detail::view_as<const Id, 1>(targets), dxv, dyv,
                                              options);
}

ATTN_NAMESPACE_END
