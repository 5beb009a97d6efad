// Backward of EncoderLayer.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attn/layers/attention/latent_attention_backward.hpp"
#include "attn/layers/encoder_layer.hpp"
#include "attn/layers/experts/mixture_of_experts_backward.hpp"
#include "attn/layers/recurrent/gated_delta_backward.hpp"
#include "attn/layers/recurrent/short_convolution_backward.hpp"
#include "attn/layers/sublayer_backward.hpp"

ATTN_NAMESPACE_BEGIN

/// Activations of one forward, each stored once: a sublayer writes its output where the next one
/// saves its input. Norms that the layer lacks save nothing.
template <class T>
struct EncoderLayerSaved {
  MultiHeadAttentionSaved<T> self_attn;
  LatentAttentionSaved<T> latent_attn;
  ShortConvolutionSaved<T> convolution;
  GatedDeltaSaved<T> gated_delta;
  FeedForwardSaved<T> feed_forward;
  MixtureOfExpertsSaved<T> experts;
  NormSaved<T> norm1, norm2, norm1_behind, norm2_behind;
  DropoutStep dropout;

  // The inputs of the layer and of its feed-forward sublayer.
  Saved<T, 3>& input(const EncoderLayer<T>& layer) {
    if (layer.attention_norms().is_pre_norm()) return norm1.x;
    if (layer.convolution) return convolution.x;
    if (layer.gated_delta) return gated_delta.x;
    return layer.latent_attn ? latent_attn.x : self_attn.query;
  }
  Saved<T, 3>& feed_forward_input(bool norm_first) {
    return norm_first ? norm2.x : feed_forward.linear1.x;
  }
  index_t bytes() const {
    return self_attn.bytes() + latent_attn.bytes() + convolution.bytes() + gated_delta.bytes() +
           feed_forward.bytes() + experts.bytes() + norm1.bytes() + norm2.bytes() +
           norm1_behind.bytes() + norm2_behind.bytes();
  }
};

namespace detail {

template <class T>
SublayerSteps<T> attention_steps(const EncoderLayer<T>& layer, EncoderLayerSaved<T>& saved) {
  return {.norms = layer.attention_norms(),
          .norm_saved = &saved.norm1,
          .behind_saved = &saved.norm1_behind,
          .dropout = {.p = layer.dropout, .at = saved.dropout, .place = kAfterAttention}};
}

template <class T>
SublayerSteps<T> feed_forward_steps(const EncoderLayer<T>& layer, EncoderLayerSaved<T>& saved) {
  return {.norms = layer.feed_forward_norms(),
          .norm_saved = &saved.norm2,
          .behind_saved = &saved.norm2_behind,
          .dropout = {.p = layer.dropout, .at = saved.dropout, .place = kAfterFeedForward}};
}

}  // namespace detail

