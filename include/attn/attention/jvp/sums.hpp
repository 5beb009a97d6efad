// Loops over the keys of a task of attention with tangents: softmax, sums of values, outputs.
// SPDX-License-Identifier: Apache-2.0
//
// With the sums over the keys of e^(s - row_max), e^(s - row_max) v, e^(s - row_max) d_s and
// e^(s - row_max) (d_s v + d_v), each rescaled when row_max grows, a single pass suffices.
#pragma once

#include "attn/attention/forward/epilogue.hpp"
#include "attn/attention/jvp/scores.hpp"

ATTN_NAMESPACE_BEGIN

namespace detail {

/// Copies the values of a tile's keys and their tangents, with 0 for keys that `row` does not see.
template <class T>
ATTN_COLD void copy_values_kept_for(const QueryRow<T>& row, JvpTask<T>& task,
                                    const JvpTiles<T>& tiles) {
  T kept[kKeysAtOnce];
  const ScoreTile<T>& tile = tiles.forward();
  for (index_t j = tile.keys.begin; j < tile.keys.end; j += kKeysAtOnce) {
    const KeyRange keys{j, (std::min)(j + kKeysAtOnce, tile.keys.end)};
    mark_keys(task.problem.forward, task.forward.kernels.rows, tile.b, row, keys, tile.chunks,
              kept);
    task.forward.path().copy_kept_values(tile, keys, kept);
    task.of_queries.path().copy_kept_values(tiles.of_queries(), keys, kept);
    task.of_keys.path().copy_kept_values(tiles.of_keys(), keys, kept);
  }
}

/// Applies dropout to the tile's weights and their tangents, then adds weights times values to the
/// sums, and weights times tangents of values and tangents of weights times values to d_sums, after
/// rescaling both. kept_for: null, or the row whose masked values are taken as 0.
template <class T>
void add_weighted_values(JvpTask<T>& task, const JvpTiles<T>& tiles, const T* rescale,
                         const QueryRow<T>* kept_for) {
  const ScoreTile<T>& weights = tiles.forward();
  ScoreTile<T> d_weights = tiles.of_queries(), with_tangents = tiles.of_keys();
  const Dropout& dropout = task.problem.forward.options.dropout;
  if (dropout.p > 0) {
    const index_t first_position = task.problem.forward.lengths(weights.b).first_key +
                                   weights.first_key + weights.columns.begin;
    for (index_t x = 0; x < weights.num_rows; ++x) {
      const QueryRow<T>& row = weights.rows[x];
      for (T* of_row : {weights.row_scores(x), d_weights.row_scores(x)}) {
        task.forward.kernels.rows.apply_dropout(weights.num_columns(), of_row, dropout, weights.b,
                                                row.h, row.i, first_position);
      }
    }
  }
  if (kept_for != nullptr) copy_values_kept_for(*kept_for, task, tiles);
  const auto add = [&](ForwardTask<T>& of, const ScoreTile<T>& tile, const T* scales) {
    kept_for == nullptr ? of.path().add_values(tile, scales)
                        : of.path().add_copied_values(tile, scales);
  };
  add(task.forward, weights, rescale);
  d_weights.sums = with_tangents.sums;
  with_tangents.scores = weights.scores;
  if (!task.problem.has_value_tangents) return add(task.of_queries, d_weights, rescale);
  add(task.of_keys, with_tangents, rescale);
  T ones[kMaxTileHeight];
  std::fill_n(ones, kMaxTileHeight, T{1});
  add(task.of_queries, d_weights, ones);
}

/// One pass over `keys`: online softmax with its tangents, and sums of values. with_values: false
/// in the first pass for a prob functor, which computes only states and d_row_sums.
template <class T>
void sum_values(JvpTask<T>& task, KeyRange keys, bool with_values, const QueryRow<T>* kept_for) {
  JvpTiles<T> tiles(task, keys, with_values && kept_for == nullptr);
  JvpScores<T> scores(task);
  T rescale[kMaxTileHeight];
  while (tiles.next()) {
    const ScoreTile<T>& tile = tiles.forward();
    scores.score(tiles);
    std::fill_n(rescale, kMaxTileHeight, T{0});
    for (index_t x = 0; x < tile.num_rows; ++x) {
      const index_t n = tile.num_columns();
      T *weights = tile.row_scores(x), *d_s = tiles.of_queries().row_scores(x);
      task.forward.path().prefetch(tile, x);
      task.forward.kernels.rows.online_softmax(1, n, weights, tile.stride, tile.rows + x,
                                               rescale + x);
      T& d_row_sum = task.d_row_sums[tiles.row(x)];
      d_row_sum = d_row_sum * rescale[x] + task.gradients.dot_where(n, weights, d_s);
      task.gradients.score_gradient(n, weights, T{0}, d_s);
    }
    if (with_values) add_weighted_values(task, tiles, rescale, kept_for);
  }
}

/// The second pass for a prob functor: sums values with the functor's weights and their tangents.
template <class T>
ATTN_COLD void sum_with_final_weights(JvpTask<T>& task, KeyRange keys,
                                      const QueryRow<T>* kept_for) {
  JvpTiles<T> tiles(task, keys, kept_for == nullptr);
  JvpScores<T> scores(task);
  const index_t first_position = task.problem.forward.lengths(task.forward.block.b).first_key;
  T ones[kMaxTileHeight];
  std::fill_n(ones, kMaxTileHeight, T{1});
  while (tiles.next()) {
    const ScoreTile<T>& tile = tiles.forward();
    scores.score(tiles);
    for (index_t x = 0; x < tile.num_rows; ++x) {
      const QueryRow<T>& row = tile.rows[x];
      const index_t n = tile.num_columns(), first = tile.first_key + tile.columns.begin;
      T *weights = tile.row_scores(x), *d_weights = tiles.of_queries().row_scores(x),
        *derivative = tiles.of_keys().row_scores(x);
      if (row.state.row_sum == T{0}) {
        std::fill_n(weights, n, T{0});
      } else {
        task.forward.kernels.rows.final_weights(n, weights, row.state, weights);
      }
      task.gradients.score_gradient(n, weights, task.d_row_sums[tiles.row(x)], d_weights);
      std::copy_n(weights, n, derivative);
      ScoreRow<T> functor_row{.b = tile.b,
                              .h = row.h,
                              .i = row.i,
                              .first_key = first,
                              .first_position = first_position + first,
                              .n = n,
                              .s = derivative};
      functor_row.apply(task.problem.prob_derivative);
      task.gradients.multiply(n, d_weights, derivative);
      functor_row.s = weights;
      functor_row.apply(task.problem.forward.functors.prob);
    }
    add_weighted_values(task, tiles, ones, kept_for);
  }
}

template <class T>
void clear_sums(const JvpTask<T>& task) {
  for (const ForwardTask<T>* of : {&task.forward, &task.of_keys}) {
    std::fill_n(of->scratch.sums,
                of->queries.count() * of->queries.height() * of->scratch.out_stride, T{0});
  }
  std::fill_n(task.d_row_sums, task.num_rows(), T{0});
}

/// Finalizes the rows' states, and turns d_row_sums into tangents of lse.
template <class T>
void finalize_rows(JvpTask<T>& task) {
  const AttentionProblem<T>& problem = task.problem.forward;
  const index_t b = task.forward.block.b;
  // Memory behind the last use of of_queries: the largest scores without sinks.
  for (index_t r = 0; r < task.num_rows(); ++r) {
    task.of_queries.rows[r].state = task.forward.rows[r].state;
  }
  finalize_rows<T>(task.forward, nullptr);
  for (index_t r = 0; r < task.num_rows(); ++r) {
    const QueryRow<T>& row = task.forward.rows[r];
    const T row_max = task.of_queries.rows[r].state.row_max;
    T& d_lse = task.d_row_sums[r];
    const bool is_empty = row.state.row_sum == T{0};
    d_lse *= is_empty ? T{0} : std::exp(row_max - row.state.row_max) / row.state.row_sum;
    const T sink = problem.sink(b, row.h);
    if (task.problem.sinks && sink != kMinusInf<T>) {
      const T d_sink =
          task.problem.sinks(problem.gathered ? problem.gathered.head(b, row.h) : row.h);
      d_lse += std::exp(sink - row.state.row_max) / row.state.row_sum * d_sink;
    }
    task.of_keys.rows[r].state = row.state;
    task.of_keys.rows[r].output_scale = row.output_scale;
  }
}

/// Computes the sums of the task's rows over all keys, and finalizes them.
template <class T>
void sum_all_keys(JvpTask<T>& task, const QueryRow<T>* kept_for = nullptr) {
  const KeyRange keys{0, task.forward.tiling.kv_len};
  const bool is_one_pass = !task.problem.forward.functors.prob;
  clear_sums(task);
  sum_values(task, keys, is_one_pass, kept_for);
  finalize_rows(task);
  if (!is_one_pass) sum_with_final_weights(task, keys, kept_for);
}

/// Computes the sums of the task's rows over one split of the keys.
template <class T>
void sum_split(JvpTask<T>& task, index_t split, const QueryRow<T>* kept_for = nullptr) {
  const index_t begin = split * SequenceTiling::kSplitKV;
  clear_sums(task);
  sum_values(task,
             {begin, (std::min)(begin + SequenceTiling::kSplitKV, task.forward.tiling.kv_len)},
             true, kept_for);
}

/// State and sums of one row.
template <class T>
struct JvpRow {
  RowState<T> state;
  T *sum, *d_sum, d_row_sum;
};

/// Merges the sums (n elements) of one split into those of the row: see merge_state().
template <class T>
void merge_row(index_t n, const JvpRow<T>& split, JvpRow<T>& row) {
  RowState<T> before = row.state, same = before;
  merge_state(n, split.state, split.d_sum, before, row.d_sum);
  merge_state(1, split.state, &split.d_row_sum, same, &row.d_row_sum);
  merge_state(n, split.state, split.sum, row.state, row.sum);
}

/// Turns the tangents of sums of row r into those of its output, before they are scaled, and writes
/// d_lse.
template <class T>
void finish_tangents(JvpTask<T>& task, index_t r) {
  const AttentionProblem<T>& problem = task.problem.forward;
  if (!problem.functors.prob) {
    task.gradients.add_scaled(problem.head_dim_v(), -task.d_row_sums[r], task.forward.sums(r),
                              task.d_sums(r));
  }
  if (!task.problem.d_lse) return;
  const QueryRow<T>& row = task.forward.rows[r];
  const Shape<4> at = problem.row(task.forward.block.b, row.h, row.i);
  task.problem.d_lse(at[0], at[1], at[2]) = task.d_row_sums[r];
}

/// Writes out, lse, d_out and d_lse of a task; returns whether all of out and d_out is finite.
template <class T>
bool write_outputs(JvpTask<T>& task) {
  for (index_t r = 0; r < task.num_rows(); ++r) finish_tangents(task, r);
  const bool is_finite = write_outputs(task.forward);
  return write_outputs(task.of_keys) && is_finite;
}

}  // namespace detail

ATTN_NAMESPACE_END
