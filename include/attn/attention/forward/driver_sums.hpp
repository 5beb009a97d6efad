// Drivers of attention: online softmax and weighted values, over all keys or a split.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attn/attention/forward/epilogue.hpp"

ATTN_NAMESPACE_BEGIN

namespace detail {

/// Copies the values of a tile's keys to scratch.v, with 0 for keys that `row` does not see.
template <class T>
ATTN_COLD void copy_values_kept_for(const QueryRow<T>& row, ForwardTask<T>& task,
                                    const ScoreTile<T>& tile) {
  T kept[kKeysAtOnce];
  for (index_t j = tile.keys.begin; j < tile.keys.end; j += kKeysAtOnce) {
    const KeyRange keys{j, (std::min)(j + kKeysAtOnce, tile.keys.end)};
    mark_keys(task.problem, task.kernels.rows, tile.b, row, keys, tile.chunks, kept);
    task.path().copy_kept_values(tile, keys, kept);
  }
}

/// Applies dropout to the tile's weights, then sets tile.sums = rescale * tile.sums + weights * v.
/// If kept_for is not null, values masked out for that row count as 0.
template <class T>
void add_weighted_values(ForwardTask<T>& task, const ScoreTile<T>& tile, const T* rescale,
                         const QueryRow<T>* kept_for) {
  const AttentionProblem<T>& problem = task.problem;
  const Dropout& dropout = problem.options.dropout;
  if (dropout.p > 0) {
    const index_t first_position =
        problem.lengths(tile.b).first_key + tile.first_key + tile.columns.begin;
    for (index_t x = 0; x < tile.num_rows; ++x) {
      const QueryRow<T>& row = tile.rows[x];
      task.kernels.rows.apply_dropout(tile.num_columns(), tile.row_scores(x), dropout, tile.b,
                                      row.h, row.i, first_position);
    }
  }
  if (kept_for == nullptr) return task.path().add_values(tile, rescale);
  copy_values_kept_for(*kept_for, task, tile);
  task.path().add_copied_values(tile, rescale);
}

/// One pass over `keys`, tile by tile: online softmax and weighted sums of values. Source: Dao et
/// al., "FlashAttention" (2022), algorithm 1.
template <class T>
void sum_values(ForwardTask<T>& task, KeyRange keys, const QueryRow<T>* kept_for) {
  ScoreTiles<T> tiles(task, keys, kept_for == nullptr);
  while (tiles.next()) {
    const ScoreTile<T>& tile = tiles.tile();
    task.score(tile);
    T rescale[kMaxTileHeight];
    std::fill(rescale + tile.num_rows, rescale + task.queries.height(), T{0});
    // All rows at once on the decode path, which does not prefetch between rows.
    const index_t step = task.tiling.decode ? tile.num_rows : 1;
    for (index_t x = 0; x < tile.num_rows; x += step) {
      task.path().prefetch(tile, x);
      task.kernels.rows.online_softmax(step, tile.num_columns(), tile.row_scores(x), tile.stride,
                                       tile.rows + x, rescale + x);
    }
    add_weighted_values(task, tile, rescale, kept_for);
  }
}

/// The first of two passes, for a prob functor, which needs final weights: only the online softmax.
template <class T>
ATTN_COLD void find_states(ForwardTask<T>& task, KeyRange keys) {
  ScoreTiles<T> tiles(task, keys, false);
  while (tiles.next()) {
    const ScoreTile<T>& tile = tiles.tile();
    task.score(tile);
    for (index_t x = 0; x < tile.num_rows; ++x) {
      T rescale;
      task.path().prefetch(tile, x);
      task.kernels.rows.online_softmax(1, tile.num_columns(), tile.row_scores(x), tile.stride,
                                       tile.rows + x, &rescale);
    }
  }
}

/// The second pass: recomputes the scores, applies the prob functor to the final weights, and sums
/// weighted values.
template <class T>
ATTN_COLD void sum_with_final_weights(ForwardTask<T>& task, KeyRange keys,
                                      const QueryRow<T>* kept_for) {
  const RowFunctor<T>& prob = task.problem.functors.prob;
  const index_t first_position = task.problem.lengths(task.block.b).first_key;
  T rescale[kMaxTileHeight];
  std::fill_n(rescale, kMaxTileHeight, T{1});
  ScoreTiles<T> tiles(task, keys, kept_for == nullptr);
  while (tiles.next()) {
    const ScoreTile<T>& tile = tiles.tile();
    task.score(tile);
    const index_t n = tile.num_columns(), first_key = tile.first_key + tile.columns.begin;
    for (index_t x = 0; x < tile.num_rows; ++x) {
      const QueryRow<T>& row = tile.rows[x];
      T* s = tile.row_scores(x);
      task.path().prefetch(tile, x);
      if (row.state.row_sum == T{0}) {
        std::fill_n(s, n, T{0});
      } else {
        task.kernels.rows.final_weights(n, s, row.state, s);
      }
      prob.apply(prob.object, n, s, tile.b, row.h, row.i, first_position + first_key);
    }
    add_weighted_values(task, tile, rescale, kept_for);
  }
}

template <class T>
void clear_sums(const ForwardTask<T>& task) {
  std::fill_n(task.scratch.sums,
              task.queries.count() * task.queries.height() * task.scratch.out_stride, T{0});
}

/// Computes sums and final states of the task's rows over all keys. kept_states: see
/// finalize_rows().
template <class T>
void sum_all_keys(ForwardTask<T>& task, RowState<T>* kept_states,
                  const QueryRow<T>* kept_for = nullptr) {
  const KeyRange keys{0, task.tiling.kv_len};
  clear_sums(task);
  if (!task.problem.functors.prob) {
    sum_values(task, keys, kept_for);
    return finalize_rows(task, kept_states);
  }
  find_states(task, keys);
  finalize_rows(task, kept_states);
  sum_with_final_weights(task, keys, kept_for);
}

/// Computes sums and states of the task's rows over one split of the keys.
template <class T>
void sum_split(ForwardTask<T>& task, index_t split, const QueryRow<T>* kept_for = nullptr) {
  const index_t begin = split * SequenceTiling::kSplitKV;
  clear_sums(task);
  sum_values(task, {begin, (std::min)(begin + SequenceTiling::kSplitKV, task.tiling.kv_len)},
             kept_for);
}

/// Stores the result of sum_split() for rows [first, first + num_rows), of one batch row and
/// key/value head, for merge_splits().
template <class T>
void store_split(const ForwardTask<T>& task, index_t first, index_t num_rows, T* sums,
                 RowState<T>* states) {
  std::copy_n(task.sums(first), num_rows * task.scratch.out_stride, sums);
  for (index_t r = 0; r < num_rows; ++r) states[r] = task.rows[first + r].state;
}

/// Merges stored splits in order and finalizes the rows. `sums` and `states` have kMaxDecodeRows
/// rows for each split.
template <class T>
void merge_splits(ForwardTask<T>& task, const T* sums, const RowState<T>* states,
                  RowState<T>* kept_states) {
  const index_t n = task.scratch.out_stride;
  clear_sums(task);
  for (index_t r = 0; r < task.rows.count(); ++r) {
    for (index_t at = r; at < task.tiling.kv_splits * kMaxDecodeRows; at += kMaxDecodeRows) {
      merge_state(n, states[at], sums + at * n, task.rows[r].state, task.sums(r));
    }
  }
  finalize_rows(task, kept_states);
}

/// Recomputes row x with masked values as 0, since 0 * NaN would leak; same splits, same bits.
template <class T>
ATTN_COLD void recompute_without_masked(ForwardTask<T>& task, index_t x) {
  QueryRow<T>& row = task.rows[x];
  if (task.tiling.kv_splits == 1) {
    sum_all_keys<T>(task, nullptr, &row);
  } else {
    const index_t n = task.scratch.out_stride;
    RowState<T> state{kMinusInf<T>, T{0}};
    T* merged = task.scratch.sums + task.queries.height() * n;  // behind the sums of the only tile
    std::fill_n(merged, n, T{0});
    for (index_t split = 0; split < task.tiling.kv_splits; ++split) {
      for (QueryRow<T>& each : task.rows.all()) each.state = {kMinusInf<T>, T{0}};
      sum_split(task, split, &row);
      merge_state(n, row.state, task.sums(x), state, merged);
    }
    row.state = state;
    std::copy_n(merged, n, task.sums(x));
    finalize_rows<T>(task, nullptr);
  }
  write_rows(task, x, 1);
}

}  // namespace detail

ATTN_NAMESPACE_END
