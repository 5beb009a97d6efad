// MultiHeadAttentionSaved: tensors that forward saves for backward, and steps of both.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attn/core/dual/dual_view.hpp"
#include "attn/layers/linear_backward.hpp"
#include "attn/layers/multi_head_attention.hpp"

ATTN_NAMESPACE_BEGIN

template <class T>
struct MultiHeadAttentionSaved {
  Saved<T, 3> query, key,
      value;  ///< inputs; key and value only if they differ from the previous one
  bool key_is_query = false, value_is_key = false;
  Saved<T, 3> projected;          ///< their projections, (1, 1, elements): queries, keys, values
  Saved<T, 3> normalized;         ///< with query_key_norm: q and k after it
  Saved<T, 3> unclipped;          ///< with clip_qkv: q, k and v before it, (1, 1, elements)
  Saved<T, 3> ungated;            ///< with output_gate: the heads' outputs before it
  LinearSaved<T> out_proj;        ///< the heads' outputs
  Saved<Accumulator<T>, 3> lse;   ///< (batch, num_heads, q_len)
  Saved<Accumulator<T>, 4> mask;  ///< with appended keys: the mask over all keys
  /// The view to which backward adds the gradient of options.relative_bias, of the same shape; set
  /// it before backward.
  TensorView2<Accumulator<T>> d_relative_bias = {};

  index_t bytes() const {
    return query.bytes() + key.bytes() + value.bytes() + projected.bytes() + normalized.bytes() +
           unclipped.bytes() + ungated.bytes() + out_proj.bytes() + lse.bytes() + mask.bytes();
  }
};

/// Gradients of a call's inputs: (batch, q_len, embed_dim), (batch, kv_len, kdim), (batch, kv_len,
/// vdim). If the key is the query, its gradient is part of d_query; if the value is the key, it is
/// part of d_key; their own views are then not used.
template <class T>
struct MultiHeadAttentionInputs {
  TensorView3<T> d_query = {}, d_key = {}, d_value = {};
  TensorView3<const T> query_residual = {};  ///< added to d_query, which it may be
  TensorView3<const T> key_residual = {};    ///< added to d_key, which it may be
};

template <class T>
struct Traced;
template <class T>
class HessianTape;

namespace detail {

template <class T>
struct MultiHeadAttentionTraining {
  using Module = MultiHeadAttention<T>;
  using Gradients = MultiHeadAttention<Accumulator<T>>;

  /// Projections of one call in forward, or their gradients: views of one piece of memory.
  struct Projected {
    TensorView3<T> q, k, v;  ///< (batch, seq, width)
    TensorView3<T> all;      ///< the three in one, if one product computes them
  };

  /// Whether one product computes queries, keys and values.
  static bool joins(const Module& m, bool self_attention) {
    const HeadProjections<T>& p = m.projections_;
    return self_attention && m.appended_keys() == 0 &&
           p.weight(0).extent(1) == p.weight(2).extent(1) &&
           p.weight(1).data() == p.weight(0).data() + p.weight(0).size() &&
           p.weight(2).data() == p.weight(1).data() + p.weight(1).size();
  }

  static Projected lay_out(const Module& m, bool joined, index_t batch, index_t q_len, index_t keys,
                           T* memory) {
    const HeadProjections<T>& p = m.projections_;
    const index_t w0 = p.width(0), w1 = p.width(1), w2 = p.width(2);
    if (joined) {
      const TensorView3<T> all(memory, {batch, q_len, w0 + w1 + w2});
      return {.q = all.slice(2, 0, w0),
              .k = all.slice(2, w0, w0 + w1),
              .v = all.slice(2, w0 + w1, w0 + w1 + w2),
              .all = all};
    }
    const TensorView3<T> q(memory, {batch, q_len, w0}), k(memory + q.size(), {batch, keys, w1});
    return {.q = q, .k = k, .v = {memory + q.size() + k.size(), {batch, keys, w2}}, .all = {}};
  }

