// BackwardTile: weights and score gradients of a block of rows against a block of keys.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attn/attention/score_gradients_backward.hpp"
#include "attn/attention/task_rows.hpp"

ATTN_NAMESPACE_BEGIN

namespace detail {

/// `columns` are keys of the block, from its first on.
template <class T>
class BackwardTile {
 public:
  /// `deltas` of all rows: see AttentionProblem::row_at().
  BackwardTile(const BackwardProblem<T>& problem, const RowKernels<T>& kernels,
               const GradientKernels<T>& gradients, const BackwardScratch<T>& scratch,
               const BackwardShare<T>& share, T* deltas, index_t b)
      : forward_(problem.forward),
        kernels_(kernels),
        gradients_(gradients),
        scratch_(scratch),
        rows_(problem, kernels, gradients, scratch, share, deltas, b) {}

  /// Weights and score gradients are 0 where rows [r, r + height) see nothing but others of the
  /// block do; up to a whole tile of keys.
  void clear_beyond(index_t r, index_t height, KeyRange columns, KeyRange seen) const {
    const index_t end = seen.end + kMaxTileRows;  // score_stride has room
    const bool any = columns.begin < columns.end;
    const index_t from = any ? columns.begin : end, to = any ? columns.end : end;
    for (index_t x = r; x < r + height; ++x) {
      for (T* row : {scratch_.weights, scratch_.dropped, scratch_.d_s}) {
        row += x * scratch_.score_stride;
        std::fill(row + seen.begin, row + from, T{0});
        std::fill(row + to, row + end, T{0});
      }
    }
  }

  /// to[r, j] = scale a_r . b_j for n rows in `a` and the keys of `panels`, each tile of rows
  /// against `columns` of its own. Panel after panel, which stays in the first cache while the
  /// tiles pass: tile after tile each would come from the second, which takes 1.1 times as long.
  void multiply(index_t n, index_t dim, const T* a, const T* panels, T scale,
                const KeyRange* columns, KeyRange seen, T* to) const {
    const index_t NR = kernels_.panel_width, MR = kernels_.tile_rows;
    for (index_t j = seen.begin & -NR; j < seen.end; j += NR) {
      for (index_t r = 0, t = 0; r < n; r += MR, ++t) {
        const auto [begin, end] = columns[t];
        if (begin >= end || j >= end || j + NR <= begin) continue;
        gradients_.score_panel(dim, a + r * dim, dim, panels + j * dim, scale,
                               to + r * scratch_.score_stride + j, scratch_.score_stride);
      }
    }
  }

  /// From scores and d_p of rows [r, r + height) over `columns` of the block that begins with
  /// `first_key` to weights, dropped weights and score gradients. `makes_deltas`: only the rows'
  /// deltas are wanted.
  void make(const TaskRows<T>& rows, index_t r, index_t height, index_t first_key, KeyRange columns,
            bool finite, bool makes_deltas) const {
    const index_t NR = kernels_.panel_width;
    const auto [begin, end] = columns;
    // Columns of a panel beyond `columns` belong to keys that no row of the tile sees; they are 0
    // again afterwards.
    const index_t first = begin & -NR, last = round_up(end, NR);
    const KeyRange keys{first_key + begin, first_key + end};
    const bool all_visible = rows.visibility(r, height, keys) == Visibility::full;
    for (index_t x = r; x < r + height; ++x) {
      if (x + height < rows.count()) rows_.prefetch(rows[x + height], keys, makes_deltas);
      clear(scratch_.weights, x, {first, last}, columns);
      clear(scratch_.d_s, x, {first, last}, columns);
      rows_.make_row(rows[x], x, first_key, columns, all_visible, finite, makes_deltas);
      if (scratch_.dropped != scratch_.weights) {
        clear(scratch_.dropped, x, {first, last}, columns);
      }
    }
  }

 private:
  /// 0 in the columns of `panels` beyond `columns`.
  void clear(T* scores, index_t row, KeyRange panels, KeyRange columns) const {
    T* s = scores + row * scratch_.score_stride;
    std::fill(s + panels.begin, s + columns.begin, T{0});
    std::fill(s + columns.end, s + panels.end, T{0});
  }

  const AttentionProblem<T>& forward_;
  const RowKernels<T>& kernels_;
  const GradientKernels<T>& gradients_;
  const BackwardScratch<T>& scratch_;
  ScoreGradients<T> rows_;
};

}  // namespace detail

ATTN_NAMESPACE_END
