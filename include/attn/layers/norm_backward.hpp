// Backward of Norm.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attn/kernels/rows/norm_backward.hpp"
#include "attn/layers/module/saved.hpp"
#include "attn/layers/norm.hpp"

ATTN_NAMESPACE_BEGIN

template <class T>
struct NormSaved {
  Saved<T, 3> x;  ///< (batch, seq, dim)

  index_t bytes() const { return x.bytes(); }
};

/// Norm::forward() that saves activations: x and out (batch, seq, dim). Throws ShapeError.
template <class T>
void forward(const Norm<T>& layer, Input3<T> x, Output3<T> out, NormSaved<T>& saved,
             const Execution& execution = {}) {
  layer.forward(saved.x.keep(x), out, execution);
}

namespace detail {

/// The backward of Norm for x of any rank.
template <class T, int Rank>
void backward_of_norm(const Norm<T>& layer, const TensorView<const T, Rank>& d_out,
                      const TensorView<const T, Rank>& x, const TensorView<T, Rank>& d_x,
                      Norm<Accumulator<T>>& gradients, const TensorView<const T, Rank>& residual,
                      const Execution& execution) {
  if (layer.kind == NormKind::rms) {
    rms_norm_backward(d_out, x, layer.weight.view(), layer.eps, d_x, gradients.weight.view(),
                      residual, execution);
  } else {
    layer_norm_backward(d_out, x, layer.weight.view(), layer.eps, d_x, gradients.weight.view(),
                        gradients.bias.view(), residual, execution);
  }
}

}  // namespace detail

/// Computes d_x (batch, seq, dim), which may be d_out, = its gradient + residual; adds the
/// gradients of the parameters to `gradients`.
template <class T>
void backward(const Norm<T>& layer, Input3<T> d_out, const NormSaved<T>& saved, Output3<T> d_x,
              Norm<Accumulator<T>>& gradients, Input3<T> residual = {},
              const Execution& execution = {}) {
  detail::backward_of_norm<T, 3>(layer, d_out, saved.x.view(), d_x, gradients, residual, execution);
}

ATTN_NAMESPACE_END
