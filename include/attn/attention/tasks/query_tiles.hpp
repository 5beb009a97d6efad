// QueryTiles: the queries of a task in whole tiles, in place or copied.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attn/attention/tasks/kernels.hpp"
#include "attn/attention/tasks/scratch.hpp"
#include "attn/attention/tasks/task_rows.hpp"

ATTN_NAMESPACE_BEGIN

namespace detail {

template <class T>
class QueryTiles {
 public:
  /// Copies the queries into scratch.q, unless all tiles can be read in place.
  QueryTiles(const AttentionProblem<T>& problem, const ForwardKernels<T>& kernels,
             const SequenceTiling& tiling, const ForwardScratch<T>& scratch,
             const TaskRows<T>& rows, const RowBlock& block)
      : problem_(problem),
        of_queries_(kernels.of_queries),
        rows_(rows),
        copies_(scratch.q),
        b_(block.b),
        rows_of_b_(block.joins_batch ? problem.heads_per_kv_head * problem.lengths(block.b).q_len
                                     : (std::max)(block.num_rows, index_t{1})),
        tile_rows_(tiling.decode ? (std::max)(tiling.rows, index_t{1})
                                 : kernels.products.tile_rows),
        height_(tiling.decode ? round_up(tile_rows_, kDecodeRowsAtOnce) : tile_rows_),
        count_((rows.count() + tile_rows_ - 1) / tile_rows_),
        stride_(rows.count() > 1 && !problem.widens_queries() ? query(1) - query(0)
                                                              : problem.head_dim()) {
    // Reads in place where possible: always copying takes 1.01 times as long in attn_report
    // sdpa_short and sdpa_512. But the many rows of a decode step are read again for each key, and
    // rows a power of two apart may evict one another.
    has_copies_ = problem.options.qv || problem.widens_queries() ||
                  (tiling.decode && tile_rows_ > kDecodeRowsAtOnce) || !fill_tiles();
    if (has_copies_) copy();
  }

  /// Rows of a tile: MR; on the decode path all rows of a key/value head.
  index_t tile_rows() const { return tile_rows_; }
  /// tile_rows() rounded up to what kernels read and write at once.
  index_t height() const { return height_; }
  /// Number of tiles.
  index_t count() const { return count_; }
  /// Number of rows in the tile that begins with row r.
  index_t rows_from(index_t r) const { return (std::min)(rows_.count() - r, tile_rows_); }

  const T* tile(index_t t) const {
    return has_copies_ ? copies_ + t * height_ * problem_.score_dim() : query(t * tile_rows_);
  }
  /// Elements between the rows of a tile.
  index_t stride() const { return stride_; }

 private:
  index_t batch_row(index_t r) const { return b_ + r / rows_of_b_; }
  /// Only for queries of type T.
  const T* query(index_t r) const {
    return static_cast<const T*>(problem_.query(batch_row(r), rows_[r].h, rows_[r].i));
  }

  /// Whether queries fill whole tiles and the rows of each tile lie stride_ apart.
  bool fill_tiles() const {
    const index_t last = tile_rows_ - 1;
    if (height_ != tile_rows_ || rows_.count() != count_ * tile_rows_) return false;
    for (index_t r = 0; r < rows_.count(); r += tile_rows_) {
      if (query(r + last) != query(r) + last * stride_) return false;
    }
    return true;
  }

  /// Copies the queries and pads the last tile with rows of 0.
  void copy() {
    const index_t d = problem_.head_dim(), score_dim = problem_.score_dim();
    stride_ = score_dim;
    T* to = copies_;
    for (index_t r = 0; r < rows_.count(); r += tile_rows_) {
      const index_t num_rows = rows_from(r);
      for (index_t x = 0; x < num_rows; ++x, to += score_dim) {
        const QueryRow<T>& row = rows_[r + x];
        const index_t b = batch_row(r + x);
        of_queries_.widen_rows(1, d, {problem_.query(b, row.h, row.i), 0}, to, 0);
        if (problem_.options.qv) {
          std::copy_n(problem_.query_of_values(b, row.h, row.i), score_dim - d, to + d);
        }
      }
      std::fill_n(to, (height_ - num_rows) * score_dim, T{0});
      to += (height_ - num_rows) * score_dim;
    }
  }

  const AttentionProblem<T>& problem_;
  const ElementKernels<T>& of_queries_;
  const TaskRows<T>& rows_;
  T* copies_;
  index_t b_;
  index_t rows_of_b_;  ///< of one batch row
  index_t tile_rows_, height_, count_, stride_;
  bool has_copies_ = false;
};

}  // namespace detail

ATTN_NAMESPACE_END
