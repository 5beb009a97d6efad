// Backward of MultiHeadAttention, and the forward that saves.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attn/attention/sdpa_backward.hpp"
#include "attn/layers/attention/multi_head_attention_saved.hpp"
#include "attn/layers/attention/rotary_backward.hpp"
#include "attn/layers/norm_backward.hpp"

ATTN_NAMESPACE_BEGIN

namespace detail {

/// Backward of norm_heads(): x and d (batch, seq, width), d in place.
template <class T>
void backward_of_heads(const Norm<T>& norm, const TensorView3<T>& d,
                       std::type_identity_t<TensorView3<const T>> x, index_t gated,
                       Norm<Accumulator<T>>& gradients, const Execution& execution) {
  index_t begin = 0;
  for_normed_parts(norm, d, gated, [&](const TensorView3<T>& part) {
    const index_t end = begin + part.extent(2);
    backward_of_norm<T, 3>(norm, part, x.slice(2, begin, end), part, gradients, {}, execution);
    begin = end + gated;
  });
}

/// Backward of gate_heads() for its input x: d_x = d sigmoid(gate), d_gates = d x sigmoid'(gate).
/// d_x may be d.
template <class T>
void gate_gradient(const TensorView4<const T>& gates, const TensorView4<const T>& x,
                   const TensorView4<const T>& d, const TensorView4<T>& d_x,
                   const TensorView4<T>& d_gates, const Execution& execution) {
  for_gates(
      gates, execution,
      [n = gates.extent(3)](const T* gate, const T* from, const T* d_row, T* to, T* to_gate) {
        using Acc = Accumulator<T>;
        for (index_t i = 0; i < n; ++i) {
          const Acc open = sigmoid(Acc{gate[i]}), change{d_row[i]};
          to_gate[i] = static_cast<T>(change * Acc{from[i]} * open * (1 - open));
          to[i] = static_cast<T>(change * open);
        }
      },
      x, d, d_x, d_gates);
}

/// Backward of clip_heads() for its input x: d = 0, in place, where x was clamped.
template <class T>
void clip_gradient(double limit, const TensorView3<const T>& x, const TensorView3<T>& d,
                   const Execution& execution) {
  const index_t seq = d.extent(1), width = d.extent(2);
  const auto most = static_cast<Accumulator<T>>(limit);
  for_rows(execution.threads(), d.extent(0) * seq, width, [&](index_t row) {
    const T* before = x.at_index({row / seq, row % seq, 0});
    T* to = d.at_index({row / seq, row % seq, 0});
    for (index_t i = 0; i < width; ++i) {
      if (std::abs(Accumulator<T>{before[i]}) > most) to[i] = T{};
    }
  });
}

template <class T>
template <class... Functors>
void MultiHeadAttentionTraining<T>::forward(const Module& m, TensorView3<const T> query,
                                            TensorView3<const T> key, TensorView3<const T> value,
                                            TensorView3<T> out, MultiHeadAttentionSaved<T>& saved,
                                            const AttentionOptions<Accumulator<T>>& given,
                                            const MultiHeadAttentionCall<T>& call,
                                            const Functors&... functors) {
  check_attention_call(m.options_, m.out_dim(), query, key, value, out.shape(), given, call);
  if (call.cache != nullptr) {
    throw ValueError(message("MultiHeadAttention", "cache", "be none in training", "one"));
  }
  refuse_without_gradient("MultiHeadAttention", given);
  const MultiHeadAttentionOptions& o = m.options_;
  const Execution& execution = given.execution;
  const index_t batch = query.extent(0), q_len = query.extent(1), kv_len = key.extent(1);
  const index_t keys = kv_len + m.appended_keys();
  saved.key_is_query = is_same_view(key, query);
  saved.value_is_key = is_same_view(value, key);
  query = saved.query.keep(query);
  key = saved.key_is_query ? query : saved.key.keep(key);
  value = saved.value_is_key ? key : saved.value.keep(value);
  const HeadProjections<T>& p = m.projections_;
  const bool joined = joins(m, saved.key_is_query && saved.value_is_key);
  const Projected made =
      lay_out(m, joined, batch, q_len, keys,
              saved.projected.make({1, 1, p.elements(batch, q_len, keys)}).data());
  if (joined) {
    linear(query, all_weights(p), all_biases(p), made.all, Activation::none, {}, execution);
  } else {
    const auto project = [&](const auto& from, int which, const auto& to) {
      linear(from, p.weight(which), p.bias(which), to, Activation::none, {}, execution);
    };
    project(query, 0, made.q);
    project(key, 1, made.k.slice(1, 0, kv_len));
    project(value, 2, made.v.slice(1, 0, kv_len));
    append_learned(made.k, kv_len, m.bias_k_.view());
    append_learned(made.v, kv_len, m.bias_v_.view());
  }
  Projected heads = made;
  if (o.query_key_norm) {
    const index_t size = made.q.size() + made.k.size();
    T* memory = saved.normalized.make({1, 1, size}).data();
    heads.q = {memory, made.q.shape()};
    heads.k = {memory + made.q.size(), made.k.shape()};
    copy(made.q, heads.q);
    copy(made.k, heads.k);
    norm_heads(m.q_norm_, heads.q, o.query_features() - o.head_dim, execution);
    norm_heads(m.k_norm_, heads.k.slice(1, 0, kv_len), 0, execution);
  }
  if (o.clip_qkv > 0) {
    T* unclipped = saved.unclipped.make({1, 1, p.elements(batch, q_len, kv_len)}).data();
    for_clipped(heads, kv_len, unclipped, [&](const auto& part, const auto& before) {
      copy(part, before);
      clip_heads(o.clip_qkv, part, execution);
    });
  }
  const TensorView4<T> q = queries_of(o, heads.q), k = split_heads(heads.k, o.num_kv_heads),
                       v = split_heads(heads.v, o.num_kv_heads);
  const bool projects = o.output_projection;
  const Shape<3> context_shape{batch, q_len, m.context_width()};
  const TensorView3<T> context = saved.out_proj.x.make(context_shape);
  const TensorView3<T> ungated = o.output_gate ? saved.ungated.make(context_shape) : context;
  with_options(m, given, call.position_ids, batch, q_len, kv_len, saved, true,
               [&](AttentionOptions<Accumulator<T>> options, const auto& of_q, const auto& of_k) {
                 if (m.rotary_) {
                   const TensorView4<T> turning = k.slice(2, 0, kv_len);
                   for_rotary_rows(
                       *o.rotary, *m.rotary_, of_q, of_k,
                       [&](index_t begin, index_t end, const RotaryTable<Accumulator<T>>& table,
                           const auto& q_ids, const auto& k_ids) {
                         const auto turn = [&](const TensorView4<T>& x, const auto& ids) {
                           rotary_embedding(x, table.cos, table.sin, ids, x, o.rotary->pairs,
                                            execution);
                         };
                         turn(q.slice(0, begin, end), q_ids);
                         turn(turning.slice(0, begin, end), k_ids);
                       });
                   scale_queries(o.rotary->scaling, q, of_q, execution);
                 }
                 options.lse = saved.lse.make({batch, o.num_heads, q_len});
                 scaled_dot_product_attention(q, k, v, split_heads(ungated, o.num_heads), options,
                                              functors...);
               });
  if (o.output_gate) {
    gate_heads<T>(gates_of(o, made.q), split_heads(ungated, o.num_heads),
                  split_heads(context, o.num_heads), execution);
  }
  if (projects) {
    attn::forward(m.out_proj_, context, out, saved.out_proj, call.residual, execution);
  } else if (call.residual) {
    add_residual(call.residual, context, out);
  } else {
    copy(context, out);
  }
}

template <class T>
template <class... Functors>
void MultiHeadAttentionTraining<T>::backward(const Module& m, TensorView3<const T> d_out,
                                             MultiHeadAttentionSaved<T>& saved,
                                             const MultiHeadAttentionInputs<T>& inputs,
                                             Gradients& gradients,
                                             const AttentionOptions<Accumulator<T>>& given,
                                             TensorView2<const index_t> position_ids,
                                             const Functors&... functors) {
  const MultiHeadAttentionOptions& o = m.options_;
  const Execution& execution = given.execution;
  const TensorView3<const T> query = saved.query.view(),
                             key = saved.key_is_query ? query : saved.key.view(),
                             value = saved.value_is_key ? key : saved.value.view();
  const index_t batch = query.extent(0), q_len = query.extent(1), kv_len = key.extent(1);
  const index_t keys = kv_len + m.appended_keys();
  const HeadProjections<T>& p = m.projections_;
  const bool joined = joins(m, saved.key_is_query && saved.value_is_key);
  Workspace& workspace = execution.scratch();

  const TensorView3<T> context = o.output_gate ? saved.ungated.view() : saved.out_proj.x.view();
  Scratch<T> context_memory(workspace, o.output_projection || o.output_gate ? context.size() : 0);
  TensorView3<const T> d_context = d_out;
  if (o.output_projection) {
    const TensorView3<T> to(context_memory.data(), context.shape());
    attn::backward(m.out_proj_, d_out, saved.out_proj, to, gradients.out_proj_, {}, execution);
    d_context = to;
  }
  const Projected made = lay_out(m, joined, batch, q_len, keys, saved.projected.view().data());
  Projected heads = made;
  if (o.query_key_norm) {
    T* memory = saved.normalized.view().data();
    heads.q = {memory, made.q.shape()};
    heads.k = {memory + made.q.size(), made.k.shape()};
  }
  Scratch<T> d_memory(workspace, p.elements(batch, q_len, keys));
  const Projected d = lay_out(m, joined, batch, q_len, keys, d_memory.data());
  if (o.output_gate) {
    const TensorView3<T> to(context_memory.data(), context.shape());
    gate_gradient<T>(gates_of(o, made.q), split_heads(context, o.num_heads),
                     split_heads(d_context, o.num_heads), split_heads(to, o.num_heads),
                     gates_of(o, d.q), execution);
    d_context = to;
  }
  const TensorView4<T> d_q = queries_of(o, d.q), d_k = split_heads(d.k, o.num_kv_heads),
                       d_v = split_heads(d.v, o.num_kv_heads);
  const TensorView4<T> d_new_k = d_k.slice(2, 0, kv_len);
  with_options(
      m, given, position_ids, batch, q_len, kv_len, saved, false,
      [&](const AttentionOptions<Accumulator<T>>& options, const auto& of_q, const auto& of_k) {
        scaled_dot_product_attention_backward(
            split_heads(d_context, o.num_heads), queries_of(o, heads.q),
            split_heads(heads.k, o.num_kv_heads), split_heads(heads.v, o.num_kv_heads),
            split_heads(context, o.num_heads), saved.lse.view(), d_q, d_k, d_v, options,
            {.d_sinks = given.sinks ? TensorView1<Accumulator<T>>() : gradients.sinks_.view(),
             .d_relative_bias = saved.d_relative_bias},
            functors...);
        if (m.rotary_) {
          scale_queries(o.rotary->scaling, d_q, of_q, execution);
          for_rotary_rows(*o.rotary, *m.rotary_, of_q, of_k,
                          [&](index_t begin, index_t end, const RotaryTable<Accumulator<T>>& table,
                              const auto& q_ids, const auto& k_ids) {
                            const auto turn_back = [&](const TensorView4<T>& turned,
                                                       const auto& ids) {
                              rotary_embedding_backward(turned, table.cos, table.sin, ids, turned,
                                                        o.rotary->pairs, execution);
                            };
                            turn_back(d_q.slice(0, begin, end), q_ids);
                            turn_back(d_new_k.slice(0, begin, end), k_ids);
                          });
        }
      });
  if (o.clip_qkv > 0) {
    for_clipped(d, kv_len, saved.unclipped.view().data(), [&](const auto& part, const auto& x) {
      clip_gradient<T>(o.clip_qkv, x, part, execution);
    });
  }
  if (o.query_key_norm) {
    backward_of_heads(m.q_norm_, d.q, made.q, o.query_features() - o.head_dim, gradients.q_norm_,
                      execution);
    backward_of_heads(m.k_norm_, d.k.slice(1, 0, kv_len), made.k.slice(1, 0, kv_len), 0,
                      gradients.k_norm_, execution);
  }
  const auto add_appended = [&](const TensorView3<T>& from, Tensor3<Accumulator<T>>& to) {
    for (index_t b = 0; b < batch && to; ++b) {
      for (index_t x = 0; x < to.extent(2); ++x) to(0, 0, x) += from(b, kv_len, x);
    }
  };
  add_appended(d.k, gradients.bias_k_);
  add_appended(d.v, gradients.bias_v_);
  HeadProjections<Accumulator<T>>& d_p = gradients.projections_;
  if (joined) {
    linear_backward(d.all, query, all_weights(p), inputs.d_query, all_weights(d_p), all_biases(d_p),
                    inputs.query_residual, execution);
    return;
  }
  const auto project = [&](const auto& from, int which, const auto& d_made, const auto& to,
                           const TensorView3<const T>& residual) {
    linear_backward(d_made, from, p.weight(which), to, d_p.weight(which), d_p.bias(which), residual,
                    execution);
  };
  const TensorView3<T> d_key = saved.key_is_query ? inputs.d_query : inputs.d_key,
                       d_value = saved.value_is_key ? d_key : inputs.d_value;
  project(query, 0, d.q, inputs.d_query, inputs.query_residual);
  project(key, 1, d.k.slice(1, 0, kv_len), d_key,
          saved.key_is_query ? TensorView3<const T>(d_key) : inputs.key_residual);
  project(value, 2, d.v.slice(1, 0, kv_len), d_value,
          saved.value_is_key ? TensorView3<const T>(d_value) : TensorView3<const T>());
}

}  // namespace detail

