// Backward of ShortConvolution, and the forward that saves.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attn/layers/linear_backward.hpp"
#include "attn/layers/recurrent/short_convolution.hpp"

ATTN_NAMESPACE_BEGIN

template <class T>
struct ShortConvolutionSaved {
  Saved<T, 3> x;
  Saved<T, 3> projected;    ///< the result of in_proj
  LinearSaved<T> out_proj;  ///< the gated convolution

  index_t bytes() const { return x.bytes() + projected.bytes() + out_proj.bytes(); }
};

/// ShortConvolution::forward() that saves activations: x, out and residual (batch, seq, d_model).
/// Throws ShapeError.
template <class T>
void forward(const ShortConvolution<T>& layer, Input3<T> x, Output3<T> out,
             ShortConvolutionSaved<T>& saved, Input3<T> residual = {},
             const Execution& execution = {}) {
  const MultiHeadAttentionCall<T> call{.residual = residual};
  detail::check_recurrent_call("ShortConvolution", layer.options().d_model,
                               layer.convolution.state_size(), x.shape(), out.shape(), call);
  x = saved.x.keep(x);
  const TensorView3<T> projected =
      saved.projected.make({x.extent(0), x.extent(1), 3 * x.extent(2)});
  const TensorView3<T> gated = saved.out_proj.x.make(x.shape());
  linear(x, layer.in_proj.weight, layer.in_proj.bias.view(), projected, Activation::none, {},
         execution);
  layer.run(projected, detail::RowStates<T>(call, 0), gated, execution,
            [](const auto&, const auto&) {});
  forward(layer.out_proj, gated, out, saved.out_proj, residual, execution);
}

/// Computes d_x (batch, seq, d_model) = its gradient + residual, and adds the gradients of the
/// parameters to `gradients`. d_x may be the residual. Throws ShapeError before anything is
/// written.
template <class T>
void backward(const ShortConvolution<T>& layer, Input3<T> d_out, ShortConvolutionSaved<T>& saved,
              Output3<T> d_x, ShortConvolution<Accumulator<T>>& gradients, Input3<T> residual = {},
              const Execution& execution = {}) {
  using Acc = Accumulator<T>;
  Workspace& workspace = execution.scratch();
  const Shape<3> shape = saved.x.view().shape();
  const index_t elements = size_of(shape), dim = shape[2];
  detail::check_recurrent_backward<T>("ShortConvolution", shape, d_out, d_x, residual);
  Scratch<T> gated_memory(workspace, 2 * elements), projected_memory(workspace, 3 * elements);
  Scratch<Acc> sums_memory(workspace, elements), inputs_memory(workspace, elements);
  const TensorView3<T> d_gated(gated_memory.data(), shape),
      gated(gated_memory.data() + elements, shape),
      d_projected(projected_memory.data(), {shape[0], shape[1], 3 * dim});
  const TensorView3<Acc> d_sums(sums_memory.data(), shape), d_inputs(inputs_memory.data(), shape);
  backward(layer.out_proj, d_out, saved.out_proj, d_gated, gradients.out_proj, {}, execution);
  const TensorView3<const T> projected = std::as_const(saved.projected).view();
  const MultiHeadAttentionCall<T> call;
  layer.run(projected, detail::RowStates<T>(call, 0), gated, execution,
            [&](const TensorView3<Acc>& padded, const TensorView3<Acc>& convolved) {
              layer.for_tokens(projected, execution, [&](index_t b, index_t t, const T* of_token) {
                for (index_t i = 0; i < dim; ++i) {
                  const Acc d{d_gated(b, t, i)};
                  d_projected(b, t, dim + i) = static_cast<T>(d * convolved(b, t, i));
                  d_sums(b, t, i) = d * Acc{of_token[dim + i]};
                }
              });
              layer.convolution.backward(d_sums, padded, d_inputs, gradients.convolution,
                                         execution);
              layer.for_tokens(projected, execution, [&](index_t b, index_t t, const T* of_token) {
                for (index_t i = 0; i < dim; ++i) {
                  const Acc d = d_inputs(b, t, i);
                  d_projected(b, t, i) = static_cast<T>(d * Acc{of_token[2 * dim + i]});
                  d_projected(b, t, 2 * dim + i) = static_cast<T>(d * Acc{of_token[i]});
                }
              });
            });
  linear_backward(d_projected, std::as_const(saved.x).view(), layer.in_proj.weight, d_x,
                  gradients.in_proj.weight.view(), gradients.in_proj.bias.view(), residual,
                  execution);
}

ATTN_NAMESPACE_END
