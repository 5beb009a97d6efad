// Backward of DecoderLayer.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attn/layers/decoder_layer.hpp"
#include "attn/layers/sublayer_backward.hpp"

ATTN_NAMESPACE_BEGIN

/// Activations of one forward; see EncoderLayerSaved.
template <class T>
struct DecoderLayerSaved {
  MultiHeadAttentionSaved<T> self_attn, multihead_attn;
  FeedForwardSaved<T> feed_forward;
  NormSaved<T> norm1, norm2, norm3;
  DropoutStep dropout;

  // The inputs of the layer and of its cross-attention and feed-forward sublayers.
  Saved<T, 3>& input(const DecoderLayer<T>& layer) {
    return layer.norm_first && layer.norm1.weight ? norm1.x : self_attn.query;
  }
  Saved<T, 3>& cross_attention_input(bool norm_first) {
    return norm_first ? norm2.x : multihead_attn.query;
  }
  Saved<T, 3>& feed_forward_input(bool norm_first) {
    return norm_first ? norm3.x : feed_forward.linear1.x;
  }
  index_t bytes() const {
    return self_attn.bytes() + multihead_attn.bytes() + feed_forward.bytes() + norm1.bytes() +
           norm2.bytes() + norm3.bytes();
  }
};

namespace detail {

/// The steps of one sublayer of a DecoderLayer, selected by its norm.
template <class T>
SublayerSteps<T> decoder_steps(const DecoderLayer<T>& layer, DecoderLayerSaved<T>& saved,
                               const Norm<T>& norm, NormSaved<T>& norm_saved, index_t place) {
  return {.norms = {.norm = &norm, .behind = nullptr, .norm_first = layer.norm_first, .scale = 1},
          .norm_saved = &norm_saved,
          .dropout = {.p = layer.dropout, .at = saved.dropout, .place = place}};
}

/// The options of cross-attention, with the execution of self-attention.
template <class T>
AttentionOptions<Accumulator<T>> cross_attention_options(const DecoderLayer<T>& layer,
                                                         const DecoderCall<T>& call,
                                                         const DropoutPlace& dropout,
                                                         const Execution& execution) {
  AttentionOptions<Accumulator<T>> options = call.memory;
  options.execution = execution;
  return training_options(options, layer.multihead_attn, dropout);
}

}  // namespace detail

/// DecoderLayer::forward() that saves for backward: x and out (batch, tgt_len, d_model), memory
/// (batch, src_len, d_model). Only self-attention applies the functors. Throws ShapeError or
/// ValueError.
template <class T, class... Functors>
void forward(const DecoderLayer<T>& layer, Input3<T> x, Input3<T> memory, Output3<T> out,
             DecoderLayerSaved<T>& saved, const AttentionOptions<Accumulator<T>>& options = {},
             const DecoderCall<T>& call = {}, const Functors&... functors) {
  check_shape("DecoderLayer", "out", x.shape(), out.shape());
  const Execution& execution = options.execution;
  x = saved.input(layer).keep(x);
  const TensorView3<T> first = saved.cross_attention_input(layer.norm_first).make(x.shape());
  const TensorView3<T> second = saved.feed_forward_input(layer.norm_first).make(x.shape());
  detail::forward_self_attention<T>(
      layer, detail::decoder_steps(layer, saved, layer.norm1, saved.norm1, detail::kAfterAttention),
      x, first, saved, options, call.position_ids, functors...);
  const detail::SublayerSteps<T> cross_attention =
      detail::decoder_steps(layer, saved, layer.norm2, saved.norm2, detail::kAfterMemoryAttention);
  detail::forward_sublayer<T>(
      cross_attention, first, first, second, saved.multihead_attn.query, execution,
      [&](const auto& from, const auto& residual, const auto& to) {
        forward(layer.multihead_attn, from, memory, memory, to, saved.multihead_attn,
                detail::cross_attention_options(layer, call, cross_attention.dropout, execution),
                {.residual = residual});
      });
  detail::forward_feed_forward<T>(
      layer,
      detail::decoder_steps(layer, saved, layer.norm3, saved.norm3, detail::kAfterFeedForward),
      second, second, out, saved, execution);
}

/// Sets d_x (batch, tgt_len, d_model), which may be d_out; adds the gradient of memory to d_memory
/// (batch, src_len, d_model) and the gradients of the parameters to `gradients`. Pass the options,
/// call and functors of forward.
template <class T, class... Functors>
void backward(const DecoderLayer<T>& layer, Input3<T> d_out, DecoderLayerSaved<T>& saved,
              Output3<T> d_x, Output3<T> d_memory, DecoderLayer<Accumulator<T>>& gradients,
              const AttentionOptions<Accumulator<T>>& options = {}, const DecoderCall<T>& call = {},
              const Functors&... functors) {
  const Execution& execution = options.execution;
  Scratch<T> scratch(execution.scratch(), d_out.size());
  const TensorView3<T> d(scratch.data(), d_out.shape());
  detail::backward_feed_forward<T>(
      layer,
      detail::decoder_steps(layer, saved, layer.norm3, saved.norm3, detail::kAfterFeedForward),
      d_out, d, saved, gradients, {.norm = &gradients.norm3}, execution);
  const detail::SublayerSteps<T> cross_attention =
      detail::decoder_steps(layer, saved, layer.norm2, saved.norm2, detail::kAfterMemoryAttention);
  detail::backward_sublayer<T>(
      cross_attention, d, d, d, {.norm = &gradients.norm2}, execution,
      [&](const auto& d_branch, const auto& residual, const auto& to) {
        backward(layer.multihead_attn, d_branch, saved.multihead_attn,
                 {.d_query = to,
                  .d_key = d_memory,
                  .query_residual = residual,
                  .key_residual = d_memory},
                 gradients.multihead_attn,
                 detail::cross_attention_options(layer, call, cross_attention.dropout, execution));
      });
  detail::backward_self_attention<T>(
      layer, detail::decoder_steps(layer, saved, layer.norm1, saved.norm1, detail::kAfterAttention),
      d, d, d_x, saved, gradients, {.norm = &gradients.norm1}, options, call.position_ids,
      functors...);
}

ATTN_NAMESPACE_END
