// Backward of sublayers: norm, attention or feed-forward, dropout and residual.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attn/layers/feed_forward_backward.hpp"
#include "attn/layers/multi_head_attention_backward.hpp"
#include "attn/layers/sublayer.hpp"

ATTN_NAMESPACE_BEGIN

namespace detail {

/// Attention options for training: dropout is that of the layer if the call has none.
template <class Acc, class Attention>
AttentionOptions<Acc> training_options(AttentionOptions<Acc> options, const Attention& layer,
                                       const DropoutPlace& dropout) {
  if (options.dropout.p == 0 && dropout) {
    options.dropout = {.p = layer.options().dropout, .seed = attention_seed(dropout)};
  }
  return options;
}

/// Norms and dropout around an attention or feed-forward, and their saved inputs. `behind_saved` is
/// used only with norms.behind.
template <class T>
struct SublayerSteps {
  SublayerNorms<T> norms;
  NormSaved<T>* norm_saved;
  NormSaved<T>* behind_saved = nullptr;
  DropoutPlace dropout = {};
};

/// Gradients of the norms of SublayerSteps.
template <class T>
struct SublayerGradients {
  Norm<Accumulator<T>>* norm;
  Norm<Accumulator<T>>* behind = nullptr;
};

/// The forward of SublayerNorms, with dropout after f or after norms.behind, that saves for
/// backward. run(from, residual, to) computes to = f(from) + residual and saves `from` in `input`.
template <class T, class F>
void forward_sublayer(const SublayerSteps<T>& steps, const TensorView3<const T>& x,
                      const TensorView3<const T>& residual, const TensorView3<T>& out,
                      Saved<T, 3>& input, const Execution& execution, F run) {
  const SublayerNorms<T>& norms = steps.norms;
  const auto add_branch = [&](const TensorView3<const T>& from, const TensorView3<T>& to) {
    if (!norms.adds_residual() && !steps.dropout) return run(from, residual, to);
    if (!norms.adds_residual()) {
      run(from, TensorView3<const T>(), to);
      return apply_dropout<T>(steps.dropout, to, to, residual, execution);
    }
    Scratch<T> memory(execution.scratch(), x.size());
    const TensorView3<T> branch(memory.data(), x.shape());
    if (norms.has_behind()) {
      const TensorView3<T> result = steps.behind_saved->x.make(x.shape());
      run(from, TensorView3<const T>(), result);
      forward(*norms.behind, result, branch, *steps.behind_saved, execution);
    } else {
      run(from, TensorView3<const T>(), branch);
    }
    if (steps.dropout) apply_dropout<T>(steps.dropout, branch, branch, {}, execution);
    add_scaled<T>(residual, norms.scale, branch, to, execution);
  };
  if (norms.is_post_norm()) {
    const TensorView3<T> sum = steps.norm_saved->x.make(x.shape());
    add_branch(x, sum);
    forward(*norms.norm, sum, out, *steps.norm_saved, execution);
  } else if (norms.is_pre_norm()) {
    const TensorView3<T> normed = input.make(x.shape());
    forward(*norms.norm, x, normed, *steps.norm_saved, execution);
    add_branch(normed, out);
  } else {
    add_branch(x, out);
  }
}

/// Sets d_x, which may be d_out or the residual, to the gradient of x + the residual, and adds the
/// gradients of the norms to `gradients`. run(d, residual, to) computes to = residual + the
/// gradient of f's input, from the gradient d of f's output. The residual is d_out, or the sum of
/// gradients from other sublayers that read x; post-norm has none.
template <class T, class F>
void backward_sublayer(const SublayerSteps<T>& steps, const TensorView3<const T>& d_out,
                       const TensorView3<const T>& residual, const TensorView3<T>& d_x,
                       const SublayerGradients<T>& gradients, const Execution& execution, F run) {
  const SublayerNorms<T>& norms = steps.norms;
  const bool changes = steps.dropout || norms.adds_residual();
  Scratch<T> memory(execution.scratch(), (changes ? 2 : 1) * d_out.size());
  const TensorView3<T> between(memory.data(), d_out.shape());
  const auto run_branch = [&](const TensorView3<const T>& d, const TensorView3<const T>& added,
                              const TensorView3<T>& to) {
    if (!changes) return run(d, added, to);
    const TensorView3<T> d_branch(memory.data() + d_out.size(), d_out.shape());
    TensorView3<const T> from = d;
    if (norms.scale != 1) {
      fill(d_branch, T{0});
      add_scaled<T>(d_branch, norms.scale, d, d_branch, execution);
      from = d_branch;
    }
    if (steps.dropout) {
      apply_dropout<T>(steps.dropout, from, d_branch, {}, execution);
      from = d_branch;
    }
    if (norms.has_behind()) {
      backward(*norms.behind, from, *steps.behind_saved, d_branch, *gradients.behind, {},
               execution);
      from = d_branch;
    }
    run(from, added, to);
  };
  if (norms.is_post_norm()) {
    backward(*norms.norm, d_out, *steps.norm_saved, between, *gradients.norm, {}, execution);
    run_branch(between, between, d_x);
  } else if (norms.is_pre_norm()) {
    run_branch(d_out, TensorView3<const T>(), between);
    backward(*norms.norm, between, *steps.norm_saved, d_x, *gradients.norm, residual, execution);
  } else {
    run_branch(d_out, residual, between);
    copy(between, d_x);
  }
}

/// Self-attention, the first sublayer of EncoderLayer and DecoderLayer.
template <class T, class Layer, class LayerSaved, class... Functors>
void forward_self_attention(const Layer& layer, const SublayerSteps<T>& steps,
                            const TensorView3<const T>& x, const TensorView3<T>& out,
                            LayerSaved& saved, const AttentionOptions<Accumulator<T>>& options,
                            TensorView2<const index_t> position_ids, const Functors&... functors) {
  forward_sublayer<T>(steps, x, x, out, saved.self_attn.query, options.execution,
                      [&](const auto& from, const auto& residual, const auto& to) {
                        forward(layer.self_attn, from, from, from, to, saved.self_attn,
                                training_options(options, layer.self_attn, steps.dropout),
                                {.residual = residual, .position_ids = position_ids}, functors...);
                      });
}

template <class T, class Layer, class LayerSaved, class Gradients, class... Functors>
void backward_self_attention(const Layer& layer, const SublayerSteps<T>& steps,
                             const TensorView3<const T>& d_out,
                             const TensorView3<const T>& residual, const TensorView3<T>& d_x,
                             LayerSaved& saved, Gradients& gradients,
                             const SublayerGradients<T>& d_norms,
                             const AttentionOptions<Accumulator<T>>& options,
                             TensorView2<const index_t> position_ids, const Functors&... functors) {
  backward_sublayer<T>(steps, d_out, residual, d_x, d_norms, options.execution,
                       [&](const auto& d, const auto& added, const auto& to) {
                         backward(layer.self_attn, d, saved.self_attn,
                                  {.d_query = to, .query_residual = added}, gradients.self_attn,
                                  training_options(options, layer.self_attn, steps.dropout),
                                  position_ids, functors...);
                       });
}

/// Feed-forward, the last sublayer of EncoderLayer and DecoderLayer.
template <class T, class Layer, class LayerSaved>
void forward_feed_forward(const Layer& layer, const SublayerSteps<T>& steps,
                          const TensorView3<const T>& x, const TensorView3<const T>& residual,
                          const TensorView3<T>& out, LayerSaved& saved,
                          const Execution& execution) {
  saved.feed_forward.dropout = {.p = layer.dropout, .at = saved.dropout, .place = kAfterActivation};
  forward_sublayer<T>(steps, x, residual, out, saved.feed_forward.linear1.x, execution,
                      [&](const auto& from, const auto& added, const auto& to) {
                        forward(layer.feed_forward, from, to, saved.feed_forward, added, execution);
                      });
}

template <class T, class Layer, class LayerSaved, class Gradients>
void backward_feed_forward(const Layer& layer, const SublayerSteps<T>& steps,
                           const TensorView3<const T>& d_out, const TensorView3<T>& d_x,
                           LayerSaved& saved, Gradients& gradients,
                           const SublayerGradients<T>& d_norms, const Execution& execution) {
  backward_sublayer<T>(steps, d_out, d_out, d_x, d_norms, execution,
                       [&](const auto& d, const auto& residual, const auto& to) {
                         backward(layer.feed_forward, d, saved.feed_forward, to,
                                  gradients.feed_forward, residual, execution);
                       });
}

}  // namespace detail

ATTN_NAMESPACE_END
