// Backward of EncoderLayer.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attn/layers/encoder_layer.hpp"
#include "attn/layers/feed_forward_backward.hpp"
#include "attn/layers/multi_head_attention_backward.hpp"

ATTN_NAMESPACE_BEGIN

/// Stores each activation once: a sublayer writes its output where the next one saves its input.
template <class T>
struct EncoderLayerSaved {
  MultiHeadAttentionSaved<T> self_attn;
  FeedForwardSaved<T> feed_forward;
  NormSaved<T> norm1, norm2;
  DropoutStep dropout;

  /// Where the layer's input will be saved.
  Saved<T, 3>& input(bool norm_first) { return norm_first ? norm1.x : self_attn.query; }
  index_t bytes() const {
    return self_attn.bytes() + feed_forward.bytes() + norm1.bytes() + norm2.bytes();
  }
};

namespace detail {

/// The attention options of a training step: the layer's dropout, unless the call sets its own.
template <class T>
AttentionOptions<Accumulator<T>> training_options(AttentionOptions<Accumulator<T>> options,
                                                  const MultiHeadAttention<T>& layer,
                                                  const DropoutPlace& place) {
  if (options.dropout.p == 0 && place) {
    options.dropout = {layer.options().dropout, attention_seed(place)};
  }
  return options;
}

/// out = residual + dropout(f(.., out, its residual)): one pass if nothing is dropped.
template <class T, class F>
void add_branch(const DropoutPlace& place, const TensorView3<const T>& residual,
                const TensorView3<T>& out, const Execution& execution, F f) {
  if (!place) return f(residual);
  f(TensorView3<const T>());
  apply_dropout<T>(place, out, out, residual, execution);
}

/// The gradient of a branch from d_out: d_out itself, or d_out after dropout, in `memory`.
template <class T>
TensorView3<const T> branch_gradient(const DropoutPlace& place, const TensorView3<const T>& d_out,
                                     const TensorView3<T>& memory, const Execution& execution) {
  if (!place) return d_out;
  apply_dropout<T>(place, d_out, memory, {}, execution);
  return memory;
}

}  // namespace detail

/// EncoderLayer::forward() that saves activations: x and out (batch, seq, d_model). Throws
/// ShapeError or ValueError.
template <class T, class... Functors>
void forward(const EncoderLayer<T>& layer, Input3<T> x, Output3<T> out, EncoderLayerSaved<T>& saved,
             const AttentionOptions<Accumulator<T>>& options = {},
             TensorView2<const index_t> position_ids = {}, const Functors&... functors) {
  check_shape("EncoderLayer", "out", x.shape(), out.shape());
  if (layer.norm1_behind.weight) {
    throw ValueError(message("EncoderLayer", "norm_behind", "be false in training", "true"));
  }
  const Execution& execution = options.execution;
  x = saved.input(layer.norm_first).keep(x);
  const detail::DropoutPlace after_attention{layer.dropout, saved.dropout, detail::kAfterAttention},
      after_feed_forward{layer.dropout, saved.dropout, detail::kAfterFeedForward};
  saved.feed_forward.dropout = {layer.dropout, saved.dropout, detail::kAfterActivation};
  const auto attend = [&](const TensorView3<const T>& from, const TensorView3<T>& to) {
    detail::add_branch<T>(after_attention, x, to, execution, [&](const auto& residual) {
      forward(layer.self_attn, from, from, from, to, saved.self_attn,
              detail::training_options(options, layer.self_attn, after_attention),
              {.residual = residual, .position_ids = position_ids}, functors...);
    });
  };
  const auto feed = [&](const TensorView3<const T>& from, const TensorView3<const T>& added,
                        const TensorView3<T>& to) {
    detail::add_branch<T>(after_feed_forward, added, to, execution, [&](const auto& residual) {
      forward(layer.feed_forward, from, to, saved.feed_forward, residual, execution);
    });
  };
  if (layer.norm_first) {
    const TensorView3<T> normed = saved.self_attn.query.make(x.shape());
    const TensorView3<T> attended = saved.norm2.x.make(x.shape());
    const TensorView3<T> normed2 = saved.feed_forward.linear1.x.make(x.shape());
    forward(layer.norm1, x, normed, saved.norm1, execution);
    attend(normed, attended);
    forward(layer.norm2, attended, normed2, saved.norm2, execution);
    feed(normed2, attended, out);
  } else {
    const TensorView3<T> sum1 = saved.norm1.x.make(x.shape());
    const TensorView3<T> attended = saved.feed_forward.linear1.x.make(x.shape());
    const TensorView3<T> sum2 = saved.norm2.x.make(x.shape());
    attend(x, sum1);
    forward(layer.norm1, sum1, attended, saved.norm1, execution);
    feed(attended, attended, sum2);
    forward(layer.norm2, sum2, out, saved.norm2, execution);
  }
}

/// Computes d_x (batch, seq, d_model), which may be d_out; adds the gradients of the parameters to
/// `gradients`.
template <class T, class... Functors>
void backward(const EncoderLayer<T>& layer, Input3<T> d_out, EncoderLayerSaved<T>& saved,
              Output3<T> d_x, EncoderLayer<Accumulator<T>>& gradients,
              const AttentionOptions<Accumulator<T>>& options = {},
              TensorView2<const index_t> position_ids = {}, const Functors&... functors) {
  const Execution& execution = options.execution;
  const detail::DropoutPlace after_attention{layer.dropout, saved.dropout, detail::kAfterAttention},
      after_feed_forward{layer.dropout, saved.dropout, detail::kAfterFeedForward};
  Scratch<T> memory(execution.scratch(), (layer.dropout > 0 ? 3 : 2) * d_out.size());
  const TensorView3<T> first(memory.data(), d_out.shape());
  const TensorView3<T> second(memory.data() + d_out.size(), d_out.shape());
  const TensorView3<T> dropped(memory.data() + 2 * d_out.size(), d_out.shape());
  // d_x = the gradient of the attention branch from d + residual.
  const auto attend = [&](const TensorView3<const T>& d, const TensorView3<T>& to,
                          const TensorView3<const T>& residual) {
    backward(layer.self_attn, detail::branch_gradient<T>(after_attention, d, dropped, execution),
             saved.self_attn, {.d_query = to, .query_residual = residual}, gradients.self_attn,
             detail::training_options(options, layer.self_attn, after_attention), position_ids,
             functors...);
  };
  const auto feed = [&](const TensorView3<const T>& d, const TensorView3<T>& to,
                        const TensorView3<const T>& residual) {
    backward(layer.feed_forward,
             detail::branch_gradient<T>(after_feed_forward, d, dropped, execution),
             saved.feed_forward, to, gradients.feed_forward, residual, execution);
  };
  if (layer.norm_first) {
    feed(d_out, first, {});
    backward(layer.norm2, first, saved.norm2, second, gradients.norm2, d_out, execution);
    attend(second, first, {});
    backward(layer.norm1, first, saved.norm1, d_x, gradients.norm1, second, execution);
  } else {
    backward(layer.norm2, d_out, saved.norm2, first, gradients.norm2, {}, execution);
    feed(first, second, first);
    backward(layer.norm1, second, saved.norm1, first, gradients.norm1, {}, execution);
    attend(first, d_x, first);
  }
}

ATTN_NAMESPACE_END
