// AttentionProblem: a checked call, and the position of its rows in batches, sequences or pages.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attn/attention/call/block_table.hpp"
#include "attn/attention/call/gathered_keys.hpp"
#include "attn/attention/call/stored_view.hpp"
#include "attn/attention/options.hpp"

ATTN_NAMESPACE_BEGIN

namespace detail {

/// A user's functor applied to a row of n scores or weights of one query, whose keys have the
/// positions [first_position, first_position + n). Called through a pointer, because kernels may be
/// compiled in a library before the functor is. functors.hpp makes these.
template <class T>
struct RowFunctor {
  const void* object = nullptr;
  void (*apply)(const void* object, index_t n, T* row, index_t b, index_t h, index_t i,
                index_t first_position) = nullptr;

  explicit operator bool() const { return apply != nullptr; }
};

template <class T>
struct RowFunctors {
  RowFunctor<T> score = {}, mask = {}, prob = {};
  /// classify() of the mask functor; nullptr if it has none.
  Visibility (*classify)(const void* object, index_t b, index_t h, KeyRange queries,
                         KeyRange keys) = nullptr;
  BlockTable blocks = {};  ///< of a BlockMask
};

/// Rows in the caller's memory, `stride` elements apart. With scales, the value of row r is
/// scales[r] times the stored elements.
template <class T>
struct StoredRows {
  const void* data;
  index_t stride;
  const T* scales = nullptr;
};

/// The first keys of all batch rows of a cache, which share them.
struct SharedKeys {
  index_t length = 0;  ///< number of shared keys; key j >= length is row j - length of k and v
  /// Row of the first shared key of head 0, counted from the first row of k and v; the other keys
  /// and heads follow.
  index_t first_row = 0;
};

/// One call, computed in type T. q and out share an element type, and so do k and v; the backend
/// that runs the call is instantiated for both. Refers to the caller's options, which must outlive
/// it.
template <class T>
struct AttentionProblem {
  StoredView<const void> q, k, v;
  StoredView<void> out;
  const AttentionOptions<T>& options;
  T scale;
  /// (batch, num_heads, q_len, kv_len); of packed sequences, the longest lengths. With gathered
  /// keys, each block of queries of each key/value head is a batch row: see GatheredKeys.
  Shape<4> scores;
  index_t heads_per_kv_head;
  /// Larger in a call on some of the heads that share keys: it gets the bits of a call on so many.
  index_t tiled_heads_per_kv_head = heads_per_kv_head;
  TensorView2<const T> alibi_slopes = {};  ///< (batch, num_heads)
  RowFunctors<T> functors = {};
  /// Scales of int8 keys and values (batch, num_kv_heads, kv_len), last stride 1; empty for others.
  TensorView3<const T> k_scales = {}, v_scales = {};
  GatheredKeys gathered = {};
  SharedKeys shared = {};

  /// Whether queries and outputs, or keys and values, have another element type than T.
  bool widens_queries() const { return q.element_size() != index_t{sizeof(T)}; }
  bool widens_keys() const { return k.element_size() != index_t{sizeof(T)}; }

  index_t batch() const { return scores[0]; }
  index_t num_heads() const { return scores[1]; }
  index_t num_kv_heads() const { return gathered ? 1 : k.extent(1); }
  index_t head_dim() const { return q.extent(3); }
  index_t head_dim_v() const { return v.extent(3); }
  /// Length of the dot product of one score.
  index_t score_dim() const { return head_dim() + (options.qv ? head_dim_v() : 0); }
  bool packed() const { return static_cast<bool>(options.cu_seqlens_q); }
  bool paged() const { return static_cast<bool>(options.block_table); }
  /// Whether all keys that are given for a head lie one stride apart: none in pages or shared.
  bool has_one_stride() const { return !paged() && shared.length == 0; }
  /// Whether keys lie anywhere in memory: in pages, shared, or gathered.
  bool scattered() const { return gathered || !has_one_stride(); }
  /// Whether only the queries of a batch row affect its scores with shared keys.
  bool scores_alike() const {
    const Mask& mask = options.mask;
    const bool differ = mask.num_dense > 0 || mask.key_lengths || mask.query_lengths ||
                        mask.left_padding || mask.prefix_lengths || mask.documents ||
                        options.batch_alibi_slopes || options.dropout.p > 0 || gathered ||
                        options.offset.kind == QueryOffset::Kind::per_row;
    return !differ && !functors.score && !functors.mask && !functors.prob;
  }

  SequenceLengths lengths(index_t b) const {
    if (gathered) return gathered.sequence(b);
    const auto &q_starts = options.cu_seqlens_q, &k_starts = options.cu_seqlens_k;
    const index_t q_len = q_starts ? q_starts(b + 1) - q_starts(b) : scores[2];
    if (!k_starts) {
      return {.b = b, .q_len = q_len, .kv_len = scores[3], .first_key = options.first_key};
    }
    const index_t begin = k_starts(b), end = k_starts(b + 1);
    const index_t first = std::clamp(options.first_key, begin, end);
    return {.b = b, .q_len = q_len, .kv_len = end - first, .first_key = first - begin};
  }
  /// The attention sink of head h of batch row b, a logit without a value; -inf without sinks.
  T sink(index_t b, index_t h) const {
    if (!options.sinks) return -std::numeric_limits<T>::infinity();
    return options.sinks(gathered ? gathered.head(b, h) : h);
  }
  /// Number of the given keys within the key length of the batch row.
  index_t keys_of(index_t b) const {
    const SequenceLengths row = lengths(b);
    return (std::max)(row.keys(options.mask) - row.first_key, index_t{0});
  }
  /// The unpadded keys of the batch row, which MaskedRow::mean averages; requires first_key 0.
  KeyRange unpadded_keys(index_t b) const {
    const auto& padding = options.mask.left_padding;
    const index_t end = keys_of(b);
    return {padding ? (std::min)(padding(b), end) : 0, end};
  }
  index_t position(index_t b, index_t i) const {
    return detail::position(options.mask, options.offset, lengths(b), i);
  }
  KeyRange keys_seen(index_t b, index_t i) const {
    if (gathered) return gathered.keys_seen(options.mask, options.offset, b, i);
    return detail::keys_seen(options.mask, options.offset, lengths(b), i);
  }

