// Forward attention: plans a call and runs its tasks.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attn/attention/forward/backend.hpp"
#include "attn/attention/forward/driver_outputs.hpp"
#include "attn/attention/forward/driver_sums.hpp"
#include "attn/attention/forward/outputs.hpp"
#include "attn/attention/forward/shared_split.hpp"
#include "attn/attention/paths/decode_path.hpp"
#include "attn/attention/paths/tiled_products.hpp"

ATTN_NAMESPACE_BEGIN

namespace detail {

/// Runs the tasks of one call with the kernels of one instruction set.
template <class T>
class Forward {
 public:
  Forward(const ForwardKernels<T>& kernels, const AttentionProblem<T>& problem,
          const AttentionPlan& plan, const Executor& threads, const CallScratch<T>& scratch)
      : kernels_(kernels),
        problem_(problem),
        plan_(plan),
        threads_(threads),
        scratch_(scratch),
        heads_in_turn_(share_mask_rows(problem.options.mask)) {
    index_t first_task = plan.shared_tasks, first_split = 0;
    for (index_t b = 0; b < problem.batch(); ++b) {
      const SequenceTiling tiling = tiling_of(problem, b);
      scratch.sequences[b] = {
          .tiling = tiling, .first_task = first_task, .first_split = first_split};
      first_task += plan.tasks_of(tiling, problem.num_kv_heads());
      first_split += problem.num_kv_heads() * tiling.stored_splits();
    }
  }

  /// Writes outputs, lse, weights, scores and states.
  void run() const {
    threads_.run(plan_.tasks, [&](index_t i, int worker) { run_task(i, worker); });
    if (plan_.kv_splits == 0) return;
    threads_.run(problem_.batch() * problem_.num_kv_heads(), [&](index_t i, int worker) {
      merge(i / problem_.num_kv_heads(), i % problem_.num_kv_heads(), worker);
    });
  }

  /// Computes column_sums from the states that run() stored. A task is one block of keys with all
  /// rows, in order: no two tasks add to the same element, so the bits do not depend on the number
  /// of threads.
  void sum_columns() const {
    const index_t kv_heads = problem_.num_kv_heads();
    const index_t blocks = (problem_.scores[3] + plan_.max_block_kv - 1) / plan_.max_block_kv;
    threads_.run(problem_.batch() * kv_heads * blocks, [&](index_t i, int worker) {
      const index_t b = i / blocks / kv_heads, kv_head = i / blocks % kv_heads;
      const index_t begin = i % blocks * plan_.max_block_kv;
      sum_columns(b, kv_head, {begin, (std::min)(begin + plan_.max_block_kv, problem_.scores[3])},
                  worker);
    });
  }

 private:
  /// Whether heads read the same rows of a dense mask. Processing the heads of one row block
  /// together keeps these rows in a cache; a whole matrix may not fit (attn_report cost_additive).
  static bool share_mask_rows(const Mask& mask) {
    return std::any_of(mask.dense.begin(), mask.dense.begin() + mask.num_dense,
                       [](const Mask::Dense& x) { return x.strides[1] == 0 && x.strides[2] != 0; });
  }

  const SequenceTiling& tiling_at(index_t b) const { return scratch_.sequences[b].tiling; }

  /// The rows of one task: a block from `row` on, or all rows of several heads.
  RowBlock block(index_t b, index_t kv_head, index_t row, const SequenceTiling& tiling,
                 index_t heads = 1) const {
    const index_t num_rows =
        heads > 1 ? heads * tiling.rows : (std::min)(plan_.rows_per_task, tiling.rows - row);
    return {.b = b, .kv_head = kv_head, .first_row = heads > 1 ? 0 : row, .num_rows = num_rows};
  }

  /// The part of the call that task i computes: its batch row, its first key/value head, and the
  /// index of its block of rows or split of keys.
  struct TaskIndex {
    index_t b, first_head, piece;
  };

