// Epilogue of a task: finalises softmax states, writes outputs and lse.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attn/attention/tasks/task.hpp"

ATTN_NAMESPACE_BEGIN

namespace detail {

/// Finalizes the rows' states: adds the sinks and sets output_scale. kept_states: null, or where to
/// store the states without sinks, (batch, num_heads, q_len).
template <class T>
void finalize_rows(ForwardTask<T>& task, RowState<T>* kept_states) {
  const AttentionProblem<T>& problem = task.problem;
  const index_t b = task.block.b;
  const bool has_sinks = static_cast<bool>(problem.options.sinks),
             is_final = static_cast<bool>(problem.functors.prob);
  for (QueryRow<T>& row : task.rows.all()) {
    const T sink = has_sinks ? problem.sink(b, row.h) : kMinusInf<T>;
    const bool has_sink = has_sinks && sink != kMinusInf<T>;
    // Only masks make a row empty. A row with visible keys whose scores are all -inf gives NaN.
    if (row.state.row_sum == T{0} && !has_sink && sees_key(problem, task.kernels.rows, b, row)) {
      row.state.row_sum = std::numeric_limits<T>::quiet_NaN();
    }
    if (kept_states != nullptr) kept_states[problem.row_at(b, row.h, row.i)] = row.state;
    T rescale = 1;
    if (has_sink) {
      const T row_max = (std::max)(row.state.row_max, sink);
      rescale = std::exp(row.state.row_max - row_max);
      row.state = {row_max, row.state.row_sum * rescale + std::exp(sink - row_max)};
    }
    row.output_scale = row.state.row_sum == T{0} ? T{0}
                       : is_final                ? T{1}
                                                 : rescale / row.state.row_sum;
  }
}

/// Averages v over all unpadded keys, masked or not: what filling scores with -1e9 gives. Uses two
/// rows of scratch.v and returns the second.
template <class T>
ATTN_COLD const T* mean_of_values(const ForwardTask<T>& task, index_t kv_head) {
  const AttentionProblem<T>& problem = task.problem;
  const index_t dv = problem.head_dim_v(), b = task.block.b;
  const KeyHead head = problem.key_head(b, kv_head);
  const KeyRange keys = problem.unpadded_keys(b);
  T *value = task.scratch.v, *mean = value + task.scratch.out_stride;
  std::fill_n(mean, dv, T{0});
  for (index_t j = keys.begin; j < keys.end; ++j) {
    task.kernels.of_keys.widen_rows(1, dv, problem.values_from(head, j), value, 0);
    for (index_t x = 0; x < dv; ++x) mean[x] += value[x] / static_cast<T>(keys.end - keys.begin);
  }
  return mean;
}

/// Writes outputs and lse of rows [first, first + count) of one tile and head; returns whether all
/// outputs are finite.
template <class T>
bool write_rows(const ForwardTask<T>& task, index_t first, index_t count) {
  const AttentionProblem<T>& problem = task.problem;
  const ElementKernels<T>& of_queries = task.kernels.of_queries;
  const index_t b = task.block.b;
  const QueryRow<T>* rows = &task.rows[first];
  void* out = problem.output(b, rows->h, rows->i);
  const index_t dv = problem.head_dim_v(), stride = problem.out.stride(2);
  const index_t sum_stride = task.scratch.out_stride;
  const bool narrows = problem.widens_queries();
  T* sums = task.sums(first);
  const bool is_finite = task.kernels.rows.scale_rows(count, dv, rows, sums, sum_stride,
                                                      narrows ? sums : static_cast<T*>(out),
                                                      narrows ? sum_stride : stride);
  if (narrows) of_queries.narrow_rows(count, dv, sums, sum_stride, out, stride);
  for (index_t r = 0; r < count && problem.options.lse; ++r) {
    problem.lse(b, rows[r].h, rows[r].i) = rows[r].state.row_max + std::log(rows[r].state.row_sum);
  }
  for (index_t r = 0; r < count && problem.options.masked_row == MaskedRow::mean; ++r) {
    if (rows[r].state.row_sum != T{0}) continue;
    of_queries.narrow_rows(1, dv, mean_of_values(task, rows[r].h / problem.heads_per_kv_head), 0,
                           rows_after(out, r, problem.out), 0);
  }
  return is_finite;
}

/// Writes outputs and lse of all rows; returns whether all outputs are finite.
template <class T>
bool write_outputs(const ForwardTask<T>& task) {
  const index_t q_len = task.tiling.rows / task.problem.heads_per_kv_head;
  const QueryTiles<T>& queries = task.queries;
  bool is_finite = true;
  for (index_t r = 0; r < task.rows.count(); r += queries.tile_rows()) {
    const index_t num_rows = queries.rows_from(r);
    for (index_t x = 0; x < num_rows;) {
      const index_t n = (std::min)(num_rows - x, q_len - task.rows[r + x].i);  // of one head
      is_finite = write_rows(task, r + x, n) && is_finite;
      x += n;
    }
  }
  return is_finite;
}

/// Returns whether one row of outputs is finite. Uses a row of scratch.v.
template <class T>
bool is_finite_output(const AttentionProblem<T>& problem, const ForwardKernels<T>& kernels,
                      const ForwardScratch<T>& scratch, const void* out) {
  const index_t dv = problem.head_dim_v();
  T* copy = scratch.v;
  kernels.of_queries.widen_rows(1, dv, {out, 0}, copy, 0);
  QueryRow<T> unscaled{};
  unscaled.output_scale = T{1};
  return kernels.rows.scale_rows(1, dv, &unscaled, copy, 0, copy, 0);
}

}  // namespace detail

ATTN_NAMESPACE_END
