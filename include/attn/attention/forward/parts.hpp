// AttentionPart: a call computed over one part of its keys after another.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>

#include "attn/attention/forward/forward.hpp"

ATTN_NAMESPACE_BEGIN

namespace detail {

/// Attention of some queries over the keys of one part. The caller keeps states and sums of the
/// rows between parts, and gives the parts in the order of keys; `keys` begins at a multiple of
/// block_kv of the batch rows' tiling_of(), or is empty. Blocks are then summed in the order of the
/// whole call: the bits of its rows are those of the whole call. For calls on the tiled path.
template <class T>
struct AttentionPart {
  enum class Stage {
    sums,        ///< online softmax and weighted values in one pass
    states,      ///< the first of two passes, for a prob functor
    final_sums,  ///< the second one, over all parts again
  };

  /// The whole call. Only the queries and keys of this part are read, at their index in the call.
  const AttentionProblem<T>& problem;
  KeyRange batch;    ///< batch rows of equal lengths
  KeyRange queries;  ///< in each of these batch rows and every head
  KeyRange keys;
  Stage stage = Stage::sums;
  bool is_first = false, is_last = false;  ///< of the parts of this stage
  /// Recomputes the rows in `non_finite` with masked values as 0, in the same stages and parts.
  bool recomputes = false;
  RowState<T>* states;  ///< (batch, num_heads, queries), of these batch rows and queries
  T* output_scales;     ///< (batch, num_heads, queries), set by the last part
  T* sums;              ///< (batch, num_heads, queries, head_dim_v)
  std::uint8_t*
      non_finite;  ///< (batch, num_heads, queries), set by the last part: see masks_keys()

  index_t num_queries() const { return queries.end - queries.begin; }
  index_t num_heads() const { return (batch.end - batch.begin) * problem.num_heads(); }
  index_t num_rows() const { return num_heads() * num_queries(); }
};

/// Runs one part with the kernels of one instruction set.
template <class T>
class PartRun {
 public:
  PartRun(const ForwardKernels<T>& kernels, const AttentionPart<T>& part)
      : kernels_(kernels),
        part_(part),
        problem_(part.problem),
        tiling_(tiling_of(problem_, part.batch.begin)) {}

  /// Rows [first, first + count) of all rows of the part, which are of one head.
  void run(const ForwardScratch<T>& scratch, index_t first, index_t count) const {
    if (!part_.recomputes) return run_rows(scratch, first, count);
    for (index_t row = first; row < first + count; ++row) {
      if (part_.non_finite[row] != 0) run_rows(scratch, row, 1);
    }
  }

 private:
  using Stage = typename AttentionPart<T>::Stage;

  void run_rows(const ForwardScratch<T>& scratch, index_t first, index_t count) const {
    const index_t heads = problem_.num_heads(), queries = part_.num_queries();
    const index_t b = part_.batch.begin + first / queries / heads, h = first / queries % heads;
    const index_t q_len = problem_.lengths(b).q_len, of_kv_head = h % problem_.heads_per_kv_head;
    bool is_finite = true;
    {
      ForwardTask<T> task(problem_, kernels_, tiling_, scratch,
                          {.b = b,
                           .kv_head = h / problem_.heads_per_kv_head,
                           .first_row = of_kv_head * q_len + part_.queries.begin + first % queries,
                           .num_rows = count});
      clear_sums(task);
      restore(task, first);
      const QueryRow<T>* kept_for = part_.recomputes ? &task.rows[0] : nullptr;
      switch (part_.stage) {
        case Stage::sums:
          sum_values(task, part_.keys, kept_for);
          break;
        case Stage::states:
          find_states(task, part_.keys);
          break;
        case Stage::final_sums:
          sum_with_final_weights(task, part_.keys, kept_for);
          break;
      }
      if (finalizes()) finalize_rows<T>(task, nullptr);
      keep(task, first);
      if (part_.is_last && part_.stage != Stage::states) is_finite = write_outputs(task);
    }
    if (!part_.is_last || part_.recomputes || part_.stage == Stage::states) return;
    for (index_t row = first; row < first + count; ++row) {
      const index_t i = part_.queries.begin + row % queries;
      part_.non_finite[row] =
          !is_finite && !is_finite_output(problem_, kernels_, scratch, problem_.output(b, h, i));
    }
  }

