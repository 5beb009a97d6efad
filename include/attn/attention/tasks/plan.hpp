// AttentionPlan: how a call is split into tasks.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attn/attention/tasks/tiling.hpp"

ATTN_NAMESPACE_BEGIN

struct AttentionPlan;

namespace detail {

/// Bytes of CallScratch: see scratch.hpp.
template <class T>
std::size_t call_scratch_bytes(const AttentionProblem<T>& problem, const AttentionPlan& plan);

}  // namespace detail

/// How one call is cut into tasks, and the scratch memory it needs, computed before it runs;
/// independent of the instruction set, except for the memory of a matmul_precision. explain()
/// prints it.
struct AttentionPlan {
  /// Minimal number of rows of one task.
  static constexpr index_t kMinRows = 96;
  /// Maximal number of key/value heads of one task, processed in turn.
  static constexpr index_t kMaxHeads = 16;

  /// One batch row: its first task, and the first of its splits, whose results are merged.
  struct Sequence {
    detail::SequenceTiling tiling;
    index_t first_task, first_split;
  };

  index_t concurrency = 1;     ///< threads
  index_t rows_per_task = 0;   ///< queries, of all heads that share keys
  index_t heads_per_task = 1;  ///< key/value heads, which take blocks of keys in turn
  index_t tasks = 0;           ///< blocks of rows, and splits of keys, of the whole batch
  index_t shared_tasks = 0;    ///< the first of them, of splits whose keys batch rows share
  index_t kv_splits = 0;       ///< splits of keys, merged at the end
  index_t max_rows = 0, max_block_kv = 0;  ///< of any task
  bool packs_keys = false;                 ///< some sequence takes the tiled path
  index_t scores_elements = 0;             ///< weights in scratch memory, for average_weights
  index_t states = 0;                      ///< rows whose softmax states outlive their task
  std::size_t workspace_bytes = 0;

  bool operator==(const AttentionPlan&) const = default;

  template <class T>
  ATTN_ONCE_A_CALL AttentionPlan(const detail::AttentionProblem<T>& problem,
                                 const Executor& executor) {
    if (!problem.has_rows()) return;
    const index_t batch = problem.batch(), kv_heads = problem.num_kv_heads();
    // Many rows per task, since each task packs the keys again: packing a key costs about 1/400 of
    // multiplying it by 384 rows. Idle threads cost more, hence the halving below. Queries and
    // outputs of 768 x 64 floats are 192 KB each.
    rows_per_task = detail::has_large_second_level_cache() ? 768 : 384;
    index_t products = 0;
    for (index_t b = 0; b < batch; ++b) {
      const detail::SequenceTiling tiling = detail::tiling_of(problem, b);
      products += tiling.rows * tiling.kv_len;
      max_rows = (std::max)(max_rows, tiling.rows);
      max_block_kv = (std::max)(max_block_kv, tiling.block_kv);
      packs_keys = packs_keys || !tiling.decode;
      kv_splits += kv_heads * tiling.stored_splits();
      if (b == 0 && tiling.shared_splits > 0)
        shared_tasks = kv_heads * tiling.shared_splits * tiling.batch_groups(batch);
    }
    if (detail::is_worth_threads(products * kv_heads *
                                 (problem.score_dim() + problem.head_dim_v()))) {
      concurrency = detail::worker_count(executor);
    }
    const auto count_tasks = [&] {
      tasks = shared_tasks;
      for (index_t b = 0; b < batch; ++b) {
        tasks += tasks_of(detail::tiling_of(problem, b), kv_heads);
      }
    };
    // With keys in (batch, seq, heads, dim) or in pages, the rows of several heads are adjacent in
    // memory. A task then takes several heads, block by block: one head alone reads a piece of
    // every page, which took twice as long (attn_report cost_seq_major and cost_paged).
    if (!packs_keys && (problem.paged() || problem.k.stride(1) < problem.k.stride(2))) {
      heads_per_task = std::clamp(kv_heads, index_t{1}, kMaxHeads);
    }
    for (count_tasks(); heads_per_task > 1 && tasks < concurrency; count_tasks()) {
      heads_per_task = (heads_per_task + 1) / 2;
    }
    while (rows_per_task > kMinRows && tasks < 2 * concurrency) {
      rows_per_task /= 2;
      if (max_rows > rows_per_task) count_tasks();
    }
    max_rows = (std::min)(max_rows, rows_per_task);
    if (shared_tasks > 0) max_rows = (std::max)(max_rows, detail::kMaxDecodeRows);
    const AttentionOptions<T>& options = problem.options;
    if (options.average_weights && (!options.weights || options.weight_heads))
      scores_elements = size_of(problem.scores);
    if (options.column_sums || options.max_logits) {
      states = batch * problem.num_heads() * problem.scores[2];
    }
    workspace_bytes = detail::call_scratch_bytes(problem, *this);
  }

  /// Number of groups of heads_per_task key/value heads; the last may be smaller.
  index_t head_groups(index_t kv_heads) const {
    return (kv_heads + heads_per_task - 1) / heads_per_task;
  }
  /// Number of tasks of a batch row.
  index_t tasks_of(const detail::SequenceTiling& tiling, index_t kv_heads) const {
    return head_groups(kv_heads) * tiling.tasks(rows_per_task);
  }
};

ATTN_NAMESPACE_END