  /// The smallest range of the given keys that contains keys_seen() of every query of the batch
  /// row.
  KeyRange keys_seen(index_t b) const {
    const index_t q_len = lengths(b).q_len;
    if (q_len == 0 || !options.mask.has_intervals()) return keys_seen(b, 0);
    KeyRange all{keys_of(b), 0};
    for (index_t i = 0; i < q_len; ++i) {
      const KeyRange seen = keys_seen(b, i);
      if (seen.begin >= seen.end) continue;
      all = {(std::min)(all.begin, seen.begin), (std::max)(all.end, seen.end)};
    }
    return all;
  }

  /// Whether the tiled path multiplies int8 values. Sums of more than 65536 products would overflow
  /// 32 bits.
  bool has_codes() const {
    return options.precision.is_int8() && score_dim() <= (index_t{1} << 16);
  }
  /// Whether the call has queries.
  bool has_rows() const { return batch() > 0 && num_heads() > 0 && scores[2] > 0; }
  /// Whether any key may be masked out.
  bool masks_keys() const {
    return options.mask.num_dense > 0 || options.mask.has_intervals() || options.relative_bias ||
           functors.mask || functors.score;
  }
  /// Index of a query in (batch, num_heads, q_len).
  index_t row_at(index_t b, index_t h, index_t i) const {
    return (b * scores[1] + h) * scores[2] + i;
  }

  /// Row i of q. The functions below return its row of qv, its row of out and its element of lse.
  const void* query(index_t b, index_t h, index_t i) const { return q.at_index(row(b, h, i)); }
  const T* query_of_values(index_t b, index_t h, index_t i) const {
    return options.qv.at_index(row(b, h, i));
  }
  void* output(index_t b, index_t h, index_t i) const { return out.at_index(row(b, h, i)); }
  T& lse(index_t b, index_t h, index_t i) const {
    const Shape<4> at = row(b, h, i);
    return options.lse(at[0], at[1], at[2]);
  }

  /// Index of head h in options.weights; -1 if weight_heads does not name it.
  index_t weights_at(index_t h) const {
    const auto& chosen = options.weight_heads;
    if (!chosen) return h;
    for (index_t n = 0; n < chosen.extent(0); ++n) {
      if (chosen(n) == h) return n;
    }
    return -1;
  }

  KeyHead key_head(index_t b, index_t kv_head) const {
    if (gathered) return gathered.key_head(b);
    return {b, kv_head};
  }
  /// Row of the j-th key of a head in k or v.
  const void* key(const StoredView<const void>& of, const KeyHead& head, index_t j) const {
    return of.at_index(key_index(head, j));
  }
  /// Rows of keys or values [j, run_end(j, ..)).
  StoredRows<T> keys_from(const KeyHead& head, index_t j) const {
    return rows_from(k, k_scales, head, j);
  }
  StoredRows<T> values_from(const KeyHead& head, index_t j) const {
    return rows_from(v, v_scales, head, j);
  }
  StoredRows<T> rows_from(const StoredView<const void>& of, const TensorView3<const T>& scales,
                          const KeyHead& head, index_t j) const {
    return {key(of, head, j), of.stride(2), scales_from(scales, head, j)};
  }
  /// Scales of these rows, from k_scales or v_scales; nullptr without scales.
  const T* scales_from(const TensorView3<const T>& scales, const KeyHead& head, index_t j) const {
    if (!scales) return nullptr;
    const Shape<4> at = key_index(head, j);
    return scales.at_index({at[0], at[1], at[2]});
  }

  /// The end of the run of keys from j on with one stride between them: `end`, or the page's end.
  index_t run_end(index_t j, index_t end) const {
    if (gathered) return j + 1;
    if (j < shared.length) return (std::min)(shared.length, end);
    return paged() ? (std::min)((j / k.extent(2) + 1) * k.extent(2), end) : end;
  }

  /// Index of the j-th key of a head in k and v.
  Shape<4> key_index(const KeyHead& head, index_t j) const {
    return stored_index(head.b, head.kv_head, head.key(j));
  }

  /// Index of query i in q and out.
  Shape<4> row(index_t b, index_t h, index_t i) const {
    if (gathered) return gathered.query_index(b, h, i);
    const auto& starts = options.cu_seqlens_q;
    return starts ? Shape<4>{0, h, starts(b) + i, 0} : Shape<4>{b, h, i, 0};
  }

 private:
  Shape<4> stored_index(index_t b, index_t kv_head, index_t j) const {
    if (paged()) {
      const index_t size = k.extent(2);
      return {options.block_table(b, j / size), kv_head, j % size, 0};
    }
    if (j < shared.length) return {0, 0, shared.first_row + kv_head * shared.length + j, 0};
    const auto& starts = options.cu_seqlens_k;
    if (!starts) return {b, kv_head, j - shared.length, 0};
    const index_t first = (std::max)(starts(b) - options.first_key, index_t{0});
    return {0, kv_head, first + j, 0};
  }
};

}  // namespace detail

ATTN_NAMESPACE_END
