// Backward of DecoderLayer.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attn/layers/decoder_layer.hpp"
#include "attn/layers/encoder_layer_backward.hpp"

ATTN_NAMESPACE_BEGIN

template <class T>
struct DecoderLayerSaved {
  MultiHeadAttentionSaved<T> self_attn, multihead_attn;
  FeedForwardSaved<T> feed_forward;
  NormSaved<T> norm1, norm2, norm3;
  DropoutStep dropout;

  /// See EncoderLayerSaved.
  Saved<T, 3>& input(bool norm_first) { return norm_first ? norm1.x : self_attn.query; }
  index_t bytes() const {
    return self_attn.bytes() + multihead_attn.bytes() + feed_forward.bytes() + norm1.bytes() +
           norm2.bytes() + norm3.bytes();
  }
};

namespace detail {

/// Indices of the dropout after self-attention, attention to memory and feed-forward.
struct DecoderDropout {
  DropoutPlace self, memory, feed_forward;

  DecoderDropout(double p, const DropoutStep& at)
      : self{p, at, kAfterAttention},
        memory{p, at, kAfterMemoryAttention},
        feed_forward{p, at, kAfterFeedForward} {}
};

/// The options of attention to memory, with the execution of self-attention.
template <class T>
AttentionOptions<Accumulator<T>> memory_options(const DecoderCall<T>& call,
                                                const Execution& execution) {
  AttentionOptions<Accumulator<T>> options = call.memory;
  options.execution = execution;
  return options;
}

}  // namespace detail

/// DecoderLayer::forward() that saves activations: x and out (batch, tgt_len, d_model), memory
/// (batch, src_len, d_model). Functors apply to self-attention. Throws ShapeError or ValueError.
template <class T, class... Functors>
void forward(const DecoderLayer<T>& layer, Input3<T> x, Input3<T> memory, Output3<T> out,
             DecoderLayerSaved<T>& saved, const AttentionOptions<Accumulator<T>>& options = {},
             const DecoderCall<T>& call = {}, const Functors&... functors) {
  check_shape("DecoderLayer", "out", x.shape(), out.shape());
  const Execution& execution = options.execution;
  const detail::DecoderDropout dropout(layer.dropout, saved.dropout);
  saved.feed_forward.dropout = {layer.dropout, saved.dropout, detail::kAfterActivation};
  x = saved.input(layer.norm_first).keep(x);
  const auto attend = [&](const TensorView3<const T>& from, const TensorView3<T>& to) {
    detail::add_branch<T>(dropout.self, x, to, execution, [&](const auto& residual) {
      forward(layer.self_attn, from, from, from, to, saved.self_attn,
              detail::training_options(options, layer.self_attn, dropout.self),
              {.residual = residual, .position_ids = call.position_ids}, functors...);
    });
  };
  const auto look = [&](const TensorView3<const T>& from, const TensorView3<const T>& added,
                        const TensorView3<T>& to) {
    detail::add_branch<T>(dropout.memory, added, to, execution, [&](const auto& residual) {
      forward(layer.multihead_attn, from, memory, memory, to, saved.multihead_attn,
              detail::training_options(detail::memory_options(call, execution),
                                       layer.multihead_attn, dropout.memory),
              {.residual = residual});
    });
  };
  const auto feed = [&](const TensorView3<const T>& from, const TensorView3<const T>& added,
                        const TensorView3<T>& to) {
    detail::add_branch<T>(dropout.feed_forward, added, to, execution, [&](const auto& residual) {
      forward(layer.feed_forward, from, to, saved.feed_forward, residual, execution);
    });
  };
  if (layer.norm_first) {
    const TensorView3<T> normed1 = saved.self_attn.query.make(x.shape());
    const TensorView3<T> first = saved.norm2.x.make(x.shape());
    const TensorView3<T> normed2 = saved.multihead_attn.query.make(x.shape());
    const TensorView3<T> second = saved.norm3.x.make(x.shape());
    const TensorView3<T> normed3 = saved.feed_forward.linear1.x.make(x.shape());
    forward(layer.norm1, x, normed1, saved.norm1, execution);
    attend(normed1, first);
    forward(layer.norm2, first, normed2, saved.norm2, execution);
    look(normed2, first, second);
    forward(layer.norm3, second, normed3, saved.norm3, execution);
    feed(normed3, second, out);
  } else {
    const TensorView3<T> sum1 = saved.norm1.x.make(x.shape());
    const TensorView3<T> first = saved.multihead_attn.query.make(x.shape());
    const TensorView3<T> sum2 = saved.norm2.x.make(x.shape());
    const TensorView3<T> second = saved.feed_forward.linear1.x.make(x.shape());
    const TensorView3<T> sum3 = saved.norm3.x.make(x.shape());
    attend(x, sum1);
    forward(layer.norm1, sum1, first, saved.norm1, execution);
    look(first, first, sum2);
    forward(layer.norm2, sum2, second, saved.norm2, execution);
    feed(second, second, sum3);
    forward(layer.norm3, sum3, out, saved.norm3, execution);
  }
}

