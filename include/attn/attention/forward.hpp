// Forward attention: one call, planned and run by tasks on the caller's threads.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attn/attention/forward_backend.hpp"
#include "attn/attention/forward_task.hpp"

ATTN_NAMESPACE_BEGIN

namespace detail {

/// One call's tasks, on the instruction set that `kernels` are of.
template <class T>
class Forward {
 public:
  Forward(const ForwardKernels<T>& kernels, const AttentionProblem<T>& problem,
          const AttentionPlan& plan, const Executor& threads, Workspace& workspace,
          RowState<T>* states)
      : kernels_(kernels),
        problem_(problem),
        plan_(plan),
        threads_(threads),
        states_(states),
        heads_in_turn_(share_mask_rows(problem.options.mask)),
        sequences_(workspace, problem.batch()),
        memory_(workspace, plan.worker_elements * plan.concurrency),
        part_sums_(workspace, plan.parts * kFewRows * plan.out_stride),
        part_states_(workspace, plan.parts * kFewRows) {
    index_t first_task = 0, first_part = 0;
    for (index_t b = 0; b < problem.batch(); ++b) {
      const SequenceTiling tiling = tiling_of(problem, b);
      sequences_.data()[b] = {tiling, first_task, first_part};
      first_task += plan.tasks_of(tiling, problem.num_kv_heads());
      first_part += problem.num_kv_heads() * tiling.parts();
    }
  }

  /// Outputs, lse, weights and states.
  void run() {
    threads_.run(plan_.tasks, [&](index_t i, int worker) { run_task(i, worker); });
    if (plan_.parts == 0) return;
    threads_.run(problem_.batch() * problem_.num_kv_heads(), [&](index_t i, int worker) {
      merge_parts(i / problem_.num_kv_heads(), i % problem_.num_kv_heads(), worker);
    });
  }

  /// column_sums from the states that run() left. A task is one block of keys against all rows, in order: sums
  /// without a race, and the same on any number of threads.
  void sum_columns() {
    const index_t kv_heads = problem_.num_kv_heads();
    const index_t blocks = (problem_.scores[3] + plan_.most_block_kv - 1) / plan_.most_block_kv;
    const TensorView3<T>& sums = problem_.options.column_sums;
    threads_.run(problem_.batch() * kv_heads * blocks, [&](index_t i, int worker) {
      const index_t b = i / blocks / kv_heads, kv_head = i / blocks % kv_heads;
      const SequenceTiling& tiling = tiling_at(b);
      const index_t begin = i % blocks * plan_.most_block_kv;
      const index_t end = (std::min)(begin + plan_.most_block_kv, problem_.scores[3]);
      for (index_t h = kv_head * problem_.group; h < (kv_head + 1) * problem_.group; ++h) {
        const T masked = sum_of_masked_rows(b, h);
        const KeyRange keys = problem_.unpadded_keys(b);
        for (index_t j = begin; j < end; ++j) {
          sums(b, h, j) = j >= keys.begin && j < keys.end ? masked : T{0};
        }
      }
      const ForwardScratch<T> scratch = scratch_of(worker);
      for (index_t row = 0; row < tiling.rows; row += plan_.rows_per_task) {
        ForwardTask<T>(problem_, kernels_, tiling, scratch, block(b, kv_head, row, tiling))
            .add_columns({begin, (std::min)(end, tiling.kv_len)}, states_);
      }
    });
  }

 private:
  /// Whether heads read the same rows of a dense mask: those of one task stay in a cache until the next head's,
  /// where a whole matrix may not (attn_report's cost_additive).
  static bool share_mask_rows(const Mask& mask) {
    return std::any_of(mask.dense.begin(), mask.dense.begin() + mask.num_dense,
                       [](const Mask::Dense& x) { return x.strides[1] == 0 && x.strides[2] != 0; });
  }

  /// What queries that see no key put on every key.
  T sum_of_masked_rows(index_t b, index_t h) const {
    if (problem_.options.masked_row == MaskedRow::zero || problem_.sink(h) > kMinusInf<T>) {
      return T{0};
    }
    const RowState<T>* states = states_ + problem_.row_at(b, h, 0);
    const index_t rows = std::count_if(states, states + problem_.lengths(b).q_len,
                                       [](const RowState<T>& row) { return row.total == T{0}; });
    const KeyRange keys = problem_.unpadded_keys(b);
    return static_cast<T>(rows) / static_cast<T>(keys.end - keys.begin);
  }

  const SequenceTiling& tiling_at(index_t b) const { return sequences_.data()[b].tiling; }