/// EncoderLayer::forward() that saves for backward: x and out (batch, seq, d_model). Throws
/// ShapeError or ValueError.
template <class T, class... Functors>
void forward(const EncoderLayer<T>& layer, Input3<T> x, Output3<T> out, EncoderLayerSaved<T>& saved,
             const AttentionOptions<Accumulator<T>>& options = {},
             TensorView2<const index_t> position_ids = {}, const Functors&... functors) {
  check_shape("EncoderLayer", "out", x.shape(), out.shape());
  x = saved.input(layer).keep(x);
  const detail::SublayerSteps<T> attention = detail::attention_steps(layer, saved);
  const detail::SublayerSteps<T> feed_forward = detail::feed_forward_steps(layer, saved);
  // With `parallel` the feed-forward saves x, and the sum in front of it is not needed again.
  Scratch<T> memory(options.execution.scratch(), layer.parallel ? x.size() : 0);
  const TensorView3<T> attended = layer.parallel
                                      ? TensorView3<T>(memory.data(), x.shape())
                                      : saved.feed_forward_input(layer.norm_first).make(x.shape());
  const auto recurrent = [&](const auto& mixer, auto& mixer_saved) {
    detail::check_recurrent_options(options, functors...);
    detail::forward_sublayer<T>(attention, x, x, attended, mixer_saved.x, options.execution,
                                [&](const auto& from, const auto& residual, const auto& to) {
                                  forward(mixer, from, to, mixer_saved, residual,
                                          options.execution);
                                });
  };
  if (layer.convolution) {
    recurrent(layer.convolution, saved.convolution);
  } else if (layer.gated_delta) {
    recurrent(layer.gated_delta, saved.gated_delta);
  } else if (layer.latent_attn) {
    detail::forward_sublayer<T>(
        attention, x, x, attended, saved.latent_attn.x, options.execution,
        [&](const auto& from, const auto& residual, const auto& to) {
          forward(layer.latent_attn, from, to, saved.latent_attn,
                  detail::training_options(options, layer.latent_attn, attention.dropout),
                  {.residual = residual, .position_ids = position_ids}, functors...);
        });
  } else {
    detail::forward_self_attention<T>(layer, attention, x, attended, saved, options, position_ids,
                                      functors...);
  }
  const TensorView3<const T> input = layer.parallel ? x : attended;
  if (layer.experts) {
    detail::forward_sublayer<T>(
        feed_forward, input, attended, out, saved.experts.x, options.execution,
        [&](const auto& from, const auto& residual, const auto& to) {
          forward(layer.experts, from, to, saved.experts, residual, options.execution);
        });
  } else {
    detail::forward_feed_forward<T>(layer, feed_forward, input, attended, out, saved,
                                    options.execution);
  }
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
  const detail::SublayerGradients<T> d_norms1{.norm = &gradients.norm1,
                                              .behind = &gradients.norm1_behind};
  const detail::SublayerGradients<T> d_norms2{
      .norm = layer.norm2.weight ? &gradients.norm2 : &gradients.norm1,
      .behind = &gradients.norm2_behind};
  const detail::SublayerSteps<T> feed_forward = detail::feed_forward_steps(layer, saved);
  if (layer.experts) {
    detail::backward_sublayer<T>(feed_forward, d_out, d_out, d_attended, d_norms2, execution,
                                 [&](const auto& d, const auto& residual, const auto& to) {
                                   backward(layer.experts, d, saved.experts, to, gradients.experts,
                                            residual, execution);
                                 });
  } else {
    detail::backward_feed_forward<T>(layer, feed_forward, d_out, d_attended, saved, gradients,
                                     d_norms2, execution);
  }
  const detail::SublayerSteps<T> attention = detail::attention_steps(layer, saved);
  const TensorView3<const T> d_sum = layer.parallel ? d_out : TensorView3<const T>(d_attended);
  const auto recurrent = [&](const auto& mixer, auto& mixer_saved, auto& d_mixer) {
    detail::backward_sublayer<T>(attention, d_sum, d_attended, d_x, d_norms1, execution,
                                 [&](const auto& d, const auto& residual, const auto& to) {
                                   backward(mixer, d, mixer_saved, to, d_mixer, residual,
                                            execution);
                                 });
  };
  if (layer.convolution) {
    recurrent(layer.convolution, saved.convolution, gradients.convolution);
  } else if (layer.gated_delta) {
    recurrent(layer.gated_delta, saved.gated_delta, gradients.gated_delta);
  } else if (layer.latent_attn) {
    detail::backward_sublayer<T>(
        attention, d_sum, d_attended, d_x, d_norms1, execution,
        [&](const auto& d, const auto& residual, const auto& to) {
          backward(layer.latent_attn, d, saved.latent_attn, to, gradients.latent_attn, residual,
                   detail::training_options(options, layer.latent_attn, attention.dropout),
                   position_ids, functors...);
        });
  } else {
    detail::backward_self_attention<T>(layer, attention, d_sum, d_attended, d_x, saved, gradients,
                                       d_norms1, options, position_ids, functors...);
  }
}

ATTN_NAMESPACE_END
