// Tangents (JVP) of EncoderLayer and Encoder.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "attn/layers/encoder.hpp"
#include "attn/layers/jvp/feed_forward_jvp.hpp"
#include "attn/layers/jvp/multi_head_attention_jvp.hpp"

ATTN_NAMESPACE_BEGIN

namespace detail {

/// forward_sublayer() with tangents: run(from, residual, to) computes to = f(from) + residual, of
/// which the residual may be empty. `d_norms`: tangents of the norms.
template <class T, class F>
void sublayer_jvp(const SublayerNorms<T>& norms, const SublayerNorms<T>& d_norms,
                  const DualView<const T>& x, const DualView<const T>& residual,
                  const DualView<T>& out, const Execution& execution, F run) {
  const Shape<3> shape = x.value.shape();
  const DualScratch<T> memory(shape, execution);
  const DualView<T> between = memory.view();
  if (norms.is_post_norm()) {
    run(x, residual, between);
    return norm_jvp(*norms.norm, *d_norms.norm, between, out, execution);
  }
  DualView<const T> from = x;
  if (norms.is_pre_norm()) {
    norm_jvp(*norms.norm, *d_norms.norm, x, between, execution);
    from = between;
  }
  if (!norms.adds_residual()) return run(from, residual, out);
  const DualScratch<T> branch_memory(shape, execution);
  const DualView<T> branch = branch_memory.view();
  run(from, DualView<const T>(), branch);
  if (norms.has_behind()) norm_jvp(*norms.behind, *d_norms.behind, branch, branch, execution);
  add_scaled<T>(residual.value, norms.scale, branch.value, out.value, execution);
  add_scaled<T>(residual.tangent, norms.scale, branch.tangent, out.tangent, execution);
}

/// Throws ValueError for parts of a layer that have no jvp.
template <class T>
void refuse_without_tangent(const EncoderLayer<T>& layer) {
  const auto refuse = [](std::string_view name, bool given) {
    if (given) throw ValueError(message("EncoderLayer", name, "be none in jvp", "some"));
  };
  refuse("short convolution", static_cast<bool>(layer.convolution));
  refuse("gated delta rule", static_cast<bool>(layer.gated_delta));
  refuse("latent attention", static_cast<bool>(layer.latent_attn));
  refuse("experts", static_cast<bool>(layer.experts));
}

/// out may be x.
template <class T, class... Functors>
void encoder_layer_jvp(const EncoderLayer<T>& layer, const EncoderLayer<T>& tangents,
                       const DualView<const T>& x, const DualView<T>& out,
                       const AttentionOptions<T>& options, TensorView2<const index_t> position_ids,
                       const Functors&... functors) {
  const Execution& execution = options.execution;
  const DualScratch<T> memory(x.value.shape(), execution);
  const DualView<T> attended = memory.view();
  sublayer_jvp<T>(layer.attention_norms(), tangents.attention_norms(), x, x, attended, execution,
                  [&](const auto& from, const auto& residual, const auto& to) {
                    MultiHeadAttentionTraining<T>::jvp(layer.self_attn, tangents.self_attn, from,
                                                       from, from, to, residual, options,
                                                       position_ids, functors...);
                  });
  sublayer_jvp<T>(layer.feed_forward_norms(), layer.feed_forward_norms(tangents),
                  layer.parallel ? x : DualView<const T>(attended), attended, out, execution,
                  [&](const auto& from, const auto& residual, const auto& to) {
                    feed_forward_jvp(layer.feed_forward, tangents.feed_forward, from, to, residual,
                                     execution);
                  });
}

}  // namespace detail

/// x, d_x, out and d_out (batch, seq, d_model); out may be x, with d_out d_x. Tensors in the
/// options are constant. Throws ShapeError, and ValueError for layers with latent attention, a
/// short convolution, the gated delta rule or experts.
template <class T, class... Functors>
void jvp(const EncoderLayer<T>& layer, const std::type_identity_t<EncoderLayer<T>>& tangents,
         Input3<T> x, Input3<T> d_x, Output3<T> out, Output3<T> d_out,
         const AttentionOptions<Accumulator<T>>& options = {},
         TensorView2<const index_t> position_ids = {}, const Functors&... functors) {
  check_shape("EncoderLayer", "out", x.shape(), out.shape());
  detail::refuse_without_tangent(layer);
  detail::check_tangents("EncoderLayer", "tangents", layer, tangents);
  detail::encoder_layer_jvp<T>(layer, tangents, detail::dual_input<T>("EncoderLayer", x, d_x),
                               detail::dual_output<T>("EncoderLayer", out, d_out), options,
                               position_ids, functors...);
}

/// x, d_x, out and d_out (batch, seq, d_model); out may be x, with d_out d_x. Tensors in the
/// options are constant. Throws ShapeError, and ValueError for layers with latent attention, a
/// short convolution, the gated delta rule or experts, a learned relative bias, and tangents with
/// another number of layers.
template <class T, class... Functors>
void jvp(const Encoder<T>& stack, const std::type_identity_t<Encoder<T>>& tangents, Input3<T> x,
         Input3<T> d_x, Output3<T> out, Output3<T> d_out,
         const AttentionOptions<Accumulator<T>>& options = {},
         TensorView2<const index_t> position_ids = {}, const Functors&... functors) {
  check_shape("Encoder", "out", x.shape(), out.shape());
  DualView<const T> in = detail::dual_input<T>("Encoder", x, d_x);
  const DualView<T> to = detail::dual_output<T>("Encoder", out, d_out);
  if (stack.relative_bias) {
    throw ValueError(message("Encoder", "relative_buckets", "be 0 in jvp", "more"));
  }
  if (tangents.layers.size() != stack.layers.size()) {
    throw ValueError(message("Encoder", "tangents",
                             "have " + std::to_string(stack.layers.size()) + " layers",
                             std::to_string(tangents.layers.size())));
  }
  for (const EncoderLayer<T>& layer : stack.layers) detail::refuse_without_tangent(layer);
  detail::check_tangents("Encoder", "tangents", stack, tangents);
  for (std::size_t n = 0; n < stack.num_layers(); ++n) {
    const std::size_t place = stack.place_of(n);
    detail::encoder_layer_jvp<T>(stack.layers[place], tangents.layers[place], in, to, options,
                                 position_ids, functors...);
    in = to;
  }
  if (stack.norm.weight) {
    detail::norm_jvp(stack.norm, tangents.norm, in, to, options.execution);
  } else if (stack.layers.empty()) {
    copy(in.value, to.value);
    copy(in.tangent, to.tangent);
  }
}

ATTN_NAMESPACE_END
