// BackwardTile: weights and score gradients of a block of rows and a block of keys.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attn/attention/backward/score_gradients.hpp"
#include "attn/attention/tasks/task_rows.hpp"

ATTN_NAMESPACE_BEGIN

namespace detail {

/// The keys that the rows of a tile see, as columns of the block, and their visibility under the
/// mask functor.
struct TileKeys {
  KeyRange columns;
  KeyChunks chunks;

  /// Whether the rows see any key of `part`, which are columns.
  bool sees(KeyRange part) const {
    part = {(std::max)(part.begin, columns.begin), (std::min)(part.end, columns.end)};
    return part.begin < part.end && !chunks.is_empty(keys(part));
  }
  KeyRange keys(KeyRange part) const {
    return {chunks.first_key + part.begin, chunks.first_key + part.end};
  }
};

/// Columns count the keys of the block from its first key on.
template <class T>
class BackwardTile {
 public:
  explicit BackwardTile(const BackwardTask<T>& task) : task_(task), rows_(task) {}

  /// Clears weights and score gradients of rows [r, r + height) in the columns of `seen`, up to a
  /// whole tile of keys, that are not in `columns`. These rows see `columns`; the block of rows
  /// sees `seen`.
  void clear_beyond(index_t r, index_t height, KeyRange columns, KeyRange seen) const {
    const index_t end = seen.end + kMaxTileRows;  // score_stride has room
    const bool any = columns.begin < columns.end;
    const index_t from = any ? columns.begin : end, to = any ? columns.end : end;
    for (index_t x = r; x < r + height; ++x) {
      for (T* row : {task_.scratch.weights, task_.scratch.dropped, task_.scratch.d_s}) {
        row += x * task_.scratch.score_stride;
        std::fill(row + seen.begin, row + from, T{0});
        std::fill(row + to, row + end, T{0});
      }
    }
  }

  /// to[r, j] = scale a_r . b_j for n rows of `a` and, for each row tile t, the keys of `panels`
  /// that tiles[t] sees. Panels are the outer loop, so that each stays in L1 for all tiles; with
  /// tiles outermost, panels come from L2.
  void multiply(index_t n, index_t dim, const T* a, const T* panels, T scale, const TileKeys* tiles,
                KeyRange seen, T* to) const {
    const index_t NR = task_.kernels.panel_width, MR = task_.kernels.tile_rows;
    for (index_t j = seen.begin & -NR; j < seen.end; j += NR) {
      for (index_t r = 0, t = 0; r < n; r += MR, ++t) {
        if (!tiles[t].sees({j, j + NR})) continue;
        task_.gradients.score_panel(dim, a + r * dim, dim, panels + j * dim, scale,
                                    to + r * task_.scratch.score_stride + j,
                                    task_.scratch.score_stride);
      }
    }
  }

  /// ScoreGradients::make_row() for rows [r, r + height) over the keys of their tile.
  void make(const TaskRows<T>& rows, index_t r, index_t height, const TileKeys& tile, bool finite,
            bool only_deltas) const {
    const index_t NR = task_.kernels.panel_width;
    const KeyRange columns = tile.columns, keys = tile.keys(columns);
    const auto [begin, end] = columns;
    // Products filled whole panels; clears the columns beyond `columns`, keys that no row of the
    // tile sees.
    const index_t first = begin & -NR, last = round_up(end, NR);
    if (tile.chunks.has_empty()) clear_empty(r, height, tile);
    for (index_t x = r; x < r + height; ++x) {
      if (x + height < rows.count()) rows_.prefetch(rows[x + height], keys, only_deltas);
      clear(task_.scratch.weights, x, {first, last}, columns);
      clear(task_.scratch.d_s, x, {first, last}, columns);
      rows_.make_row(rows[x], x, columns, tile.chunks, finite, only_deltas);
      if (task_.scratch.dropped != task_.scratch.weights) {
        clear(task_.scratch.dropped, x, {first, last}, columns);
      }
    }
  }

 private:
  /// Clears scores and d_p of empty chunks, which have no products.
  void clear_empty(index_t r, index_t height, const TileKeys& tile) const {
    tile.chunks.for_each_run(tile.keys(tile.columns), [&](KeyRange keys, Visibility visibility) {
      if (visibility != Visibility::empty) return;
      for (T* row : {task_.scratch.weights, task_.scratch.d_s}) {
        row += r * task_.scratch.score_stride + keys.begin - tile.chunks.first_key;
        for (index_t x = 0; x < height; ++x, row += task_.scratch.score_stride) {
          std::fill_n(row, keys.end - keys.begin, T{0});
        }
      }
    });
  }

  /// Clears the columns of `panels` beyond `columns`.
  void clear(T* scores, index_t row, KeyRange panels, KeyRange columns) const {
    T* s = scores + row * task_.scratch.score_stride;
    std::fill(s + panels.begin, s + columns.begin, T{0});
    std::fill(s + columns.end, s + panels.end, T{0});
  }

  BackwardTask<T> task_;
  ScoreGradients<T> rows_;
};

}  // namespace detail

ATTN_NAMESPACE_END