/// Computes d_x (batch, tgt_len, d_model), which may be d_out; adds to d_memory (batch, src_len,
/// d_model) and to the gradients of the parameters in `gradients`.
template <class T, class... Functors>
void backward(const DecoderLayer<T>& layer, Input3<T> d_out, DecoderLayerSaved<T>& saved,
              Output3<T> d_x, Output3<T> d_memory, DecoderLayer<Accumulator<T>>& gradients,
              const AttentionOptions<Accumulator<T>>& options = {}, const DecoderCall<T>& call = {},
              const Functors&... functors) {
  const Execution& execution = options.execution;
  const detail::DecoderDropout dropout(layer.dropout, saved.dropout);
  Scratch<T> memory(execution.scratch(), (layer.dropout > 0 ? 3 : 2) * d_out.size());
  const TensorView3<T> first(memory.data(), d_out.shape());
  const TensorView3<T> second(memory.data() + d_out.size(), d_out.shape());
  const TensorView3<T> dropped(memory.data() + 2 * d_out.size(), d_out.shape());
  const auto attend = [&](const TensorView3<const T>& d, const TensorView3<T>& to,
                          const TensorView3<const T>& residual) {
    backward(layer.self_attn, detail::branch_gradient<T>(dropout.self, d, dropped, execution),
             saved.self_attn, {.d_query = to, .query_residual = residual}, gradients.self_attn,
             detail::training_options(options, layer.self_attn, dropout.self), call.position_ids,
             functors...);
  };
  const auto look = [&](const TensorView3<const T>& d, const TensorView3<T>& to,
                        const TensorView3<const T>& residual) {
    backward(
        layer.multihead_attn, detail::branch_gradient<T>(dropout.memory, d, dropped, execution),
        saved.multihead_attn,
        {.d_query = to, .d_key = d_memory, .query_residual = residual, .key_residual = d_memory},
        gradients.multihead_attn,
        detail::training_options(detail::memory_options(call, execution), layer.multihead_attn,
                                 dropout.memory));
  };
  const auto feed = [&](const TensorView3<const T>& d, const TensorView3<T>& to,
                        const TensorView3<const T>& residual) {
    backward(layer.feed_forward,
             detail::branch_gradient<T>(dropout.feed_forward, d, dropped, execution),
             saved.feed_forward, to, gradients.feed_forward, residual, execution);
  };
  if (layer.norm_first) {
    feed(d_out, first, {});
    backward(layer.norm3, first, saved.norm3, second, gradients.norm3, d_out, execution);
    look(second, first, {});
    backward(layer.norm2, first, saved.norm2, second, gradients.norm2, second, execution);
    attend(second, first, {});
    backward(layer.norm1, first, saved.norm1, d_x, gradients.norm1, second, execution);
  } else {
    backward(layer.norm3, d_out, saved.norm3, first, gradients.norm3, {}, execution);
    feed(first, second, first);
    backward(layer.norm2, second, saved.norm2, first, gradients.norm2, {}, execution);
    look(first, second, first);
    backward(layer.norm1, second, saved.norm1, first, gradients.norm1, {}, execution);
    attend(first, d_x, first);
  }
}

ATTN_NAMESPACE_END
