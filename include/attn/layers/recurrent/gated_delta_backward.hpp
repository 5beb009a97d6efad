// Backward of GatedDelta, and the forward that saves.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attn/layers/linear_backward.hpp"
#include "attn/layers/recurrent/gated_delta.hpp"
#include "attn/layers/recurrent/gated_delta_steps_backward.hpp"

ATTN_NAMESPACE_BEGIN

template <class T>
struct GatedDeltaSaved {
  Saved<T, 3> x;
  Saved<T, 3> projected, ba;         ///< the results of in_proj_qkvz and in_proj_ba
  Saved<Accumulator<T>, 3> results;  ///< of linear attention
  LinearSaved<T> out_proj;           ///< the normalised results

  index_t bytes() const {
    return x.bytes() + projected.bytes() + ba.bytes() + results.bytes() + out_proj.bytes();
  }
};

/// GatedDelta::forward() that saves activations: x, out and residual (batch, seq, d_model). Throws
/// ShapeError.
template <class T>
void forward(const GatedDelta<T>& layer, Input3<T> x, Output3<T> out, GatedDeltaSaved<T>& saved,
             Input3<T> residual = {}, const Execution& execution = {}) {
  const GatedDeltaOptions& o = layer.options();
  const MultiHeadAttentionCall<T> call{.residual = residual};
  detail::check_recurrent_call("GatedDelta", o.d_model, layer.state_size(), x.shape(), out.shape(),
                               call);
  const auto of_width = [&](index_t width) { return Shape<3>{x.extent(0), x.extent(1), width}; };
  x = saved.x.keep(x);
  const TensorView3<T> projected =
      saved.projected.make(of_width(layer.in_proj_qkvz.out_features()));
  const TensorView3<T> ba = saved.ba.make(of_width(layer.in_proj_ba.out_features()));
  const TensorView3<T> normed = saved.out_proj.x.make(of_width(o.values_width()));
  linear(x, layer.in_proj_qkvz.weight, {}, projected, Activation::none, {}, execution);
  linear(x, layer.in_proj_ba.weight, {}, ba, Activation::none, {}, execution);
  layer.run(projected, ba, detail::RowStates<T>(call, 0), saved.results.make(normed.shape()),
            normed, execution);
  forward(layer.out_proj, normed, out, saved.out_proj, residual, execution);
}

/// Computes d_x (batch, seq, d_model) = its gradient + residual, and adds the gradients of the
/// parameters to `gradients`. d_x may be the residual. Throws ShapeError before anything is
/// written.
template <class T>
void backward(const GatedDelta<T>& layer, Input3<T> d_out, GatedDeltaSaved<T>& saved,
              Output3<T> d_x, GatedDelta<Accumulator<T>>& gradients, Input3<T> residual = {},
              const Execution& execution = {}) {
  using Acc = Accumulator<T>;
  const GatedDeltaOptions& o = layer.options();
  const TensorView3<const T> x = std::as_const(saved.x).view(),
                             projected = std::as_const(saved.projected).view(),
                             ba = std::as_const(saved.ba).view();
  const TensorView3<const Acc> results = std::as_const(saved.results).view();
  detail::check_recurrent_backward<T>("GatedDelta", x.shape(), d_out, d_x, residual);
  Workspace& workspace = execution.scratch();
  const index_t batch = x.extent(0), seq = x.extent(1);
  const detail::DeltaInputs<Acc> inputs(o, batch, seq, workspace),
      d_inputs(o, batch, seq, workspace);
  Scratch<T> normed_memory(workspace, results.size()), joint_memory(workspace, projected.size()),
      gates_memory(workspace, ba.size());
  const Shape<3> padded_shape = layer.convolution.padded_shape(batch, seq);
  Scratch<Acc> results_memory(workspace, results.size()),
      padded_memory(workspace, size_of(padded_shape)),
      convolved_memory(workspace, inputs.mixed.size());
  const TensorView3<T> d_normed(normed_memory.data(), results.shape()),
      d_projected(joint_memory.data(), projected.shape()), d_ba(gates_memory.data(), ba.shape());
  const TensorView3<Acc> d_results(results_memory.data(), results.shape()),
      padded(padded_memory.data(), padded_shape),
      convolved(convolved_memory.data(), inputs.mixed.shape());

  backward(layer.out_proj, d_out, saved.out_proj, d_normed, gradients.out_proj, {}, execution);
  detail::gated_norm_backward<T>(o, d_normed, results, projected, layer.norm.weight.view(),
                                 d_results, d_projected, gradients.norm.weight.view(), execution);
  const MultiHeadAttentionCall<T> call;
  layer.prepare(projected, ba, detail::RowStates<T>(call, 0), padded, inputs, convolved, execution);
  detail::delta_attention_backward<Acc>(o, d_results, inputs, d_inputs, execution);
  detail::delta_rates_backward<T>(o, ba, layer.a_log.view(), layer.dt_bias.view(), inputs, d_inputs,
                                  d_ba, gradients.a_log.view(), gradients.dt_bias.view());
  detail::normalize_keys_backward<Acc>(o, convolved, inputs.mixed, d_inputs.mixed, execution);
  activate_backward(Activation::silu, d_inputs.mixed, convolved, d_inputs.mixed, execution);
  // Nothing reads the result of the convolution from here on.
  layer.convolution.backward(d_inputs.mixed, padded, convolved, gradients.convolution, execution);
  detail::scatter_channels<T>(o, convolved, d_projected, execution);
  linear_backward(d_ba, x, layer.in_proj_ba.weight, d_x, gradients.in_proj_ba.weight.view(), {},
                  residual, execution);
  linear_backward(d_projected, x, layer.in_proj_qkvz.weight, d_x,
                  gradients.in_proj_qkvz.weight.view(), {}, d_x, execution);
}

ATTN_NAMESPACE_END