  ForwardScratch<T> scratch_of(int worker) const {
    return plan_.scratch_at(problem_, memory_.data() + worker * plan_.worker_elements);
  }

  /// Rows from `row` on; of several heads all.
  RowBlock block(index_t b, index_t kv_head, index_t row, const SequenceTiling& tiling,
                 index_t heads = 1) const {
    if (heads > 1) return {b, kv_head, 0, heads * tiling.rows};
    return {b, kv_head, row, (std::min)(plan_.rows_per_task, tiling.rows - row)};
  }

  /// Memory of the parts of one key/value head.
  index_t first_part(index_t b, index_t kv_head, const SequenceTiling& tiling) const {
    return (sequences_.data()[b].first_part + kv_head * tiling.parts()) * kFewRows;
  }

  /// Where task i is: of which batch row, of which key/value heads, and which piece of their rows or keys.
  struct Place {
    index_t b, first_head, piece;
  };

  Place place_of(index_t i) const {
    const AttentionPlan::Sequence* first = sequences_.data();
    const auto* after = std::upper_bound(
        first, first + problem_.batch(), i,
        [](index_t task, const AttentionPlan::Sequence& x) { return task < x.first_task; });
    const index_t b = after - first - 1, at = i - first[b].first_task;
    const index_t tasks = first[b].tiling.tasks(plan_.rows_per_task);
    const index_t groups = plan_.head_groups(problem_.num_kv_heads());
    return {b, (heads_in_turn_ ? at % groups : at / tasks) * plan_.heads_per_task,
            heads_in_turn_ ? at / groups : at % tasks};
  }

  /// Tells the task what its worker takes next if all tasks take the same time. Few rows pass over memory in a way of
  /// their own.
  void announce_next(index_t i, ForwardTask<T>& task) const {
    if (i + plan_.concurrency >= plan_.tasks) return;
    const auto [b, head, piece] = place_of(i + plan_.concurrency);
    if (tiling_at(b).few) return;
    task.expect(block(b, head, piece * plan_.rows_per_task, tiling_at(b)));
  }

  void run_task(index_t i, int worker) {
    const auto [b, first, piece] = place_of(i);
    const SequenceTiling& tiling = tiling_at(b);
    const ForwardScratch<T> scratch = scratch_of(worker);
    const index_t heads = (std::min)(plan_.heads_per_task, problem_.num_kv_heads() - first);
    const index_t row = tiling.splits > 1 ? 0 : piece * plan_.rows_per_task;
    ForwardTask<T> task(problem_, kernels_, tiling, scratch, block(b, first, row, tiling, heads));
    if (!tiling.few) announce_next(i, task);
    if (tiling.splits == 1) return task.run(states_);
    task.sum_part(piece);
    for (index_t n = 0; n < heads; ++n) {
      const index_t part = first_part(b, first + n, tiling) + piece * kFewRows;
      task.copy_part(n, part_sums_.data() + part * plan_.out_stride, part_states_.data() + part);
    }
  }

  void merge_parts(index_t b, index_t kv_head, int worker) {
    const SequenceTiling& tiling = tiling_at(b);
    if (tiling.splits == 1) return;
    const index_t part = first_part(b, kv_head, tiling);
    const ForwardScratch<T> scratch = scratch_of(worker);
    ForwardTask<T>(problem_, kernels_, tiling, scratch, block(b, kv_head, 0, tiling))
        .finish_parts(part_sums_.data() + part * plan_.out_stride, part_states_.data() + part,
                      states_);
  }