  TaskIndex index_of(index_t i) const {
    const AttentionPlan::Sequence* first = scratch_.sequences;
    const auto* after = std::upper_bound(
        first, first + problem_.batch(), i,
        [](index_t task, const AttentionPlan::Sequence& x) { return task < x.first_task; });
    const index_t b = after - first - 1, at = i - first[b].first_task;
    const index_t tasks = first[b].tiling.tasks(plan_.rows_per_task);
    const index_t groups = plan_.head_groups(problem_.num_kv_heads());
    return {b, (heads_in_turn_ ? at % groups : at / tasks) * plan_.heads_per_task,
            heads_in_turn_ ? at / groups : at % tasks};
  }

  /// The rows that the worker of task i probably takes next, to prefetch them: those of task i +
  /// concurrency. None on the decode path, which reads memory in order.
  RowBlock rows_after_task(index_t i) const {
    if (i + plan_.concurrency >= plan_.tasks) return {};
    const auto [b, head, piece] = index_of(i + plan_.concurrency);
    if (tiling_at(b).decode) return {};
    return block(b, head, piece * plan_.rows_per_task, tiling_at(b));
  }

  /// Stores one split of a batch row's key/value head, whose rows begin with row `first`.
  void store_split(const ForwardTask<T>& task, index_t first, index_t b, index_t kv_head,
                   index_t split) const {
    const index_t row = first_split_row(b, kv_head) + split * kMaxDecodeRows;
    detail::store_split(task, first, tiling_at(b).rows,
                        scratch_.split_sums + row * task.scratch.out_stride,
                        scratch_.split_states + row);
  }

  void run_task(index_t i, int worker) const {
    if (i < plan_.shared_tasks) {
      return sum_shared_split(problem_, kernels_, tiling_at(0), scratch_.workers[worker], i,
                              [&](const auto&... part) { store_split(part...); });
    }
    const auto [b, first, piece] = index_of(i);
    const SequenceTiling& tiling = tiling_at(b);
    const ForwardScratch<T>& scratch = scratch_.workers[worker];
    const index_t heads = (std::min)(plan_.heads_per_task, problem_.num_kv_heads() - first);
    if (tiling.kv_splits == 1) {
      const RowBlock rows = block(b, first, piece * plan_.rows_per_task, tiling, heads);
      return compute(tiling, scratch, rows, tiling.decode ? RowBlock{} : rows_after_task(i),
                     [&](ForwardTask<T>& task) { sum_all_keys(task, scratch_.states); });
    }
    ForwardTask<T> task(problem_, kernels_, tiling, scratch, block(b, first, 0, tiling, heads));
    const index_t split = tiling.shared_splits + piece;
    sum_split(task, split);
    for (index_t n = 0; n < heads; ++n) store_split(task, n * tiling.rows, b, first + n, split);
  }

  /// Merges the splits of one key/value head, if its keys were split.
  void merge(index_t b, index_t kv_head, int worker) const {
    const SequenceTiling& tiling = tiling_at(b);
    if (tiling.kv_splits == 1) return;
    const ForwardScratch<T>& scratch = scratch_.workers[worker];
    const index_t row = first_split_row(b, kv_head);
    compute(tiling, scratch, block(b, kv_head, 0, tiling), {}, [&](ForwardTask<T>& task) {
      merge_splits(task, scratch_.split_sums + row * scratch.out_stride,
                   scratch_.split_states + row, scratch_.states);
    });
  }

  /// Runs one task including its outputs. sum(task) computes the sums and final states of its rows.
  template <class Sum>
  void compute(const SequenceTiling& tiling, const ForwardScratch<T>& scratch, const RowBlock& rows,
               const RowBlock& next, Sum sum) const {
    bool is_finite = true;
    {
      ForwardTask<T> task(problem_, kernels_, tiling, scratch, rows, next);
      sum(task);
      is_finite = write_outputs(task);
      if (problem_.options.weights) write_weights(task);
      if (problem_.options.scores) write_scores(task);
    }
    if (!is_finite) recompute_non_finite(tiling, scratch, rows);
  }

  /// First row of a key/value head's splits in split_sums and split_states.
  index_t first_split_row(index_t b, index_t kv_head) const {
    const AttentionPlan::Sequence& sequence = scratch_.sequences[b];
    return (sequence.first_split + kv_head * sequence.tiling.stored_splits()) * kMaxDecodeRows;
  }

