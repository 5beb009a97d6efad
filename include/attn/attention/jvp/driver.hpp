// Attention with tangents: splits a call into tasks like forward attention.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attn/attention/backward/driver.hpp"
#include "attn/attention/forward/backend.hpp"
#include "attn/attention/jvp/backward_driver.hpp"
#include "attn/attention/jvp/sums.hpp"
#include "attn/attention/paths/decode_path.hpp"
#include "attn/attention/paths/exact_path.hpp"

ATTN_NAMESPACE_BEGIN

namespace detail {

template <class T>
class Jvp {
 public:
  Jvp(const ForwardKernels<T>& kernels, const GradientKernels<T>& gradients,
      const JvpProblem<T>& problem, const AttentionPlan& plan, const Executor& threads,
      const JvpScratch<T>& scratch)
      : kernels_(kernels),
        gradients_(gradients),
        problem_(problem),
        forward_(problem.forward),
        plan_(plan),
        threads_(threads),
        scratch_(scratch) {
    index_t first_split = 0;
    for (index_t b = 0; b < forward_.batch(); ++b) {
      const SequenceTiling tiling = tiling_of(forward_, b);
      scratch.forward.sequences[b] = {
          .tiling = tiling, .first_task = tasks_, .first_split = first_split};
      tasks_ += forward_.num_kv_heads() * tiling.tasks(plan.rows_per_task);
      first_split += forward_.num_kv_heads() * tiling.stored_splits();
    }
  }

  void run() const {
    threads_.run(tasks_, [&](index_t i, int worker) { run_task(i, worker); });
    if (plan_.kv_splits == 0) return;
    const index_t heads = forward_.num_kv_heads();
    threads_.run(forward_.batch() * heads, [&](index_t i, int worker) {
      const AttentionPlan::Sequence& sequence = scratch_.forward.sequences[i / heads];
      if (sequence.tiling.kv_splits > 1) merge(i / heads, i % heads, sequence, worker);
    });
  }

 private:
  void run_task(index_t i, int worker) const {
    const AttentionPlan::Sequence* first = scratch_.forward.sequences;
    const auto* after = std::upper_bound(
        first, first + forward_.batch(), i,
        [](index_t task, const AttentionPlan::Sequence& x) { return task < x.first_task; });
    const AttentionPlan::Sequence& sequence = after[-1];
    const SequenceTiling& tiling = sequence.tiling;
    const index_t b = &sequence - first, tasks = tiling.tasks(plan_.rows_per_task);
    const index_t kv_head = (i - sequence.first_task) / tasks,
                  piece = (i - sequence.first_task) % tasks;
    if (tiling.kv_splits == 1) {
      const index_t row = piece * plan_.rows_per_task;
      const RowBlock block{.b = b,
                           .kv_head = kv_head,
                           .first_row = row,
                           .num_rows = (std::min)(plan_.rows_per_task, tiling.rows - row)};
      return compute(tiling, worker, block, [](JvpTask<T>& task) { sum_all_keys(task); });
    }
    JvpTask<T> task(problem_, kernels_, gradients_, tiling, scratch_, worker,
                    {.b = b, .kv_head = kv_head, .first_row = 0, .num_rows = tiling.rows});
    sum_split(task, piece);
    const index_t n = task.forward.scratch.out_stride, at = split_row(sequence, kv_head, piece);
    std::copy_n(task.forward.sums(0), tiling.rows * n, scratch_.forward.split_sums + at * n);
    std::copy_n(task.d_sums(0), tiling.rows * n, scratch_.of_keys.split_sums + at * n);
    std::copy_n(task.d_row_sums, tiling.rows, scratch_.split_d_row_sums + at);
    for (index_t r = 0; r < tiling.rows; ++r) {
      scratch_.forward.split_states[at + r] = task.forward.rows[r].state;
    }
  }

