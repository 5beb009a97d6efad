// Backward of FeedForward.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attn/layers/feed_forward.hpp"
#include "attn/layers/linear_backward.hpp"
#include "attn/layers/module/dropout.hpp"

ATTN_NAMESPACE_BEGIN

template <class T>
struct FeedForwardSaved {
  LinearSaved<T> linear1,
      linear2;                   ///< inputs of both; that of the second is the activation's output
  Saved<T, 3> before;            ///< output of linear1; gated: the gate, then up
  detail::DropoutPlace dropout;  ///< after the activation; set by layers

  index_t bytes() const { return linear1.bytes() + linear2.bytes() + before.bytes(); }
};

/// FeedForward::forward() that saves activations: x, out and residual (batch, seq, d_model). Throws
/// ShapeError.
template <class T>
void forward(const FeedForward<T>& layer, Input3<T> x, Output3<T> out, FeedForwardSaved<T>& saved,
             Input3<T> residual = {}, const Execution& execution = {}) {
  Shape<3> shape = x.shape();
  shape[2] = layer.linear1.weight.extent(0);
  const TensorView3<T> before = saved.before.make(shape);
  forward(layer.linear1, x, before, saved.linear1, {}, execution);
  shape[2] = layer.linear2.weight.extent(1);
  const TensorView3<T> hidden = saved.linear2.x.make(shape);
  if (layer.gated) {
    glu(layer.gated_unit(), before.slice(2, 0, shape[2]), before.slice(2, shape[2], 2 * shape[2]),
        hidden, execution);
  } else {
    activate(layer.activation, before, hidden, execution);
  }
  if (saved.dropout) detail::apply_dropout<T>(saved.dropout, hidden, hidden, {}, execution);
  forward(layer.linear2, hidden, out, saved.linear2, residual, execution);
}

/// Computes d_x (batch, seq, d_model) = its gradient + residual; adds the gradients of the
/// parameters to `gradients`.
template <class T>
void backward(const FeedForward<T>& layer, Input3<T> d_out, const FeedForwardSaved<T>& saved,
              Output3<T> d_x, FeedForward<Accumulator<T>>& gradients, Input3<T> residual = {},
              const Execution& execution = {}) {
  const TensorView3<const T> before = saved.before.view();
  const index_t half = layer.linear2.weight.extent(1);
  Shape<3> shape = before.shape();
  shape[2] = half;
  Scratch<T> memory(execution.scratch(), before.size() + (layer.gated ? size_of(shape) : 0));
  const TensorView3<T> d_before(memory.data(), before.shape());
  const TensorView3<T> d_hidden =
      layer.gated ? TensorView3<T>(memory.data() + before.size(), shape) : d_before;
  backward(layer.linear2, d_out, saved.linear2, d_hidden, gradients.linear2, {}, execution);
  if (saved.dropout) detail::apply_dropout<T>(saved.dropout, d_hidden, d_hidden, {}, execution);
  if (layer.gated) {
    glu_backward(layer.gated_unit(), d_hidden, before.slice(2, 0, half),
                 before.slice(2, half, 2 * half), d_before.slice(2, 0, half),
                 d_before.slice(2, half, 2 * half), execution);
  } else {
    activate_backward(layer.activation, d_before, before, d_before, execution);
  }
  backward(layer.linear1, d_before, saved.linear1, d_x, gradients.linear1, residual, execution);
}

ATTN_NAMESPACE_END
