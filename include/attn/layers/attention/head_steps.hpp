// Norm, rotation and caching of heads between the projections and attention.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cmath>
#include <type_traits>

#include "attn/attention/options.hpp"
#include "attn/exec/row_ranges.hpp"
#include "attn/layers/attention/multi_head_attention_call.hpp"
#include "attn/layers/attention/rotary.hpp"
#include "attn/layers/embedding/positions.hpp"
#include "attn/layers/norm.hpp"

ATTN_NAMESPACE_BEGIN

namespace detail {

/// Calls f(part) for the parts of x (batch, seq, width) that a norm of queries or keys normalises
/// separately: the heads, each of as many features as the norm has, or all of x.
template <class T, class F>
void for_normed_parts(const Norm<std::remove_const_t<T>>& norm, const TensorView3<T>& x, F f) {
  const index_t features = norm.weight.extent(0);
  for (index_t begin = 0; begin < x.extent(2); begin += features) {
    f(x.slice(2, begin, begin + features));
  }
}

/// Normalises queries or keys (batch, seq, width) in place.
template <class T>
void norm_heads(const Norm<T>& norm, const TensorView3<T>& x, const Execution& execution) {
  for_normed_parts(norm, x,
                   [&](const TensorView3<T>& part) { norm.forward(part, part, execution); });
}

/// Clamps queries, keys or values (batch, seq, width) in place; NaN stays NaN.
template <class T>
void clip_heads(double limit, const TensorView3<T>& x, const Execution& execution) {
  const index_t seq = x.extent(1), width = x.extent(2);
  const auto most = static_cast<Accumulator<T>>(limit);
  for_rows(execution.threads(), x.extent(0) * seq, width, [&](index_t row) {
    T* values = x.at_index({row / seq, row % seq, 0});
    for (index_t i = 0; i < width; ++i) {
      values[i] = static_cast<T>(std::clamp(Accumulator<T>{values[i]}, -most, most));
    }
  });
}

/// Appends the learned key or value, then zeros, after the first kv_len.
template <class T>
void append_learned(const TensorView3<T>& to, index_t kv_len,
                    const TensorView3<const std::type_identity_t<T>>& learned) {
  for (index_t b = 0; b < to.extent(0); ++b) {
    for (index_t j = kv_len; j < to.extent(1); ++j) {
      const bool is_learned = learned && j == kv_len;
      for (index_t x = 0; x < to.extent(2); ++x) to(b, j, x) = is_learned ? learned(0, 0, x) : T{0};
    }
  }
}

/// out = x + y
template <class T>
void add_residual(const TensorView3<const T>& x,
                  const std::type_identity_t<TensorView3<const T>>& y, const TensorView3<T>& out) {
  for (index_t b = 0; b < out.extent(0); ++b) {
    for (index_t i = 0; i < out.extent(1); ++i) {
      for (index_t j = 0; j < out.extent(2); ++j)
        out(b, i, j) = static_cast<T>(x(b, i, j) + y(b, i, j));
    }
  }
}

/// Positions of q_len queries and kv_len keys after `before` other keys: the last query has the
/// position of the last key, in packed sequences that of its own sequence.
template <class T>
void count_rotary_positions(const AttentionOptions<T>& options, index_t before, index_t q_len,
                            index_t kv_len, index_t* q_ids, index_t* k_ids) {
  if (options.cu_seqlens_q && options.cu_seqlens_k) {
    count_query_positions(options.cu_seqlens_q, options.cu_seqlens_k, q_ids);
  } else {
    count_positions(before + kv_len - q_len, q_len, {}, q_ids);
  }
  count_positions(before, kv_len, options.cu_seqlens_k, k_ids);
}

/// Multiplies queries (batch, num_heads, q_len, head_dim), or their gradients, by the factors of
/// their positions: see RotaryScaling::query_beta.
template <class T>
void scale_queries(const RotaryScaling& scaling, const TensorView4<T>& q,
                   const TensorView2<const index_t>& positions, const Execution& execution) {
  if (scaling.query_beta == 0) return;
  const index_t heads = q.extent(1), q_len = q.extent(2);
  for_rows(execution.threads(), q.extent(0) * heads * q_len, q.extent(3), [&](index_t row) {
    const index_t b = row / (heads * q_len), h = row / q_len % heads, i = row % q_len;
    const double turns =
        static_cast<double>(positions(b, i) / scaling.original_max_positions);  // rounded down
    const auto factor = static_cast<Accumulator<T>>(1 + scaling.query_beta * std::log1p(turns));
    T* x = q.at_index({b, h, i, 0});
    for (index_t n = 0; n < q.extent(3); ++n) x[n] = static_cast<T>(factor * x[n]);
  });
}

/// Applies rotary to q, and to k, which may be empty, in place. `before`: number of keys before k.
template <class T>
void rotate_heads(const RotaryOptions& rotary, const RotaryTable<Accumulator<T>>& whole,
                  const TensorView4<T>& q, const TensorView4<T>& k, index_t before,
                  const AttentionOptions<Accumulator<T>>& options,
                  const MultiHeadAttentionCall<T>& call) {
  const index_t batch = q.extent(0), q_len = q.extent(2), kv_len = k.extent(2);
  Scratch<index_t> memory(options.execution.scratch(), call.position_ids ? 0 : q_len + kv_len);
  TensorView2<const index_t> of_q = call.position_ids, of_k = call.position_ids;
  if (!call.position_ids) {
    index_t *q_ids = memory.data(), *k_ids = q_ids + q_len;
    count_rotary_positions(options, before, q_len, kv_len, q_ids, k_ids);
    of_q = {q_ids, {batch, q_len}, {0, 1}};
    of_k = {k_ids, {batch, kv_len}, {0, 1}};
  }
  const RotaryPairs pairs = rotary.pairs;
  const auto turn = [&](index_t begin, index_t end, const RotaryTable<Accumulator<T>>& table,
                        const auto& q_ids, const auto& k_ids) {
    const TensorView4<T> queries = q.slice(0, begin, end);
    rotary_embedding(queries, table.cos, table.sin, q_ids, queries, pairs, options.execution);
    if (k) {
      const TensorView4<T> keys = k.slice(0, begin, end);
      rotary_embedding(keys, table.cos, table.sin, k_ids, keys, pairs, options.execution);
    }
  };
  for_rotary_rows(rotary, whole, of_q, k ? of_k : of_q, turn);
  scale_queries(rotary.scaling, q, of_q, options.execution);
}

/// Calls f(b, options) for every batch row: each row on its own thread if there are enough rows and
/// work, otherwise one after another on all threads. Results do not depend on threads.
template <class T, class Work, class F>
void for_conversations(index_t batch, const Work& row_work, const AttentionOptions<T>& options,
                       const F& f) {
  constexpr index_t kCallWork = index_t{1} << 16;  // the cost of a call besides its products
  index_t work = 0;
  for (index_t b = 0; b < batch; ++b) work += row_work(b) + kCallWork;
  const Executor& threads = threads_for(options.execution.threads(), work);
  if (batch < worker_count(threads)) {
    for (index_t b = 0; b < batch; ++b) f(b, options);
    return;
  }
  static const SerialExecutor serial;
  AttentionOptions<T> of_one = options;
  of_one.execution.executor = &serial;
  of_one.execution.workspace = nullptr;  // the execution of the current thread
  threads.run(batch, [&](index_t b, int) { f(b, of_one); });
}

}  // namespace detail

ATTN_NAMESPACE_END
