// MultiHeadAttention on a HessianTape.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attn/layers/hessian/tape.hpp"
#include "attn/layers/multi_head_attention_backward.hpp"

ATTN_NAMESPACE_BEGIN

namespace detail {

/// Throws ValueError for options whose gradients have no tangent here.
inline void refuse_without_second_derivative(const MultiHeadAttentionOptions& options) {
  const std::pair<std::string_view, bool> refused[] = {{"add_bias_kv", options.add_bias_kv},
                                                       {"add_zero_attn", options.add_zero_attn},
                                                       {"clip_qkv", options.clip_qkv > 0},
                                                       {"output_gate", options.output_gate}};
  for (const auto& [name, given] : refused) {
    if (!given) continue;
    throw ValueError(
        message("MultiHeadAttention", name, "not be set: it has no second derivative", "it set"));
  }
}

/// norm_heads(): each part of x of as many features as the norm.
template <class T>
Traced<T> trace_norm_heads(HessianTape<T>& tape, const Norm<T>& norm, const Norm<T>& vector,
                           Norm<T>& result, const Traced<T>& x) {
  const Traced<T> out = tape.make(x.x.value.shape());
  const index_t features = norm.weight.extent(0);
  for (index_t begin = 0; begin < x.x.value.extent(2); begin += features) {
    tape.norm(norm, vector, result, x.slice(2, begin, begin + features),
              out.slice(2, begin, begin + features));
  }
  return out;
}

template <class T>
template <class... Functors>
Traced<T> MultiHeadAttentionTraining<T>::trace(HessianTape<T>& tape, const Module& m,
                                               const Module& vector, Module& result,
                                               const Traced<T>& query, const Traced<T>& key,
                                               const Traced<T>& value,
                                               const AttentionOptions<T>& given,
                                               TensorView2<const index_t> position_ids,
                                               const Functors&... functors) {
  const MultiHeadAttentionOptions& o = m.options_;
  const Shape<3> shape = query.x.value.shape();
  check_attention_call(o, m.out_dim(), TensorView3<const T>(query.x.value),
                       TensorView3<const T>(key.x.value), TensorView3<const T>(value.x.value),
                       Shape<3>{shape[0], shape[1], m.out_dim()}, given,
                       MultiHeadAttentionCall<T>{.position_ids = position_ids});
  refuse_without_second_derivative(o);
  const auto project = [&](const Traced<T>& x, int which) {
    const HeadProjections<T>&p = m.projections_, &of_vector = vector.projections_;
    return tape.linear(x, {p.weight(which), of_vector.weight(which)},
                       {p.bias(which), of_vector.bias(which)}, result.projections_.weight(which),
                       result.projections_.bias(which));
  };
  Traced<T> q = project(query, 0), k = project(key, 1);
  const Traced<T> v = project(value, 2);
  if (o.query_key_norm) {
    q = trace_norm_heads(tape, m.q_norm_, vector.q_norm_, result.q_norm_, q);
    k = trace_norm_heads(tape, m.k_norm_, vector.k_norm_, result.k_norm_, k);
  }
  const index_t kv_len = key.x.value.extent(1);
  const auto with_own = [=, &m](const auto& f) {
    MultiHeadAttentionSaved<T> none;  // used only with appended keys
    with_options(m, given, position_ids, shape[0], shape[1], kv_len, none, true, f);
  };
  // Rotates q and k, or their gradients back, in place: rotary is linear in them.
  const auto rotate = [=, &m](const TensorView3<T>& queries, const TensorView3<T>& keys,
                              const auto& turn) {
    const MultiHeadAttentionOptions& options = m.options_;
    const TensorView4<T> of_queries = split_heads(queries, options.num_heads),
                         of_keys = split_heads(keys, options.num_kv_heads);
    with_own([&](const auto&, const auto& q_ids, const auto& k_ids) {
      for_rotary_rows(*options.rotary, *m.rotary_, q_ids, k_ids,
                      [&](index_t begin, index_t end, const RotaryTable<T>& table,
                          const auto& ids_of_q, const auto& ids_of_k) {
                        turn(of_queries.slice(0, begin, end), table, ids_of_q);
                        turn(of_keys.slice(0, begin, end), table, ids_of_k);
                      });
      scale_queries(options.rotary->scaling, of_queries, q_ids, given.execution);
    });
  };
  if (m.rotary_) {
    const auto forth = [&](const auto& x, const auto& table, const auto& ids) {
      rotary_embedding(x, table.cos, table.sin, ids, x, o.rotary->pairs, given.execution);
    };
    rotate(q.x.value, k.x.value, forth);
    rotate(q.x.tangent, k.x.tangent, forth);
    tape.record([=, pairs = o.rotary->pairs, execution = given.execution] {
      const auto back = [&](const auto& x, const auto& table, const auto& ids) {
        rotary_embedding_backward(x, table.cos, table.sin, ids, x, pairs, execution);
      };
      rotate(q.d.value, k.d.value, back);
      rotate(q.d.tangent, k.d.tangent, back);
    });
  }
  Traced<T> context;
  with_own([&](AttentionOptions<T> options, const auto&, const auto&) {
    const bool learned = m.sinks_ && !given.sinks;
    if (learned) options.sinks = m.sinks_.view();  // outlives the tape
    context =
        tape.attention_with_sinks(q, k, v, o.num_heads, o.num_kv_heads, options,
                                  learned ? vector.sinks_.view() : TensorView1<const T>(),
                                  learned ? result.sinks_.view() : TensorView1<T>(), functors...);
  });
  if (!o.output_projection) return context;
  return tape.linear(m.out_proj_, vector.out_proj_, result.out_proj_, context);
}

}  // namespace detail

/// The layer on a tape: query (batch, q_len, embed_dim), key (batch, kv_len, kdim), value (batch,
/// kv_len, vdim); returns (batch, q_len, out_dim()). Options with tensors are constant. Appended
/// keys, clip_qkv and gates are refused, and what tape.attention() refuses. Throws
/// ShapeError or ValueError.
template <class T, class... Functors>
Traced<T> trace(HessianTape<T>& tape, const MultiHeadAttention<T>& layer,
                const std::type_identity_t<MultiHeadAttention<T>>& vector,
                std::type_identity_t<MultiHeadAttention<T>>& result, const Traced<T>& query,
                const Traced<T>& key, const Traced<T>& value,
                const std::type_identity_t<AttentionOptions<T>>& options = {},
                TensorView2<const index_t> position_ids = {}, const Functors&... functors) {
  return detail::MultiHeadAttentionTraining<T>::trace(tape, layer, vector, result, query, key,
                                                      value, options, position_ids, functors...);
}

ATTN_NAMESPACE_END
