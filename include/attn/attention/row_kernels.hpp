// RowKernels: what attention asks of an instruction set, as a table of functions over plain arrays.
// SPDX-License-Identifier: Apache-2.0
//
// Only this is compiled once per set. How a call is cut into tasks, blocks and tiles (tiling.hpp,
// forward.hpp) is compiled once altogether.
#pragma once

#include "attn/attention/problem.hpp"
#include "attn/kernels/softmax.hpp"
#include "attn/kernels/tile.hpp"

ATTN_NAMESPACE_BEGIN

namespace detail {

template <class T>
inline constexpr T kMinusInf = -std::numeric_limits<T>::infinity();

/// Online softmax state of one row: the largest score so far and the sum of e^(s - row_max).
template <class T>
struct RowState {
  T row_max, row_sum;
};

/// One query of one head. Row r of a key/value head is query r % q_len of the head r / q_len of
/// those that share it.
template <class T>
struct QueryRow {
  index_t h, i;
  KeyRange keys;
  RowState<T> state;  ///< without a sink until all keys are in
  T output_scale;     ///< output = output_scale times the sum of weights times values
};

/// Adds one part of the keys to a row's state and to its sum of n elements.
template <class T>
void merge_part(index_t n, const RowState<T>& part, const T* part_sum, RowState<T>& row, T* sum) {
  if (part.row_sum == T{0}) {  // no weights: a sum of 0, or NaN of a value times a weight of 0
    for (index_t x = 0; x < n; ++x) sum[x] += part_sum[x];
    return;
  }
  const T row_max = (std::max)(row.row_max, part.row_max);
  if (row_max == kMinusInf<T>) {  // nothing but NaN, which the largest passes over
    row.row_sum += part.row_sum;
    return;
  }
  const T old = std::exp(row.row_max - row_max), added = std::exp(part.row_max - row_max);
  for (index_t x = 0; x < n; ++x) sum[x] = sum[x] * old + part_sum[x] * added;
  row = {row_max, row.row_sum * old + part.row_sum * added};
}

/// Rows of the highest tile of any target, for which scratch is laid out.
inline constexpr index_t kMaxTileRows = 8;

template <class T>
struct RowKernels {
  index_t tile_rows;    ///< MR: rows of a tile
  index_t panel_width;  ///< NR: keys of a packed panel

  /// Packing of rows of T: see tile.inc.hpp.
  void (*pack_part)(index_t width, index_t room, index_t k, const T* b, index_t column_stride,
                    T* panel);

  /// scores[r, j] = scale q_r . k_j for the queries of one tile and the keys of a packed panel;
  /// prefetches a panel's worth of memory from `to_prefetch` on.
  void (*score_panel)(index_t d, const T* queries, index_t queries_stride, const T* panel, T scale,
                      T* scores, index_t stride, const void* to_prefetch);

  /// s = cap tanh(s / cap)
  void (*softcap)(index_t n, T* s, T cap);
  /// s += bias; -inf where the bias is.
  void (*add_bias)(index_t n, T* s, const T* bias, index_t stride);
  /// s = -inf where shown[j] == hidden.
  void (*mask_out)(index_t n, T* s, const bool* shown, index_t stride, bool hidden);
  /// s[j] -= slope |distance - j|
  void (*add_alibi)(index_t n, T* s, T slope, index_t distance);

  /// s = e^(s - row maximum) over n scores of each row; memory holds whole panels of them. Earlier
  /// sums of a row are to be multiplied by its `rescale`.
  void (*online_softmax)(index_t height, index_t n, T* s, index_t stride, QueryRow<T>* rows,
                         T* rescale);
  /// out = e^(s - row_max) / row_sum over n scores of a row whose state is final.
  void (*final_weights)(index_t n, const T* s, const RowState<T>& state, T* out);

  /// Dropout of keys [first_key, first_key + n) of one query.
  void (*apply_dropout)(index_t n, T* weights, const Dropout& dropout, index_t b, index_t h,
                        index_t i, index_t first_key);

  /// out_r = rescale_r out_r + sum over j of weights[r, j] v_j for one tile.
  void (*add_values_tile)(index_t dv, index_t n, const T* weights, index_t weights_stride,
                          const T* values, index_t value_stride, T* out, index_t out_stride,
                          const T* rescale);

  /// out_r = rows_r.output_scale x_r for n elements of each row; returns whether all of it is
  /// finite.
  bool (*scale_rows)(index_t height, index_t n, const QueryRow<T>* rows, const T* x,
                     index_t x_stride, T* out, index_t out_stride);
};

/// What attention asks of an instruction set for rows of one element, as they are stored; it
/// computes in T.
template <class T>
struct ElementKernels {
  /// Rows into the columns of a panel: see pack_part in tile.inc.hpp.
  void (*pack_rows)(index_t width, index_t room, index_t k, StoredRows<T> rows, T* panel);
  /// to = rows, times their scales.
  void (*widen_rows)(index_t count, index_t n, StoredRows<T> rows, T* to, index_t to_stride);
  /// to = rows, each element rounded once. Not of int8.
  void (*narrow_rows)(index_t count, index_t n, const T* rows, index_t stride, void* to,
                      index_t to_stride);

  /// scores[r, j] = scale q_r . k_j for `height` (at most kMaxDecodeRows) rows of queries and n
  /// rows of keys, wherever they lie; without the scales of the keys.
  void (*score_rows)(index_t height, index_t n, index_t d, const T* queries, index_t queries_stride,
                     const void* const* keys, T scale, T* scores, index_t stride);
  /// out_r = rescale_r out_r + sum over j of weights[r, j] v_j for as many rows, without the scales
  /// of the values, which are those of keys from `first` of their block on.
  void (*add_values_rows)(index_t height, index_t dv, index_t first, index_t n, const T* weights,
                          index_t weights_stride, const void* const* values, T* out,
                          index_t out_stride, const T* rescale);
  /// s[r, j] *= factors[j]: what the scales of n keys or values do to as many rows. Of int8 alone.
  void (*scale_columns)(index_t height, index_t n, const T* factors, T* s, index_t stride);
};

}  // namespace detail

ATTN_NAMESPACE_END

#define ATTN_KERNEL_TEXT "attn/kernels/dot.inc.hpp"
#include "attn/simd/foreach_isa.hpp"
#define ATTN_KERNEL_TEXT "attn/attention/dropout.inc.hpp"
#include "attn/simd/foreach_isa.hpp"
#define ATTN_KERNEL_TEXT "attn/attention/row_kernels.inc.hpp"
#include "attn/simd/foreach_isa.hpp"
#define ATTN_KERNEL_TEXT "attn/attention/element_rows.inc.hpp"
#include "attn/simd/foreach_isa.hpp"