  /// Merges the splits of one key/value head.
  void merge(index_t b, index_t kv_head, const AttentionPlan::Sequence& sequence,
             int worker) const {
    const SequenceTiling& tiling = sequence.tiling;
    const RowBlock all{.b = b, .kv_head = kv_head, .first_row = 0, .num_rows = tiling.rows};
    compute(tiling, worker, all, [&](JvpTask<T>& task) {
      const index_t n = task.forward.scratch.out_stride;
      clear_sums(task);
      for (index_t r = 0; r < tiling.rows; ++r) {
        JvpRow<T> row = row_of(task, r);
        for (index_t split = 0; split < tiling.kv_splits; ++split) {
          const index_t at = split_row(sequence, kv_head, split) + r;
          const JvpRow<T> part{.state = scratch_.forward.split_states[at],
                               .sum = scratch_.forward.split_sums + at * n,
                               .d_sum = scratch_.of_keys.split_sums + at * n,
                               .d_row_sum = scratch_.split_d_row_sums[at]};
          merge_row(n, part, row);
        }
        keep(row, task, r);
      }
      finalize_rows(task);
    });
  }

  /// Runs one task including its outputs. sum(task) computes the sums and final states of its rows.
  template <class Sum>
  void compute(const SequenceTiling& tiling, int worker, const RowBlock& block, Sum sum) const {
    bool is_finite = true;
    {
      JvpTask<T> task(problem_, kernels_, gradients_, tiling, scratch_, worker, block);
      sum(task);
      is_finite = write_outputs(task);
    }
    if (!is_finite && forward_.masks_keys()) recompute_non_finite(tiling, worker, block);
  }

  /// As in Forward: recomputes rows whose out or d_out is not finite without masked values.
  ATTN_COLD void recompute_non_finite(const SequenceTiling& tiling, int worker,
                                      const RowBlock& block) const {
    const index_t q_len = tiling.rows / forward_.heads_per_kv_head;
    for (index_t row = block.first_row; row < block.first_row + block.num_rows; ++row) {
      const index_t h = block.kv_head * forward_.heads_per_kv_head + row / q_len;
      const auto is_finite = [&](const AttentionProblem<T>& problem) {
        return is_finite_output(problem, kernels_, scratch_.forward.workers[worker],
                                problem.output(block.b, h, row % q_len));
      };
      if (is_finite(forward_) && is_finite(problem_.of_keys)) continue;
      const RowBlock again{.b = block.b,
                           .kv_head = block.kv_head,
                           .first_row = tiling.decode ? 0 : row,
                           .num_rows = tiling.decode ? tiling.rows : 1};
      JvpTask<T> task(problem_, kernels_, gradients_, tiling, scratch_, worker, again);
      recompute_without_masked(task, tiling.decode ? row : 0);
    }
  }

  /// Recomputes row x with masked values as 0.
  ATTN_COLD void recompute_without_masked(JvpTask<T>& task, index_t x) const {
    QueryRow<T>& kept_for = task.forward.rows[x];
    const SequenceTiling& tiling = task.forward.tiling;
    if (tiling.kv_splits == 1) {
      sum_all_keys(task, &kept_for);
    } else {
      // Merges into memory behind the task's one tile.
      const index_t n = task.forward.scratch.out_stride, behind = task.forward.queries.height() * n;
      JvpRow<T> merged{.state = {.row_max = kMinusInf<T>, .row_sum = T{0}},
                       .sum = task.forward.scratch.sums + behind,
                       .d_sum = task.of_keys.scratch.sums + behind,
                       .d_row_sum = T{0}};
      std::fill_n(merged.sum, n, T{0});
      std::fill_n(merged.d_sum, n, T{0});
      for (index_t split = 0; split < tiling.kv_splits; ++split) {
        for (QueryRow<T>& row : task.forward.rows.all()) row.state = {kMinusInf<T>, T{0}};
        sum_split(task, split, &kept_for);
        merge_row(n, row_of(task, x), merged);
      }
      std::copy_n(merged.sum, n, task.forward.sums(x));
      std::copy_n(merged.d_sum, n, task.d_sums(x));
      keep(merged, task, x);
      finalize_rows(task);
    }
    finish_tangents(task, x);
    write_rows(task.forward, x, 1);
    write_rows(task.of_keys, x, 1);
  }