  /// A weight of 0 times a masked NaN is NaN, so rows with non-finite outputs are recomputed
  /// without masked values: one row at a time on the tiled path; all rows together on the decode
  /// path, where the order of sums depends on the keys that at least one of the rows sees.
  ATTN_COLD void recompute_non_finite(const SequenceTiling& tiling,
                                      const ForwardScratch<T>& scratch,
                                      const RowBlock& rows) const {
    if (!problem_.masks_keys()) return;
    const index_t q_len = tiling.rows / problem_.heads_per_kv_head;
    for (index_t row = rows.first_row; row < rows.first_row + rows.num_rows; ++row) {
      const index_t h = rows.kv_head * problem_.heads_per_kv_head + row / q_len;
      const void* out = problem_.output(rows.b, h, row % q_len);
      if (is_finite_output(problem_, kernels_, scratch, out)) continue;
      const index_t kv_head = rows.kv_head + row / tiling.rows;
      const RowBlock again{.b = rows.b,
                           .kv_head = kv_head,
                           .first_row = tiling.decode ? 0 : row,
                           .num_rows = tiling.decode ? tiling.rows : 1};
      ForwardTask<T> task(problem_, kernels_, tiling, scratch, again);
      recompute_without_masked(task, tiling.decode ? row % tiling.rows : 0);
    }
  }

  ATTN_COLD void sum_columns(index_t b, index_t kv_head, KeyRange block_keys, int worker) const {
    const SequenceTiling& tiling = tiling_at(b);
    start_column_sums(problem_, scratch_.states, b, kv_head, block_keys);
    const ForwardScratch<T>& scratch = scratch_.workers[worker];
    const KeyRange keys{block_keys.begin, (std::min)(block_keys.end, tiling.kv_len)};
    for (index_t row = 0; row < tiling.rows; row += plan_.rows_per_task) {
      ForwardTask<T> task(problem_, kernels_, tiling, scratch, block(b, kv_head, row, tiling));
      add_column_sums(task, keys, scratch_.states);
    }
  }

  const ForwardKernels<T>& kernels_;
  const AttentionProblem<T>& problem_;
  const AttentionPlan& plan_;
  const Executor& threads_;
  const CallScratch<T>& scratch_;
  /// Whether tasks compute all heads of a block of rows before the next block; otherwise they go
  /// head by head.
  bool heads_in_turn_;
};

template <class T>
ATTN_ONCE_A_CALL void run_plan(const ForwardKernels<T>& kernels, const AttentionProblem<T>& problem,
                               const AttentionPlan& plan, const Executor& threads,
                               const CallScratch<T>& scratch) {
  const Forward<T> forward(kernels, problem, plan, threads, scratch);
  forward.run();
  const AttentionOptions<T>& options = problem.options;
  if (options.column_sums) forward.sum_columns();
  if (options.max_logits) take_max_logits(problem, scratch.states);
  fill_padding(problem, options.weights, T{0});
  fill_padding(problem, options.scores, kMinusInf<T>);
  if (options.average_weights) average_heads(problem, threads);
}

template <class T>
ATTN_ONCE_A_CALL void forward_with(const ForwardKernels<T>& kernels,
                                   const AttentionProblem<T>& call, const Executor& executor,
                                   Workspace& workspace) {
  if (!call.has_rows()) return fill_without_rows(call.options);
  const AttentionPlan plan(call, executor);
  const SerialExecutor one_thread;
  const Executor& threads = plan.concurrency == 1 ? one_thread : executor;
  const Scratch<std::byte> memory(workspace, static_cast<index_t>(plan.workspace_bytes));
  ScratchLayout layout(memory.data());
  const CallScratch<T> scratch(layout, call, plan);
  if (plan.scores_elements == 0) return run_plan(kernels, call, plan, threads, scratch);
  AttentionOptions<T> options = call.options;
  options.weights = {scratch.weights, call.scores};
  options.weight_heads = {};
  run_plan(kernels, with_options(call, options), plan, threads, scratch);
  if (call.options.weights) copy_chosen(options.weights, call.options);
}

}  // namespace detail

ATTN_NAMESPACE_END

#define ATTN_KERNEL_TEXT "attn/attention/forward/forward.inc.hpp"
#include "attn/simd/foreach_isa.hpp"
