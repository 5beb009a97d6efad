// Backward of EncoderLayer.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attn/layers/encoder_layer.hpp"
#include "attn/layers/sublayer_backward.hpp"

ATTN_NAMESPACE_BEGIN

/// Activations of one forward, each stored once: a sublayer writes its output where the next one
/// saves its input.
template <class T>
struct EncoderLayerSaved {
  MultiHeadAttentionSaved<T> self_attn;
  FeedForwardSaved<T> feed_forward;
  NormSaved<T> norm1, norm2;
  DropoutStep dropout;

  // The inputs of the layer and of its feed-forward sublayer.
  Saved<T, 3>& input(bool norm_first) { return norm_first ? norm1.x : self_attn.query; }
  Saved<T, 3>& feed_forward_input(bool norm_first) {
    return norm_first ? norm2.x : feed_forward.linear1.x;
  }
  index_t bytes() const {
    return self_attn.bytes() + feed_forward.bytes() + norm1.bytes() + norm2.bytes();
  }
};

/// EncoderLayer::forward() that saves for backward: x and out (batch, seq, d_model). Throws
/// ShapeError or ValueError.
template <class T, class... Functors>
void forward(const EncoderLayer<T>& layer, Input3<T> x, Output3<T> out, EncoderLayerSaved<T>& saved,
             const AttentionOptions<Accumulator<T>>& options = {},
             TensorView2<const index_t> position_ids = {}, const Functors&... functors) {
  check_shape("EncoderLayer", "out", x.shape(), out.shape());
  if (layer.norm1_behind.weight) {
    throw ValueError(message("EncoderLayer", "norm_behind", "be false in training", "true"));
  }
  x = saved.input(layer.norm_first).keep(x);
  const TensorView3<T> attended = saved.feed_forward_input(layer.norm_first).make(x.shape());
  detail::forward_self_attention<T>(layer, x, attended, saved, options, position_ids, functors...);
  detail::forward_feed_forward<T>(
      layer,
      detail::sublayer_steps<T>(layer, saved, layer.norm2, saved.norm2, detail::kAfterFeedForward),
      attended, out, saved, options.execution);
}

/// Sets d_x (batch, seq, d_model), which may be d_out, and adds the gradients of the parameters to
/// `gradients`. Pass the options, positions and functors of forward.
template <class T, class... Functors>
void backward(const EncoderLayer<T>& layer, Input3<T> d_out, EncoderLayerSaved<T>& saved,
              Output3<T> d_x, EncoderLayer<Accumulator<T>>& gradients,
              const AttentionOptions<Accumulator<T>>& options = {},
              TensorView2<const index_t> position_ids = {}, const Functors&... functors) {
  const Execution& execution = options.execution;
  Scratch<T> memory(execution.scratch(), d_out.size());
  const TensorView3<T> d_attended(memory.data(), d_out.shape());
  detail::backward_feed_forward<T>(
      layer,
      detail::sublayer_steps<T>(layer, saved, layer.norm2, saved.norm2, detail::kAfterFeedForward),
      d_out, d_attended, saved, gradients, gradients.norm2, execution);
  detail::backward_self_attention<T>(layer, d_attended, d_x, saved, gradients, options,
                                     position_ids, functors...);
}

ATTN_NAMESPACE_END