  const ForwardKernels<T>& kernels_;
  const AttentionProblem<T>& problem_;
  const AttentionPlan& plan_;
  const Executor& threads_;
  RowState<T>* states_;
  bool heads_in_turn_;  ///< all heads' tasks over some rows, then over the next; else head by head
  Scratch<AttentionPlan::Sequence> sequences_;
  Scratch<T> memory_, part_sums_;
  Scratch<RowState<T>> part_states_;
};

/// max_logits from the states of all rows.
template <class T>
void take_max_logits(const AttentionProblem<T>& problem, const RowState<T>* states) {
  for (index_t b = 0; b < problem.batch(); ++b) {
    for (index_t h = 0; h < problem.num_heads(); ++h) {
      T most = kMinusInf<T>;
      for (index_t i = 0; i < problem.lengths(b).q_len; ++i) {
        most = (std::max)(most, states[problem.row_at(b, h, i)].most);
      }
      problem.options.max_logits(b, h) = most;
    }
  }
}

/// average_weights from the weights.
template <class T>
void average_heads(const AttentionProblem<T>& problem, const Executor& threads) {
  const index_t heads = problem.scores[1], q_len = problem.scores[2], kv_len = problem.scores[3];
  const AttentionOptions<T>& options = problem.options;
  for_rows(threads, problem.batch() * q_len, heads * kv_len, [&](index_t row) {
    const index_t b = row / q_len, i = row % q_len;
    for (index_t j = 0; j < kv_len; ++j) options.average_weights(b, i, j) = T{0};
    for (index_t h = 0; h < heads; ++h) {
      const T* weights = options.weights.at_index({b, h, i, 0});
      for (index_t j = 0; j < kv_len; ++j) options.average_weights(b, i, j) += weights[j];
    }
    for (index_t j = 0; j < kv_len; ++j) options.average_weights(b, i, j) /= static_cast<T>(heads);
  });
}

/// The heads that `wanted` names out of all weights.
template <class T>
void copy_chosen(const TensorView4<T>& all, const AttentionOptions<T>& wanted) {
  const auto [batch, heads, q_len, kv_len] = wanted.weights.shape();
  for (index_t b = 0; b < batch; ++b) {
    for (index_t n = 0; n < heads; ++n) {
      for (index_t i = 0; i < q_len; ++i) {
        std::copy_n(all.at_index({b, wanted.weight_heads(n), i, 0}), kv_len,
                    wanted.weights.at_index({b, n, i, 0}));
      }
    }
  }
}

/// Rows of weights or scores that packed sequences leave over.
template <class T>
void fill_padding(const AttentionProblem<T>& problem, const TensorView4<T>& matrix, T value) {
  if (!matrix || !problem.packed()) return;
  const auto [batch, heads, q_len, kv_len] = matrix.shape();
  for (index_t b = 0; b < batch; ++b) {
    for (index_t h = 0; h < heads; ++h) {
      for (index_t i = problem.lengths(b).q_len; i < q_len; ++i) {
        std::fill_n(matrix.at_index({b, h, i, 0}), kv_len, value);
      }
    }
  }
}

/// Outputs on request of a call without any query: empty sums and the largest of nothing.
template <class T>
void fill_without_rows(const AttentionOptions<T>& options) {
  const auto fill = [](const auto& rows, T value) {
    for (index_t a = 0; a < rows.extent(0); ++a) {
      for (index_t b = 0; b < rows.extent(1); ++b) {
        for (index_t c = 0; c < rows.extent(2); ++c) rows(a, b, c) = value;
      }
    }
  };
  if (options.average_weights) fill(options.average_weights, T{0});
  if (options.column_sums) fill(options.column_sums, T{0});
  if (options.max_logits) fill(options.max_logits.unsqueeze(2), kMinusInf<T>);
}

template <class T>
void run_plan(const ForwardKernels<T>& kernels, const AttentionProblem<T>& problem,
              const AttentionPlan& plan, const Executor& threads, Workspace& workspace) {
  Scratch<RowState<T>> states(workspace, plan.states);
  Forward<T> forward(kernels, problem, plan, threads, workspace, states.data());
  forward.run();
  const AttentionOptions<T>& options = problem.options;
  if (options.column_sums) forward.sum_columns();
  if (options.max_logits) take_max_logits(problem, states.data());
  fill_padding(problem, options.weights, T{0});
  fill_padding(problem, options.scores, kMinusInf<T>);
  if (options.average_weights) average_heads(problem, threads);
}

template <class T>
void forward_with(const ForwardKernels<T>& kernels, const AttentionProblem<T>& call,
                  const Executor& executor, Workspace& workspace) {
  if (!call.has_rows()) return fill_without_rows(call.options);
  const AttentionPlan plan(call, executor);
  const SerialExecutor one_thread;
  const Executor& threads = plan.concurrency == 1 ? one_thread : executor;
  if (plan.scores_elements == 0) return run_plan(kernels, call, plan, threads, workspace);
  Scratch<T> weights(workspace, plan.scores_elements);
  AttentionOptions<T> options = call.options;
  options.weights = {weights.data(), call.scores};
  options.weight_heads = {};
  run_plan(kernels,
           {call.q, call.k, call.v, call.out, options, call.scale, call.scores, call.group,
            call.alibi_slopes, call.functors, call.k_scales, call.v_scales},
           plan, threads, workspace);
  if (call.options.weights) copy_chosen(options.weights, call.options);
}

}  // namespace detail

ATTN_NAMESPACE_END

#define ATTN_KERNEL_TEXT "attn/attention/forward.inc.hpp"
#include "attn/simd/foreach_isa.hpp"
