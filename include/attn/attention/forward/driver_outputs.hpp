// Drivers of extra outputs (weights, scores, column sums), which recompute the scores.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attn/attention/forward/epilogue.hpp"

ATTN_NAMESPACE_BEGIN

namespace detail {

/// Writes options.weights from the final states of the task's rows.
template <class T>
ATTN_COLD void write_weights(ForwardTask<T>& task) {
  const AttentionProblem<T>& problem = task.problem;
  const TensorView4<T>& weights = problem.options.weights;
  const index_t b = task.block.b;
  for (const QueryRow<T>& row : task.rows.all()) {
    const index_t at = problem.weights_at(row.h);
    if (at < 0) continue;
    T* out = weights.at_index({b, at, row.i, 0});
    std::fill_n(out, problem.scores[3], T{0});
    if (row.state.row_sum == T{0} && problem.options.masked_row == MaskedRow::mean) {
      const KeyRange keys = problem.unpadded_keys(b);
      std::fill(out + keys.begin, out + keys.end, T{1} / static_cast<T>(keys.end - keys.begin));
    }
  }
  ScoreTiles<T> tiles(task, {0, task.tiling.kv_len}, false);
  while (tiles.next()) {
    const ScoreTile<T>& tile = tiles.tile();
    bool is_chosen = false;  // whether weight_heads names a head of the tile
    for (index_t x = 0; x < tile.num_rows; ++x) {
      is_chosen = is_chosen || problem.weights_at(tile.rows[x].h) >= 0;
    }
    if (!is_chosen) continue;
    task.score(tile);
    for (index_t x = 0; x < tile.num_rows; ++x) {
      const QueryRow<T>& row = tile.rows[x];
      const index_t at = problem.weights_at(row.h);
      if (row.state.row_sum == T{0} || at < 0) continue;
      task.kernels.rows.final_weights(tile.num_keys(), tile.key_scores(x), row.state,
                                      weights.at_index({b, at, row.i, tile.keys.begin}));
    }
  }
}

/// Writes options.scores. Must be the last driver of a task, because see_all() overwrites the
/// ranges that rows see.
template <class T>
ATTN_COLD void write_scores(ForwardTask<T>& task) {
  const AttentionProblem<T>& problem = task.problem;
  const AttentionOptions<T>& options = problem.options;
  const index_t b = task.block.b;
  for (const QueryRow<T>& row : task.rows.all()) {
    std::fill_n(options.scores.at_index({b, row.h, row.i, 0}), problem.scores[3], kMinusInf<T>);
  }
  if (options.score_stage != ScoreStage::masked) task.rows.see_all(problem.keys_of(b));
  ScoreTiles<T> tiles(task, {0, task.tiling.kv_len}, false);
  while (tiles.next()) {
    const ScoreTile<T>& tile = tiles.tile();
    task.score(tile, options.score_stage);
    for (index_t x = 0; x < tile.num_rows; ++x) {
      const QueryRow<T>& row = tile.rows[x];
      std::copy_n(tile.key_scores(x), tile.num_keys(),
                  options.scores.at_index({b, row.h, row.i, tile.keys.begin}));
    }
  }
}

/// options.column_sums += the weights of the task's rows for `keys`, which lie in one block.
/// kept_states: see finalize_rows().
template <class T>
ATTN_COLD void add_column_sums(ForwardTask<T>& task, KeyRange keys,
                               const RowState<T>* kept_states) {
  const index_t b = task.block.b;
  for (QueryRow<T>& row : task.rows.all()) {
    row.state = kept_states[task.problem.row_at(b, row.h, row.i)];
  }
  finalize_rows<T>(task, nullptr);
  ScoreTiles<T> tiles(task, keys, false);
  while (tiles.next()) {
    const ScoreTile<T>& tile = tiles.tile();
    task.score(tile);
    for (index_t x = 0; x < tile.num_rows; ++x) {
      const QueryRow<T>& row = tile.rows[x];
      if (row.state.row_sum == T{0}) continue;
      T* s = tile.key_scores(x);
      task.kernels.rows.final_weights(tile.num_keys(), s, row.state, s);
      for (index_t j = 0; j < tile.num_keys(); ++j) {
        task.problem.options.column_sums(b, row.h, tile.keys.begin + j) += s[j];
      }
    }
  }
}

}  // namespace detail

ATTN_NAMESPACE_END
