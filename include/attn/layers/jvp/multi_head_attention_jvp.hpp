// Tangent (JVP) of MultiHeadAttention.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attn/attention/jvp/sdpa_jvp.hpp"
#include "attn/layers/jvp/linear_jvp.hpp"
#include "attn/layers/multi_head_attention_backward.hpp"

ATTN_NAMESPACE_BEGIN

namespace detail {

/// norm_heads() with tangents, in place.
template <class T>
void norm_heads_jvp(const Norm<T>& norm, const Norm<T>& tangents, const DualView<T>& x,
                    index_t gated, const Execution& execution) {
  const index_t features = norm.weight.extent(0);
  for (index_t begin = 0; begin < x.value.extent(2); begin += features + gated) {
    const DualView<T> part = x.slice(2, begin, begin + features);
    norm_jvp(norm, tangents, part, part, execution);
  }
}

/// gate_heads() with tangents, in place: d_x = d_x sigmoid(gate) + x sigmoid'(gate) d_gate.
template <class T>
void gate_heads_jvp(const TensorView4<const T>& gates, const TensorView4<const T>& d_gates,
                    const TensorView4<T>& x, const TensorView4<T>& d_x,
                    const Execution& execution) {
  for_gates(
      gates, execution,
      [n = gates.extent(3)](const T* gate, const T* d_gate, const T* from, T* d) {
        for (index_t i = 0; i < n; ++i) {
          const T open = sigmoid(gate[i]);
          d[i] = open * (d[i] + from[i] * (1 - open) * d_gate[i]);
        }
      },
      d_gates, x, d_x);
  gate_heads<T>(gates, x, x, execution);
}

template <class T>
template <class... Functors>
void MultiHeadAttentionTraining<T>::jvp(
    const Module& m, const Module& tangents, const DualView<const T>& query,
    const DualView<const T>& key, const DualView<const T>& value, const DualView<T>& out,
    const DualView<const T>& residual, const AttentionOptions<T>& given,
    TensorView2<const index_t> position_ids, const Functors&... functors) {
  const MultiHeadAttentionCall<T> call{.residual = residual.value, .position_ids = position_ids};
  check_attention_call(m.options_, m.out_dim(), query.value, key.value, value.value,
                       out.value.shape(), given, call);
  refuse_without_tangent("MultiHeadAttention", given);
  const MultiHeadAttentionOptions& o = m.options_;
  const Execution& execution = given.execution;
  const index_t batch = query.value.extent(0), q_len = query.value.extent(1),
                kv_len = key.value.extent(1), keys = kv_len + m.appended_keys();
  const HeadProjections<T>&p = m.projections_, &d_p = tangents.projections_;
  const index_t elements = p.elements(batch, q_len, keys);
  const Scratch<T> memory(execution.scratch(), 2 * elements);
  const auto values =
      p.project(query.value, key.value, value.value, m.appended_keys(), memory.data(), execution);
  const Projected d = lay_out(m, false, batch, q_len, keys, memory.data() + elements);
  const DualView<T> heads[] = {{values.q, d.q},
                               DualView<T>{values.k, d.k}.slice(1, 0, kv_len),
                               DualView<T>{values.v, d.v}.slice(1, 0, kv_len)};
  const DualView<const T> inputs[] = {query, key, value};
  for (int which = 0; which < 3; ++which) {
    const DualView<const T>& from = inputs[which];
    attn::linear_jvp(from.value, from.tangent, p.weight(which), d_p.weight(which), d_p.bias(which),
                     heads[which].tangent, {}, execution);
  }
  if (o.query_key_norm) {
    norm_heads_jvp(m.q_norm_, tangents.q_norm_, heads[0], o.query_features() - o.head_dim,
                   execution);
    norm_heads_jvp(m.k_norm_, tangents.k_norm_, heads[1], 0, execution);
  }
  if (o.clip_qkv > 0) {
    for (const DualView<T>& part : heads) {
      clip_gradient<T>(o.clip_qkv, part.value, part.tangent, execution);
      clip_heads(o.clip_qkv, part.value, execution);
    }
  }
  append_learned(values.k, kv_len, m.bias_k_.view());
  append_learned(values.v, kv_len, m.bias_v_.view());
  append_learned(d.k, kv_len, tangents.bias_k_.view());
  append_learned(d.v, kv_len, tangents.bias_v_.view());
  const auto q = queries_of(o, values.q), d_q = queries_of(o, d.q);
  const auto k = split_heads(values.k, o.num_kv_heads), d_k = split_heads(d.k, o.num_kv_heads);
  const auto v = split_heads(values.v, o.num_kv_heads), d_v = split_heads(d.v, o.num_kv_heads);
  if (m.rotary_) {
    const auto rotate = [&](const TensorView4<T>& queries, const TensorView4<T>& all_keys) {
      rotate_heads(*o.rotary, *m.rotary_, queries, all_keys.slice(2, 0, kv_len), given.first_key,
                   given, call);
    };
    rotate(q, k);
    rotate(d_q, d_k);
  }
  const DualScratch<T> context_memory({batch, q_len, m.context_width()}, execution);
  const DualView<T> context = context_memory.view();
  MultiHeadAttentionSaved<T> saved;  // of the mask over appended keys
  with_options(m, given, position_ids, batch, q_len, kv_len, saved, true,
               [&](const AttentionOptions<T>& options, const auto&, const auto&) {
                 AttentionTangents<T> d_inputs{.q = d_q, .k = d_k, .v = d_v};
                 if (!given.sinks && tangents.sinks_) d_inputs.sinks = tangents.sinks_;
                 scaled_dot_product_attention_jvp(
                     q, k, v, d_inputs, split_heads(context.value, o.num_heads),
                     split_heads(context.tangent, o.num_heads), options, functors...);
               });
  if (o.output_gate) {
    gate_heads_jvp<T>(gates_of(o, values.q), gates_of(o, d.q),
                      split_heads(context.value, o.num_heads),
                      split_heads(context.tangent, o.num_heads), execution);
  }
  if (o.output_projection) {
    linear_jvp(m.out_proj_, tangents.out_proj_, context, out, residual, execution);
  } else if (residual.value) {
    add_residual(residual.value, context.value, out.value);
    add_residual(residual.tangent, context.tangent, out.tangent);
  } else {
    copy(context.value, out.value);
    copy(context.tangent, out.tangent);
  }
}

}  // namespace detail

