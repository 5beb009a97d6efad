// CodeKernels: kernels for products of 8-bit queries and keys.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attn/attention/tasks/code_scratch.hpp"
#include "attn/attention/tasks/pair_scratch.hpp"
#include "attn/kernels/gemm/tile.hpp"
#include "attn/kernels/quantized/quantize_rows.hpp"
#include "attn/simd/int8/int8.hpp"
#include "attn/simd/tiles.hpp"

ATTN_NAMESPACE_BEGIN

namespace detail {

/// A tile of quantised queries.
template <class T>
struct CodeQueries {
  const std::int8_t* codes;  ///< rows, `row_bytes` apart, a multiple of `step`
  index_t row_bytes;
  const T* scales;             ///< of the rows, times the scale of the call
  const std::int32_t* starts;  ///< initial values of the rows' sums
  const T* means;              ///< scale q . mean (rows, kMaxMeans)
};

/// A panel of quantised keys, column by column; four consecutive elements of a column are adjacent
/// in memory.
template <class T>
struct CodePanel {
  const std::uint8_t* codes;
  const T* scales;
  index_t mean;    ///< index of the mean of the first columns
  index_t shared;  ///< number of these columns; the others have the next mean
};

template <class T>
struct CodeKernels {
  static constexpr bool kExtended = true;

  index_t step;  ///< numbers of a row that products take at once
  /// Quantises a row of d query elements and pads it with zeros to row_bytes; `start` is the
  /// initial value of the sums of its products. Returns the scale, NaN if an element is not finite.
  T(*quantize_query)
  (index_t d, const T* query, std::int8_t* codes, index_t row_bytes, std::int32_t* start);
  /// mean[x * kMaxMeans] = the mean of the finite rows among [first, end), rows of d contiguous
  /// elements; subtracts it from all `count` rows.
  void (*center_rows)(index_t count, index_t first, index_t end, index_t d, T* rows, T* mean);
  /// Quantises `count` contiguous rows of d elements into columns of a panel, with their scales.
  /// `line` has room for one quantised row.
  void (*pack_codes)(index_t count, index_t d, const T* rows, index_t row_bytes, std::int8_t* line,
                     std::uint8_t* panel, T* scales);
  /// out (rows, kMaxMeans) = scale q . mean for tiles of queries of d elements.
  void (*score_means)(index_t rows, index_t d, const T* queries, index_t queries_stride,
                      const T* means, T scale, T* out);
  /// scores[r, j] = scale q_r . k_j for a tile of queries and a panel; also prefetches from
  /// `to_prefetch` on, as many bytes as the panel has.
  void (*score_panel)(const CodeQueries<T>& queries, const CodePanel<T>& panel, T* scores,
                      index_t stride, const void* to_prefetch);
};

}  // namespace detail

ATTN_NAMESPACE_END

#define ATTN_KERNEL_TEXT_EXTENDED
#define ATTN_KERNEL_TEXT "attn/attention/paths/code_kernels.inc.hpp"
#include "attn/simd/foreach_isa.hpp"
