// JvpScratch, JvpTask, JvpTiles: attention and its tangents, block by block.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attn/attention/jvp/problem.hpp"
#include "attn/attention/tasks/task.hpp"

ATTN_NAMESPACE_BEGIN

namespace detail {

/// Scratch memory of a call: that of its three problems, and tangents of row sums.
template <class T>
struct JvpScratch {
  CallScratch<T> forward, of_queries, of_keys;
  T* d_row_sums;        ///< max_rows for each thread
  T* split_d_row_sums;  ///< kMaxDecodeRows for each split
  index_t max_rows;

  JvpScratch(ScratchLayout& layout, const JvpProblem<T>& problem, const AttentionPlan& plan)
      : forward(layout, problem.forward, plan),
        of_queries(layout, problem.of_queries, plan),
        of_keys(layout, problem.of_keys, plan),
        d_row_sums(layout.take<T>(plan.max_rows * plan.concurrency)),
        split_d_row_sums(layout.take<T>(plan.kv_splits * kMaxDecodeRows)),
        max_rows(plan.max_rows) {}
};

/// One task: its rows in the three problems. While it exists, no other task may use its worker's
/// scratch.
template <class T>
struct JvpTask {
  const JvpProblem<T>& problem;
  const GradientKernels<T>& gradients;
  ForwardTask<T> forward, of_queries, of_keys;
  /// The sum of e^(s - row_max) d_s of each row; once the row is finalized, the tangent of its lse.
  T* d_row_sums;

  JvpTask(const JvpProblem<T>& call, const ForwardKernels<T>& kernels,
          const GradientKernels<T>& gradient_kernels, const SequenceTiling& tiling,
          const JvpScratch<T>& scratch, int worker, const RowBlock& block)
      : problem(call),
        gradients(gradient_kernels),
        forward(call.forward, kernels, tiling, scratch.forward.workers[worker], block),
        of_queries(call.of_queries, kernels, tiling, scratch.of_queries.workers[worker], block),
        of_keys(call.of_keys, kernels, tiling, scratch.of_keys.workers[worker], block),
        d_row_sums(scratch.d_row_sums + worker * scratch.max_rows) {}

  index_t num_rows() const { return forward.rows.count(); }
  /// Row r's sum over the keys of (weight times tangent of value + tangent of weight times value).
  T* d_sums(index_t r) const { return of_keys.sums(r); }
};

/// Iterates over the tiles of the three problems, which see the same keys in the same blocks.
template <class T>
class JvpTiles {
 public:
  JvpTiles(JvpTask<T>& task, KeyRange keys, bool with_values)
      : first_row_(&task.forward.rows[0]),
        forward_(task.forward, keys, with_values),
        of_queries_(task.of_queries, keys, with_values),
        of_keys_(task.of_keys, keys, with_values && task.problem.has_value_tangents) {}

  /// Moves on to the next tile; false after the last one.
  bool next() {
    const bool more = forward_.next();
    of_queries_.next();
    of_keys_.next();
    return more;
  }

  const ScoreTile<T>& forward() const { return forward_.tile(); }
  const ScoreTile<T>& of_queries() const { return of_queries_.tile(); }
  const ScoreTile<T>& of_keys() const { return of_keys_.tile(); }
  /// The task's row that is row x of the tile.
  index_t row(index_t x) const { return forward().rows - first_row_ + x; }

 private:
  const QueryRow<T>* first_row_;
  ScoreTiles<T> forward_, of_queries_, of_keys_;
};

}  // namespace detail

ATTN_NAMESPACE_END