/// MultiHeadAttention::forward() that saves activations. Refuses a cache, and weights and scores on
/// request, which have no gradient: use forward() without `saved` for them. Throws ShapeError,
/// DTypeError or ValueError.
template <class T, class... Functors>
void forward(const MultiHeadAttention<T>& layer, Input3<T> query, Input3<T> key, Input3<T> value,
             Output3<T> out, MultiHeadAttentionSaved<T>& saved,
             const AttentionOptions<Accumulator<T>>& options = {},
             const MultiHeadAttentionCall<T>& call = {}, const Functors&... functors) {
  detail::MultiHeadAttentionTraining<T>::forward(layer, query, key, value, out, saved, options,
                                                 call, functors...);
}

/// Computes the gradients of the inputs and adds those of the parameters to `gradients`. Pass the
/// same options, positions and functors as to the forward call that saved. d_out (batch, q_len,
/// out_dim()).
template <class T, class... Functors>
void backward(const MultiHeadAttention<T>& layer, Input3<T> d_out,
              MultiHeadAttentionSaved<T>& saved,
              const std::type_identity_t<MultiHeadAttentionInputs<T>>& inputs,
              MultiHeadAttention<Accumulator<T>>& gradients,
              const AttentionOptions<Accumulator<T>>& options = {},
              TensorView2<const index_t> position_ids = {}, const Functors&... functors) {
  detail::MultiHeadAttentionTraining<T>::backward(layer, d_out, saved, inputs, gradients, options,
                                                  position_ids, functors...);
}

ATTN_NAMESPACE_END