/// query (batch, q_len, embed_dim), key (batch, kv_len, kdim) and value (batch, kv_len, vdim), each
/// followed by its tangent; out and d_out (batch, q_len, out_dim()). Tensors in the options are
/// constant. Takes no cache; refuses requests for weights and scores, which have no tangent. Throws
/// ShapeError, DTypeError or ValueError.
template <class T, class... Functors>
void jvp(const MultiHeadAttention<T>& layer,
         const std::type_identity_t<MultiHeadAttention<T>>& tangents, Input3<T> query,
         Input3<T> d_query, Input3<T> key, Input3<T> d_key, Input3<T> value, Input3<T> d_value,
         Output3<T> out, Output3<T> d_out, const AttentionOptions<Accumulator<T>>& options = {},
         TensorView2<const index_t> position_ids = {}, const Functors&... functors) {
  constexpr std::string_view kFunction = "MultiHeadAttention";
  detail::MultiHeadAttentionTraining<T>::jvp(
      layer, tangents, detail::dual_input<T>(kFunction, query, d_query),
      detail::dual_input<T>(kFunction, key, d_key),
      detail::dual_input<T>(kFunction, value, d_value),
      detail::dual_output<T>(kFunction, out, d_out), {}, options, position_ids, functors...);
}

ATTN_NAMESPACE_END
