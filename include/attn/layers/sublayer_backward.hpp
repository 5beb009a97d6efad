// Backward of sublayers: norm, attention or feed-forward, dropout and residual.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attn/layers/feed_forward_backward.hpp"
#include "attn/layers/multi_head_attention_backward.hpp"

ATTN_NAMESPACE_BEGIN

namespace detail {

/// Attention options for training: without dropout in the call, that of the layer.
template <class T>
AttentionOptions<Accumulator<T>> training_options(AttentionOptions<Accumulator<T>> options,
                                                  const MultiHeadAttention<T>& layer,
                                                  const DropoutPlace& dropout) {
  if (options.dropout.p == 0 && dropout) {
    options.dropout = {.p = layer.options().dropout, .seed = attention_seed(dropout)};
  }
  return options;
}

/// Norm and dropout around an attention or feed-forward `f`: x + dropout(f(norm(x))) with
/// norm_first, else norm(x + dropout(f(x))). Tensors are (batch, seq, d_model).
template <class T>
struct SublayerSteps {
  const Norm<T>& norm;
  NormSaved<T>& norm_saved;
  bool norm_first;
  DropoutPlace dropout;
};

template <class T, class Layer, class LayerSaved>
SublayerSteps<T> sublayer_steps(const Layer& layer, LayerSaved& saved, const Norm<T>& norm,
                                NormSaved<T>& norm_saved, index_t place) {
  return {.norm = norm,
          .norm_saved = norm_saved,
          .norm_first = layer.norm_first,
          .dropout = {.p = layer.dropout, .at = saved.dropout, .place = place}};
}

/// Forward that saves for backward. run(from, residual, to) computes to = f(from) + residual and
/// saves `from` in `input`.
template <class T, class F>
void forward_sublayer(const SublayerSteps<T>& steps, const TensorView3<const T>& x,
                      const TensorView3<T>& out, Saved<T, 3>& input, const Execution& execution,
                      F run) {
  const auto add_branch = [&](const TensorView3<const T>& from, const TensorView3<T>& to) {
    if (!steps.dropout) return run(from, x, to);
    run(from, TensorView3<const T>(), to);
    apply_dropout<T>(steps.dropout, to, to, x, execution);
  };
  if (steps.norm_first) {
    const TensorView3<T> normed = input.make(x.shape());
    forward(steps.norm, x, normed, steps.norm_saved, execution);
    add_branch(normed, out);
  } else {
    const TensorView3<T> sum = steps.norm_saved.x.make(x.shape());
    add_branch(x, sum);
    forward(steps.norm, sum, out, steps.norm_saved, execution);
  }
}

/// Sets d_x, which may be d_out, to the gradient of x, and adds the gradients of the norm to
/// `gradients`. run(d, residual, to) computes to = residual + the gradient of f's input, from the
/// gradient d of f's output.
template <class T, class F>
void backward_sublayer(const SublayerSteps<T>& steps, const TensorView3<const T>& d_out,
                       const TensorView3<T>& d_x, Norm<Accumulator<T>>& gradients,
                       const Execution& execution, F run) {
  Scratch<T> memory(execution.scratch(), (steps.dropout ? 2 : 1) * d_out.size());
  const TensorView3<T> between(memory.data(), d_out.shape());
  const auto run_branch = [&](const TensorView3<const T>& d, const TensorView3<const T>& residual,
                              const TensorView3<T>& to) {
    if (!steps.dropout) return run(d, residual, to);
    const TensorView3<T> dropped(memory.data() + d_out.size(), d_out.shape());
    apply_dropout<T>(steps.dropout, d, dropped, {}, execution);
    run(dropped, residual, to);
  };
  if (steps.norm_first) {
    run_branch(d_out, TensorView3<const T>(), between);
    backward(steps.norm, between, steps.norm_saved, d_x, gradients, d_out, execution);
  } else {
    backward(steps.norm, d_out, steps.norm_saved, between, gradients, {}, execution);
    run_branch(between, between, d_x);
  }
}

/// Self-attention, the first sublayer of EncoderLayer and DecoderLayer.
template <class T, class Layer, class LayerSaved, class... Functors>
void forward_self_attention(const Layer& layer, const TensorView3<const T>& x,
                            const TensorView3<T>& out, LayerSaved& saved,
                            const AttentionOptions<Accumulator<T>>& options,
                            TensorView2<const index_t> position_ids, const Functors&... functors) {
  const SublayerSteps<T> steps =
      sublayer_steps<T>(layer, saved, layer.norm1, saved.norm1, kAfterAttention);
  forward_sublayer<T>(steps, x, out, saved.self_attn.query, options.execution,
                      [&](const auto& from, const auto& residual, const auto& to) {
                        forward(layer.self_attn, from, from, from, to, saved.self_attn,
                                training_options(options, layer.self_attn, steps.dropout),
                                {.residual = residual, .position_ids = position_ids}, functors...);
                      });
}

template <class T, class Layer, class LayerSaved, class Gradients, class... Functors>
void backward_self_attention(const Layer& layer, const TensorView3<const T>& d_out,
                             const TensorView3<T>& d_x, LayerSaved& saved, Gradients& gradients,
                             const AttentionOptions<Accumulator<T>>& options,
                             TensorView2<const index_t> position_ids, const Functors&... functors) {
  const SublayerSteps<T> steps =
      sublayer_steps<T>(layer, saved, layer.norm1, saved.norm1, kAfterAttention);
  backward_sublayer<T>(steps, d_out, d_x, gradients.norm1, options.execution,
                       [&](const auto& d, const auto& residual, const auto& to) {
                         backward(layer.self_attn, d, saved.self_attn,
                                  {.d_query = to, .query_residual = residual}, gradients.self_attn,
                                  training_options(options, layer.self_attn, steps.dropout),
                                  position_ids, functors...);
                       });
}

/// Feed-forward, the last sublayer of EncoderLayer and DecoderLayer.
template <class T, class Layer, class LayerSaved>
void forward_feed_forward(const Layer& layer, const SublayerSteps<T>& steps,
                          const TensorView3<const T>& x, const TensorView3<T>& out,
                          LayerSaved& saved, const Execution& execution) {
  saved.feed_forward.dropout = {.p = layer.dropout, .at = saved.dropout, .place = kAfterActivation};
  forward_sublayer<T>(steps, x, out, saved.feed_forward.linear1.x, execution,
                      [&](const auto& from, const auto& residual, const auto& to) {
                        forward(layer.feed_forward, from, to, saved.feed_forward, residual,
                                execution);
                      });
}

template <class T, class Layer, class LayerSaved, class Gradients>
void backward_feed_forward(const Layer& layer, const SublayerSteps<T>& steps,
                           const TensorView3<const T>& d_out, const TensorView3<T>& d_x,
                           LayerSaved& saved, Gradients& gradients, Norm<Accumulator<T>>& d_norm,
                           const Execution& execution) {
  backward_sublayer<T>(steps, d_out, d_x, d_norm, execution,
                       [&](const auto& d, const auto& residual, const auto& to) {
                         backward(layer.feed_forward, d, saved.feed_forward, to,
                                  gradients.feed_forward, residual, execution);
                       });
}

}  // namespace detail

ATTN_NAMESPACE_END
