// BackwardTile: weights and score gradients of one tile of rows against a block of keys.
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
        scratch_(scratch),
        gradients_(problem, kernels, gradients, scratch, share, deltas, b) {}

  /// Weights and score gradients are 0 where rows [r, r + height) see nothing but others of the
  /// block do; up to a whole tile of keys.
  void clear_beyond(index_t r, index_t height, KeyRange columns, KeyRange seen) const {
    const index_t end = seen.end + kMostTileRows;  // score_stride has room
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

  /// Weights, dropped weights and score gradients of rows [r, r + height) over `columns` of the
  /// block that begins with `first_key`. `makes_deltas`: only the rows' deltas are wanted.
  void make(const TaskRows<T>& rows, index_t r, index_t height, index_t first_key, KeyRange columns,
            bool finite, bool makes_deltas) const {
    const index_t d = forward_.score_dim(), dv = forward_.head_dim_v();
    const index_t stride = scratch_.score_stride, NR = kernels_.panel_width;
    const auto [begin, end] = columns;
    T *s = scratch_.weights + r * stride, *d_p = scratch_.d_s + r * stride;
    // Columns of a panel beyond `columns` belong to keys that no row of the tile sees; they are 0
    // again afterwards.
    const index_t first = begin & -NR, last = round_up(end, NR);
    for (index_t j = first; j < end; j += NR) {
      const T *k_panel = scratch_.k_panels + j * d, *v_panel = scratch_.v_panels + j * dv;
      kernels_.score_panel(d, scratch_.q + r * d, d, k_panel, forward_.scale, s + j, stride,
                           k_panel);
      kernels_.score_panel(dv, scratch_.d_out + r * dv, dv, v_panel, T{1}, d_p + j, stride,
                           v_panel);
    }
    const KeyRange keys{first_key + begin, first_key + end};
    const bool all_visible = rows.visibility(r, height, keys) == Visibility::full;
    for (index_t x = r; x < r + height; ++x) {
      clear(scratch_.weights, x, {first, last}, columns);
      clear(scratch_.d_s, x, {first, last}, columns);
      gradients_.make_row(rows[x], x, first_key, columns, all_visible, finite, makes_deltas);
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
  const BackwardScratch<T>& scratch_;
  ScoreGradients<T> gradients_;
};

}  // namespace detail

ATTN_NAMESPACE_END
