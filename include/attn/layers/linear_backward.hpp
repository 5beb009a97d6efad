// Backward of linear and Linear.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attn/kernels/rows/activation_backward.hpp"
#include "attn/kernels/rows/column_sums.hpp"
#include "attn/layers/linear.hpp"
#include "attn/layers/module/saved.hpp"

ATTN_NAMESPACE_BEGIN

/// The gradients of linear(x, weight, bias), without an activation. d_x = d_out weight + residual;
/// d_weight += d_out^T x and d_bias += sum over rows of d_out. d_x, d_weight and d_bias are
/// optional: an empty view skips one. Shapes: d_out (.., out), x and d_x (.., in), weight and
/// d_weight (out, in), d_bias (out), contiguous. For 16-bit inputs d_weight and d_bias are float,
/// and d_x is rounded once. d_x may be the residual, not d_out. The order of summation depends only
/// on the number of rows. Throws ShapeError.
template <TensorLike D, TensorLike X, TensorLike W>
void linear_backward(const D& d_out, const X& x, const W& weight,
                     TensorView<scalar_t<X>, rank_v<X>> d_x,
                     TensorView2<Accumulator<scalar_t<X>>> d_weight,
                     TensorView1<Accumulator<scalar_t<X>>> d_bias = {},
                     decltype(const_view(x)) residual = {}, const Execution& execution = {}) {
  using T = scalar_t<X>;
  const auto dv = const_view(d_out);
  const auto xv = const_view(x);
  const TensorView2<const T> w = const_view(weight);
  auto expected = xv.shape();
  check_shape("linear_backward", "weight", "(out, in)",
              Shape<2>{dv.shape().back(), xv.shape().back()}, w.shape());
  if (d_x) check_shape("linear_backward", "d_x", expected, d_x.shape());
  if (residual) check_shape("linear_backward", "residual", expected, residual.shape());
  expected.back() = w.extent(0);
  check_shape("linear_backward", "d_out", expected, dv.shape());
  if (d_weight) check_shape("linear_backward", "d_weight", w.shape(), d_weight.shape());
  if (d_bias) add_column_sums(dv, d_bias, execution);
  if (d_weight) {
    detail::each_joined(
        [&](const auto& d, const auto& in) {
          gemm(d.rows().transpose(0, 1), in.rows(), d_weight, {.beta = 1}, execution);
        },
        dv, xv);
  }
  if (!d_x) return;
  detail::each_joined(
      [&](const auto& d, const auto& to, const auto& added) {
        Epilogue<T> epilogue;
        if (residual) {
          epilogue.beta = T{1};
          epilogue.residual = added.rows();
        }
        gemm(d.rows(), w, to.rows(), epilogue, execution);
      },
      dv, d_x, residual ? residual : TensorView<const T, rank_v<X>>(d_x));
}

template <class T>
struct LinearSaved {
  Saved<T, 3> x;  ///< (batch, seq, in)

  index_t bytes() const { return x.bytes(); }
};

/// Linear::forward() that saves activations: x (batch, seq, in), out and residual (batch, seq,
/// out). Does not use a packed copy of the weight, since training changes the weight. Throws
/// ShapeError.
template <class T>
void forward(const Linear<T>& layer, Input3<T> x, Output3<T> out, LinearSaved<T>& saved,
             Input3<T> residual = {}, const Execution& execution = {}) {
  if (!layer.weight && layer.in_features() > 0) detail::throw_compressed("Linear");
  linear(saved.x.keep(x), layer.weight, layer.bias.view(), out, Activation::none, residual,
         execution);
}

/// Computes d_x (batch, seq, in) = its gradient + residual, unless the view is empty; adds the
/// gradients of the parameters to `gradients`, except frozen ones.
template <class T>
void backward(const Linear<T>& layer, Input3<T> d_out, const LinearSaved<T>& saved, Output3<T> d_x,
              Linear<Accumulator<T>>& gradients, Input3<T> residual = {},
              const Execution& execution = {}) {
  linear_backward(d_out, saved.x.view(), layer.weight, d_x, gradients.weight.view(),
                  gradients.bias.view(), residual, execution);
}

ATTN_NAMESPACE_END