  static JvpRow<T> row_of(const JvpTask<T>& task, index_t r) {
    return {.state = task.forward.rows[r].state,
            .sum = task.forward.sums(r),
            .d_sum = task.d_sums(r),
            .d_row_sum = task.d_row_sums[r]};
  }
  /// The task's row r has the state of `row`.
  static void keep(const JvpRow<T>& row, JvpTask<T>& task, index_t r) {
    task.forward.rows[r].state = row.state;
    task.d_row_sums[r] = row.d_row_sum;
  }

  /// First row of a stored split.
  index_t split_row(const AttentionPlan::Sequence& sequence, index_t kv_head, index_t split) const {
    return (sequence.first_split + kv_head * sequence.tiling.kv_splits + split) * kMaxDecodeRows;
  }

  const ForwardKernels<T>& kernels_;
  const GradientKernels<T>& gradients_;
  const JvpProblem<T>& problem_;
  const AttentionProblem<T>& forward_;
  const AttentionPlan& plan_;
  const Executor& threads_;
  const JvpScratch<T>& scratch_;
  index_t tasks_ = 0;
};

template <class T>
void jvp_with(const ForwardKernels<T>& kernels, const GradientKernels<T>& gradients,
              const JvpProblem<T>& call, const Executor& executor, Workspace& workspace) {
  if (!call.forward.has_rows()) return;
  const AttentionPlan plan(call.forward, executor);
  const SerialExecutor one_thread;
  ScratchLayout size;
  (void)JvpScratch<T>(size, call, plan);
  const Scratch<std::byte> memory(workspace, static_cast<index_t>(size.bytes()));
  ScratchLayout layout(memory.data());
  const JvpScratch<T> scratch(layout, call, plan);
  Jvp<T>(kernels, gradients, call, plan, plan.concurrency == 1 ? one_thread : executor, scratch)
      .run();
}

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Winvalid-offsetof"  // for references

/// In: element type of keys and values. Queries and outputs have type In or Acc.
template <class In, class Acc>
struct Backend<family::AttentionTangents, In, Acc> {
  Kernel<JvpProblem<Acc>> jvp;
  Kernel<BackwardJvpProblem<Acc>> backward_jvp;

  using Problem = JvpProblem<Acc>;
  static constexpr std::uint64_t kLayout =
      layout_hash({sizeof(Backend),
                   offsetof(Backend, jvp),
                   offsetof(Backend, backward_jvp),
                   sizeof(Problem),
                   offsetof(Problem, forward),
                   offsetof(Problem, of_queries),
                   offsetof(Problem, of_keys),
                   offsetof(Problem, has_query_tangents),
                   offsetof(Problem, has_key_tangents),
                   offsetof(Problem, has_value_tangents),
                   offsetof(Problem, sinks),
                   offsetof(Problem, d_lse),
                   offsetof(Problem, score_derivative),
                   offsetof(Problem, prob_derivative),
                   offsetof(Problem, parameter_derivatives),
                   offsetof(Problem, score_parameters),
                   sizeof(BackwardJvpProblem<Acc>),
                   offsetof(BackwardJvpProblem<Acc>, tangent),
                   Backend<family::AttentionBackward, Acc, Acc>::kLayout,
                   Backend<family::Attention, In, Acc>::kLayout});
};

#pragma GCC diagnostic pop

}  // namespace detail

ATTN_NAMESPACE_END

#define ATTN_KERNEL_TEXT "attn/attention/jvp/driver.inc.hpp"
#include "attn/simd/foreach_isa.hpp"
