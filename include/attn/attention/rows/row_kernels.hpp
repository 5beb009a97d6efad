// RowKernels: inner loops of attention over rows of scores.
// SPDX-License-Identifier: Apache-2.0
//
// Only these are compiled once per instruction set. The code that cuts a call into tasks, blocks
// and tiles (tiling.hpp, forward.hpp) is compiled once for all sets.
#pragma once

#include "attn/attention/call/problem.hpp"
#include "attn/kernels/gemm/tile.hpp"
#include "attn/kernels/rows/softmax.hpp"

ATTN_NAMESPACE_BEGIN

namespace detail {

template <class T>
inline constexpr T kMinusInf = -std::numeric_limits<T>::infinity();

/// Online softmax state of one row: the largest score so far and the sum of e^(s - row_max).
template <class T>
struct RowState {
  T row_max, row_sum;
};

/// One query of one head. Row r of a key/value head is query r % q_len of the (r / q_len)-th query
/// head that shares it.
template <class T>
struct QueryRow {
  index_t h, i;
  KeyRange keys;
  RowState<T> state;  ///< the sink joins it in finalize_rows(), after all keys
  T output_scale;     ///< set by finalize_rows(): output = output_scale * (sum of weights v)
};

/// Merges state and sum (n elements) of one split into those of the row, by the formula of
/// merge_states().
template <class T>
void merge_state(index_t n, const RowState<T>& split, const T* split_sum, RowState<T>& row,
                 T* sum) {
  if (split.row_sum == T{0}) {  // no weights: the sum is 0, or NaN from 0 times a value
    for (index_t x = 0; x < n; ++x) sum[x] += split_sum[x];
    return;
  }
  const T row_max = (std::max)(row.row_max, split.row_max);
  if (row_max == kMinusInf<T>) {  // all scores are NaN, which row_max ignores and row_sum keeps
    row.row_sum += split.row_sum;
    return;
  }
  const T rescale = std::exp(row.row_max - row_max), added = std::exp(split.row_max - row_max);
  for (index_t x = 0; x < n; ++x) sum[x] = sum[x] * rescale + split_sum[x] * added;
  row = {row_max, row.row_sum * rescale + split.row_sum * added};
}

/// MR of the tallest tile of any target; determines the size of scratch.
inline constexpr index_t kMaxTileRows = 8;

template <class T>
struct RowKernels {
  index_t tile_rows;    ///< MR: rows of a tile
  index_t panel_width;  ///< NR: keys of a packed panel

  /// Packs rows of T into columns of a panel: see tile.inc.hpp.
  void (*pack_part)(index_t width, index_t room, index_t k, const T* b, index_t column_stride,
                    T* panel);

  /// scores[r, j] = scale q_r . k_j over d elements, for the MR queries of one tile and the NR keys
  /// of a packed panel; also prefetches from `to_prefetch` on, as many bytes as the panel has.
  void (*score_panel)(index_t d, const T* queries, index_t queries_stride, const T* panel, T scale,
                      T* scores, index_t stride, const void* to_prefetch);

  /// s = cap tanh(s / cap)
  void (*softcap)(index_t n, T* s, T cap);
  /// s += bias; -inf where the bias is -inf.
  void (*add_bias)(index_t n, T* s, const T* bias, index_t stride);
  /// s[j] = -inf where mask[j * stride] == masked: true for a drop mask, false for a keep mask.
  void (*mask_out)(index_t n, T* s, const bool* mask, index_t stride, bool masked);
  /// s[j] -= slope |distance - j|; `distance` is the query's position minus that of key 0 of the
  /// row.
  void (*add_alibi)(index_t n, T* s, T slope, index_t distance);

  /// One block of online softmax: updates each row's state, sets s = e^(s - row_max) over n scores
  /// of each row (memory holds whole panels), and sets `rescale`, by which the caller multiplies
  /// the row's earlier sums.
  void (*online_softmax)(index_t height, index_t n, T* s, index_t stride, QueryRow<T>* rows,
                         T* rescale);
  /// out = e^(s - row_max) / row_sum over n scores of a row with a final state.
  void (*final_weights)(index_t n, const T* s, const RowState<T>& state, T* out);

  /// Dropout of one query's weights for the keys at positions [first_position, first_position + n).
  void (*apply_dropout)(index_t n, T* weights, const Dropout& dropout, index_t b, index_t h,
                        index_t i, index_t first_position);

  /// out_r = rescale_r out_r + sum over j of weights[r, j] v_j for one tile.
  void (*add_values_tile)(index_t dv, index_t n, const T* weights, index_t weights_stride,
                          const T* values, index_t value_stride, T* out, index_t out_stride,
                          const T* rescale);

  /// out_r = rows_r.output_scale x_r for n elements of each row; returns whether all of them are
  /// finite.
  bool (*scale_rows)(index_t height, index_t n, const QueryRow<T>* rows, const T* x,
                     index_t x_stride, T* out, index_t out_stride);
};

/// Attention's inner loops over rows of one stored element type (float, double, bfloat16, float16
/// or int8), computed in T.
template <class T>
struct ElementKernels {
  /// Packs rows into columns of a panel: see pack_part in tile.inc.hpp.
  void (*pack_rows)(index_t width, index_t room, index_t k, StoredRows<T> rows, T* panel);
  /// to = rows, multiplied by their scales.
  void (*widen_rows)(index_t count, index_t n, StoredRows<T> rows, T* to, index_t to_stride);
  /// to = rows, multiplied by their scales unless these are nullptr, through pointers to `count`
  /// rows; prefetches later ones of the `readable` pointers.
  void (*copy_rows)(index_t count, index_t readable, index_t n, const void* const* rows,
                    const T* scales, T* to, index_t to_stride);
  /// to = rows, each element rounded once. Not for int8.
  void (*narrow_rows)(index_t count, index_t n, const T* rows, index_t stride, void* to,
                      index_t to_stride);

  /// scores[r, j] = scale q_r . k_j of the decode path for `height` (at most kMaxDecodeRows)
  /// queries and n keys, through pointers to their rows; scales of int8 keys are not applied.
  void (*score_rows)(index_t height, index_t n, index_t d, const T* queries, index_t queries_stride,
                     const void* const* keys, T scale, T* scores, index_t stride, bool scattered);
  /// out_r = rescale_r out_r + sum over j of weights[r, j] v_j of the decode path for `height`
  /// rows; scales of int8 values are not applied. `first`: index of v_0 in its block of keys.
  void (*add_values_rows)(index_t height, index_t dv, index_t first, index_t n, const T* weights,
                          index_t weights_stride, const void* const* values, T* out,
                          index_t out_stride, const T* rescale, bool scattered);
  /// s[r, j] *= factors[j]: applies the scales of n int8 keys or values. nullptr for other element
  /// types.
  void (*scale_columns)(index_t height, index_t n, const T* factors, T* s, index_t stride);
};

}  // namespace detail

ATTN_NAMESPACE_END

#define ATTN_KERNEL_TEXT "attn/kernels/gemm/dot.inc.hpp"
#include "attn/simd/foreach_isa.hpp"
#define ATTN_KERNEL_TEXT "attn/attention/rows/dropout.inc.hpp"
#include "attn/simd/foreach_isa.hpp"
#define ATTN_KERNEL_TEXT "attn/attention/rows/row_kernels.inc.hpp"
#include "attn/simd/foreach_isa.hpp"
#define ATTN_KERNEL_TEXT "attn/attention/rows/element_rows.inc.hpp"
#include "attn/simd/foreach_isa.hpp"