  /// Whether this part ends the states of its rows.
  bool finalizes() const { return part_.is_last && part_.stage != Stage::final_sums; }

  void restore(ForwardTask<T>& task, index_t first) const {
    const bool is_final = part_.stage == Stage::final_sums;
    const index_t dv = problem_.head_dim_v();
    for (index_t r = 0; r < task.rows.count(); ++r) {
      if (!part_.is_first || is_final) task.rows[r].state = part_.states[first + r];
      if (is_final) task.rows[r].output_scale = part_.output_scales[first + r];
      if (!part_.is_first) std::copy_n(part_.sums + (first + r) * dv, dv, task.sums(r));
    }
  }

  void keep(const ForwardTask<T>& task, index_t first) const {
    const index_t dv = problem_.head_dim_v();
    for (index_t r = 0; r < task.rows.count(); ++r) {
      part_.states[first + r] = task.rows[r].state;
      if (finalizes()) part_.output_scales[first + r] = task.rows[r].output_scale;
      std::copy_n(task.sums(r), dv, part_.sums + (first + r) * dv);
    }
  }

  const ForwardKernels<T>& kernels_;
  const AttentionPart<T>& part_;
  const AttentionProblem<T>& problem_;
  SequenceTiling tiling_;
};

template <class T>
ATTN_ONCE_A_CALL void run_part(const ForwardKernels<T>& kernels, const AttentionPart<T>& part,
                               const Executor& executor, Workspace& workspace) {
  const index_t queries = part.num_queries();
  if (part.num_rows() == 0) return;
  AttentionPlan plan(part.problem, executor);
  const index_t heads = part.num_heads();
  index_t step = plan.rows_per_task;
  const auto pieces = [&] { return (queries + step - 1) / step; };
  while (step > AttentionPlan::kMinRows && heads * pieces() < 2 * plan.concurrency) step /= 2;
  const SerialExecutor one_thread;
  // An executor of one thread is kept: it may poll messages between tasks.
  const Executor& threads =
      plan.concurrency == 1 && executor.concurrency() > 1 ? one_thread : executor;
  const Scratch<std::byte> memory(workspace, static_cast<index_t>(plan.workspace_bytes));
  ScratchLayout layout(memory.data());
  const CallScratch<T> scratch(layout, part.problem, plan);
  const PartRun<T> run(kernels, part);
  threads.run(heads * pieces(), [&](index_t task, int worker) {
    const index_t first = task % pieces() * step;
    run.run(scratch.workers[worker], task / pieces() * queries + first,
            (std::min)(step, queries - first));
  });
}

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Winvalid-offsetof"  // for std::optional in the options

template <class In, class Acc>
struct Backend<family::AttentionParts, In, Acc> {
  Kernel<AttentionPart<Acc>> run;

  using Part = AttentionPart<Acc>;
  static constexpr std::uint64_t kLayout =
      layout_hash({sizeof(Backend), offsetof(Backend, run), sizeof(Part), offsetof(Part, batch),
                   offsetof(Part, queries), offsetof(Part, keys), offsetof(Part, stage),
                   offsetof(Part, is_first), offsetof(Part, is_last), offsetof(Part, recomputes),
                   offsetof(Part, states), offsetof(Part, output_scales), offsetof(Part, sums),
                   offsetof(Part, non_finite), Backend<family::Attention, In, Acc>::kLayout});
};

#pragma GCC diagnostic pop

}  // namespace detail

ATTN_NAMESPACE_END

#define ATTN_KERNEL_TEXT "attn/attention/forward/parts.inc.hpp"
#include "attn/simd/foreach_isa.hpp"