  /// Calls f(part, before) for queries, keys and values, without appended keys, and their values
  /// before clip_qkv.
  template <class F>
  static void for_clipped(const Projected& parts, index_t kv_len, T* unclipped, F f) {
    const TensorView3<T> clipped[] = {parts.q, parts.k.slice(1, 0, kv_len),
                                      parts.v.slice(1, 0, kv_len)};
    for (const TensorView3<T>& part : clipped) {
      f(part, TensorView3<T>(unclipped, part.shape()));
      unclipped += part.size();
    }
  }

  /// Rows of the joint weight matrix.
  template <class Projections>
  static auto all_weights(Projections& p) {
    auto first = p.weight(0);
    return decltype(first)(first.data(), {p.width(0) + p.width(1) + p.width(2), first.extent(1)});
  }
  template <class Projections>
  static auto all_biases(Projections& p) {
    auto first = p.bias(0);
    return first ? decltype(first)(first.data(), {p.width(0) + p.width(1) + p.width(2)}) : first;
  }

  /// Calls f(options, position_ids of queries, position_ids of keys) with the options of the
  /// attention call itself, which stay valid during f.
  template <class F>
  static void with_options(const Module& m, const AttentionOptions<Accumulator<T>>& given,
                           TensorView2<const index_t> position_ids, index_t batch, index_t q_len,
                           index_t kv_len, MultiHeadAttentionSaved<T>& saved, bool first, F f) {
    Workspace& workspace = given.execution.scratch();
    Scratch<Accumulator<T>> sinks(workspace, m.sinks_.size());
    AttentionOptions<Accumulator<T>> options = m.with_own(given, sinks.data());
    const index_t appended = m.appended_keys();
    Scratch<index_t> offsets(workspace, appended > 0 ? batch : 0);
    Scratch<index_t> ids(workspace, m.rotary_ && !position_ids ? q_len + kv_len : 0);
    TensorView2<const index_t> of_q = position_ids, of_k = position_ids;
    if (ids.size() > 0) {
      count_rotary_positions(options, options.first_key, q_len, kv_len, ids.data(),
                             ids.data() + q_len);
      of_q = {ids.data(), {batch, q_len}, {0, 1}};
      of_k = {ids.data() + q_len, {batch, kv_len}, {0, 1}};
    }
    if (appended > 0) {
      if (first) {
        extend_mask(options.mask, options.offset, appended,
                    saved.mask.make({batch, m.options_.num_heads, q_len, kv_len + appended}));
      }
      for (index_t b = 0; b < batch; ++b) {
        offsets.data()[b] =
            position(options.mask, options.offset, {.b = b, .q_len = q_len, .kv_len = kv_len}, 0);
      }
      options.offset = query_offsets(TensorView1<const index_t>(offsets.data(), {batch}));
      options.mask = additive_mask(saved.mask.view());
    }
    f(options, of_q, of_k);
  }

  template <class... Functors>
  static void forward(const Module& m, TensorView3<const T> query, TensorView3<const T> key,
                      TensorView3<const T> value, TensorView3<T> out,
                      MultiHeadAttentionSaved<T>& saved,
                      const AttentionOptions<Accumulator<T>>& given,
                      const MultiHeadAttentionCall<T>& call, const Functors&... functors);

  template <class... Functors>
  static void backward(const Module& m, TensorView3<const T> d_out,
                       MultiHeadAttentionSaved<T>& saved, const MultiHeadAttentionInputs<T>& inputs,
                       Gradients& gradients, const AttentionOptions<Accumulator<T>>& given,
                       TensorView2<const index_t> position_ids, const Functors&... functors);

  template <class... Functors>
  static Traced<T> trace(HessianTape<T>& tape, const Module& m, const Module& vector,
                         Module& result, const Traced<T>& query, const Traced<T>& key,
                         const Traced<T>& value, const AttentionOptions<T>& given,
                         TensorView2<const index_t> position_ids, const Functors&... functors);

  template <class... Functors>
  static void jvp(const Module& m, const Module& tangents, const DualView<const T>& query,
                  const DualView<const T>& key, const DualView<const T>& value,
                  const DualView<T>& out, const DualView<const T>& residual,
                  const AttentionOptions<T>& given, TensorView2<const index_t> position_ids,
                  const Functors&... functors);
};

}  // namespace detail

ATTN_NAMESPACE_END
