// In-batch contrastive loss (InfoNCE) of embeddings, with its gradients.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>

#include "attn/kernels/gemm/gemm.hpp"
#include "attn/kernels/losses/loss.hpp"

ATTN_NAMESPACE_BEGIN

struct ContrastiveOptions {
  double temperature = 0.05;  ///< divides similarities; above 0
  Execution execution = {};   ///< threads, scratch and instruction set
};

namespace detail {

/// rows of `to` = rows of x divided by their lengths, which are stored; a row of zeros stays zero.
template <class T>
void normalize_rows(const TensorView2<const T>& x, const TensorView2<T>& to, T* lengths) {
  for (index_t i = 0; i < x.extent(0); ++i) {
    double square = 0;
    for (index_t j = 0; j < x.extent(1); ++j) {
      square += static_cast<double>(x(i, j)) * static_cast<double>(x(i, j));
    }
    lengths[i] = static_cast<T>(std::sqrt(square));
    for (index_t j = 0; j < x.extent(1); ++j) {
      to(i, j) = lengths[i] > T{0} ? x(i, j) / lengths[i] : T{0};
    }
  }
}

/// d = the gradient of x from d, the gradient of its unit vectors u: (d - u (u . d)) / length.
template <class T>
void normalize_rows_backward(const TensorView2<const T>& unit, const T* lengths,
                             const TensorView2<T>& d) {
  for (index_t i = 0; i < d.extent(0); ++i) {
    T along = 0;
    for (index_t j = 0; j < d.extent(1); ++j) along += unit(i, j) * d(i, j);
    for (index_t j = 0; j < d.extent(1); ++j) {
      d(i, j) = lengths[i] > T{0} ? (d(i, j) - unit(i, j) * along) / lengths[i] : T{0};
    }
  }
}

}  // namespace detail

/// The contrastive loss of pairs: row i of x belongs to row i of y only. The mean over i of -log
/// softmax over j of cosine(x_i, y_j) / temperature at j = i; overwrites d_x and d_y with its
/// gradients. Shapes: all (n, dim). Throws ShapeError, and ValueError for a temperature <= 0.
/// Source: van den Oord, Li, Vinyals, "Representation Learning with Contrastive Predictive Coding"
/// (2018), equation 4, with cosines.
template <TensorLike X, TensorLike Y, TensorLike DX, TensorLike DY>
double contrastive_loss_backward(const X& x, const Y& y, DX&& d_x, DY&& d_y,
                                 const ContrastiveOptions& options = {}) {
  using T = detail::real_t<X>;
  constexpr std::string_view kFunction = "contrastive_loss_backward";
  ATTN_ASSERT_REAL(X, "contrastive_loss_backward: x");
  ATTN_ASSERT_AXES(X, 2, "contrastive_loss_backward: x", "(n, dim)");
  ATTN_ASSERT_INPUT_LIKE(Y, X, "contrastive_loss_backward: y", "x");
  ATTN_ASSERT_OUTPUT_LIKE(DX, X, "contrastive_loss_backward: d_x", "x");
  ATTN_ASSERT_OUTPUT_LIKE(DY, X, "contrastive_loss_backward: d_y", "x");
  const auto xv = detail::view_as<const T, 2>(x), yv = detail::view_as<const T, 2>(y);
  const auto dx = detail::view_as<T, 2>(d_x), dy = detail::view_as<T, 2>(d_y);
  check_shape(kFunction, "y", xv.shape(), yv.shape());
  check_shape(kFunction, "d_x", xv.shape(), dx.shape());
  check_shape(kFunction, "d_y", xv.shape(), dy.shape());
  if (!(options.temperature > 0)) {
    throw ValueError(
        message(kFunction, "temperature", "be above 0", to_string(options.temperature)));
  }
  const index_t n = xv.extent(0), dim = xv.extent(1);
  Workspace& workspace = options.execution.scratch();
  Scratch<T> memory(workspace, 2 * n * dim + n * n + 2 * n);
  Scratch<index_t> targets(workspace, n);
  const TensorView2<T> u(memory.data(), {n, dim}), v(u.data() + u.size(), {n, dim}),
      logits(v.data() + v.size(), {n, n});
  T *x_lengths = logits.data() + logits.size(), *y_lengths = x_lengths + n;
  detail::normalize_rows<T>(xv, u, x_lengths);
  detail::normalize_rows<T>(yv, v, y_lengths);
  const T scale = static_cast<T>(1 / options.temperature);
  gemm(u, v.transpose(0, 1), logits, {.alpha = scale}, options.execution);
  for (index_t i = 0; i < n; ++i) targets.data()[i] = i;
  const TensorView1<const index_t> ids(targets.data(), {n});
  const double loss = cross_entropy_backward(logits, ids, logits, {.execution = options.execution});
  gemm(logits, v, dx, {.alpha = scale}, options.execution);
  gemm(logits.transpose(0, 1), u, dy, {.alpha = scale}, options.execution);
  detail::normalize_rows_backward<T>(u, x_lengths, dx);
  detail::normalize_rows_backward<T>(v, y_lengths, dy);
  return loss;
}

ATTN_NAMESPACE_END
