// How a call is cut: tasks, parts of the keys, blocks of keys and the scratch memory that they take.
// SPDX-License-Identifier: Apache-2.0
//
// Two paths. Tiled: keys are packed in panels, and a tile is MR rows. Few rows of a key/value head: keys and values pass
// once, unpacked, since memory limits; a tile is all rows.
#pragma once

#include "attn/attention/row_kernels.hpp"
#include "attn/exec/caches.hpp"
#include "attn/exec/executor.hpp"

ATTN_NAMESPACE_BEGIN

namespace detail {

/// Half a megabyte, as Zen 3 has, holds half of what tasks and blocks take elsewhere.
inline bool has_large_second_level_cache() { return second_level_cache() >= (1 << 20); }

/// How the rows and keys of one batch row are cut. All of it follows from lengths and the machine alone, and fixes
/// where sums are rescaled and merged: results do not depend on the rest of the batch or on the threads.
struct SequenceTiling {
  static constexpr index_t kMostBlockKV = 512;
  /// Keys of one task on the path for few rows: enough work to be worth a task, and enough tasks for one head.
  static constexpr index_t kSplitKV = 2048;

  index_t rows;  ///< of one key/value head: the heads that share keys are stacked, group * q_len
  index_t kv_len;
  bool few;          ///< the path for few rows
  index_t splits;    ///< parts of the keys, each a task
  index_t block_kv;  ///< keys of one block, a multiple of every panel's width

  /// `group` rows are one query of all heads that share keys; `one_part`: the keys are not split.
  SequenceTiling(index_t num_rows, index_t group, index_t num_keys, bool one_part)
      : rows(num_rows), kv_len(num_keys), few(rows <= most_few(group, kv_len)) {
    splits = few && !one_part ? (std::max)((kv_len + kSplitKV - 1) / kSplitKV, index_t{1}) : 1;
    // Packed K and V of 512 x 64 floats are 128 KB each. What is not packed may be longer, as hardware prefetchers like
    // it, while the scores of all rows stay near: 2048 take 0.95 of the time of 512 (attn_report's sdpa_decode). By the
    // rows of one query, so that a query has the same bits beside others, as speculative decoding needs.
    index_t most = has_large_second_level_cache() ? kMostBlockKV : kMostBlockKV / 2;
    if (few) most = (std::max)(most, kSplitKV / (std::max)(group, index_t{1}) / 64 * 64);
    block_kv =
        std::clamp(round_up(kv_len, 64), index_t{64}, most);  // packed sequences may be empty
  }

  /// Most rows of the path for few. Packing a key pays off from 5 rows on, or from 13 where keys may come from memory. Zen 4,
  /// time over that of tiles: 8 rows on 256 keys 1.07, with ATTN_ISA=avx2 0.99 (attention_bench's
  /// attention_queries_8_short); on 4096 keys of 32 heads 8 rows 0.72 and 0.73, 16 rows 1.07 and 0.99 (attn_report's
  /// sdpa_queries_8 and sdpa_queries_16). Rows of heads that share keys are those of few tokens, whose bits speculative
  /// decoding wants to be those of one at a time.
  static index_t most_few(index_t group, index_t kv_len) {
    constexpr index_t kFewOfOneBlock = 4;
    return group > 1 || kv_len > kMostBlockKV ? kFewRows : kFewOfOneBlock;
  }

  /// Tasks of one key/value head.
  index_t tasks(index_t rows_per_task) const {
    return splits > 1 ? splits : (rows + rows_per_task - 1) / rows_per_task;
  }
  /// Parts of one key/value head whose results are kept until all are there.
  index_t parts() const { return splits > 1 ? splits : 0; }
};

/// Most queries of one call, each of `group` heads that share keys, that have the bits of as many calls of one query. The
/// first query sees kv_len keys, each one more than the last, from the first key on. They are on the path for few rows
/// together and alone, and all within one step of keys; 1 where there is no such number.
inline index_t max_decode_queries(index_t group, index_t kv_len) {
  const index_t left = round_up(kv_len, kKeyStep) - kv_len;
  return std::clamp(SequenceTiling::most_few(group, kv_len) / group, index_t{1}, left + 1);
}

template <class T>
SequenceTiling tiling_of(const AttentionProblem<T>& problem, index_t b) {
  const SequenceLengths lengths = problem.lengths(b);
  // A prob functor needs final weights, which the parts of a split do not have.
  return {problem.group * lengths.q_len, problem.group, lengths.kv_len,
          static_cast<bool>(problem.functors.prob)};
}

/// Scratch of one worker, cut from `elements` of T at `memory`.
template <class T>
struct ForwardScratch {
  T *k, *v, *scores, *products, *factors, *q, *out;
  QueryRow<T>* rows;
  const void** pointers;  ///< to the keys or values of one block, on the path for few rows
  index_t out_stride, elements = 0;

  /// For tasks of num_heads key/value heads with at most num_rows rows each, and blocks of at most block_kv keys, which
  /// some of them pack. d: products of one score; `products`, (kFewRows, block_kv), are those with values apart, `factors` the
  /// scales of a block's keys or values.
  ForwardScratch(T* memory, index_t num_heads, index_t num_rows, index_t block_kv, bool packs_keys,
                 bool has_products, bool has_scales, index_t d, index_t dv)
      : out_stride(round_up(dv, 16)) {
    const auto take = [&](index_t n) {
      T* start = memory == nullptr ? nullptr : memory + elements;
      elements += round_up(n, 16);
      return start;
    };
    const auto take_bytes = [&](std::size_t bytes) {
      return take((static_cast<index_t>(bytes) + index_t{sizeof(T)} - 1) / index_t{sizeof(T)});
    };
    const index_t height =
        num_heads * (std::max)(num_rows + kMostTileRows - 1, kFewRows);  // whole tiles
    k = take(packs_keys ? block_kv * d : 0);
    v = take(block_kv * out_stride);
    scores = take((std::max)(kMostTileRows, kFewRows) * block_kv);
    products = take(has_products ? kFewRows * block_kv : 0);
    factors = take(has_scales ? block_kv : 0);
    pointers = reinterpret_cast<const void**>(
        take_bytes(static_cast<std::size_t>(block_kv) * sizeof(const void*)));
    q = take(height * d);
    out = take(height * out_stride);
    rows = reinterpret_cast<QueryRow<T>*>(
        take_bytes(static_cast<std::size_t>(num_heads * num_rows) * sizeof(QueryRow<T>)));
  }
};

}  // namespace detail

/// How one call is cut into tasks and what scratch memory it takes, known before it runs; the same on every
/// instruction set. explain() shows it.
struct AttentionPlan {
  /// Rows of one task, at least.
  static constexpr index_t kLeastRows = 96;
  /// Key/value heads that one task takes in turn, at most.
  static constexpr index_t kMostHeads = 16;

  /// One batch row: where its tasks begin, and the parts that tasks leave to be merged.
  struct Sequence {
    detail::SequenceTiling tiling;
    index_t first_task, first_part;
  };

  index_t concurrency = 1;     ///< threads
  index_t rows_per_task = 0;   ///< queries, of all heads that share keys
  index_t heads_per_task = 1;  ///< key/value heads, which take blocks of keys in turn
  index_t tasks = 0;           ///< blocks of rows, and parts of split keys, of the whole batch
  index_t parts = 0;           ///< of split keys, merged at the end
  index_t most_rows = 0, most_block_kv = 0;  ///< of any task
  bool packs_keys = false;                   ///< some task takes the tiled path
  index_t scores_elements = 0;  ///< weights in scratch memory, of which only the average is wanted
  index_t states = 0;           ///< rows whose softmax states outlive their task
  index_t worker_elements = 0, out_stride = 0;
  std::size_t workspace_bytes = 0;

  bool operator==(const AttentionPlan&) const = default;

  template <class T>
  AttentionPlan(const detail::AttentionProblem<T>& problem, const Executor& executor) {
    if (!problem.has_rows()) return;
    const index_t batch = problem.batch(), kv_heads = problem.num_kv_heads();
    // Packing a key costs about 1/400 of multiplying it by 384 rows; idle threads, below, cost more. Queries and outputs
    // of 768 x 64 floats are 192 KB each.
    rows_per_task = detail::has_large_second_level_cache() ? 768 : 384;
    index_t products = 0;
    for (index_t b = 0; b < batch; ++b) {
      const detail::SequenceTiling tiling = detail::tiling_of(problem, b);
      products += tiling.rows * tiling.kv_len;
      most_rows = (std::max)(most_rows, tiling.rows);
      most_block_kv = (std::max)(most_block_kv, tiling.block_kv);
      packs_keys = packs_keys || !tiling.few;
      parts += kv_heads * tiling.parts();
    }
    if (detail::is_worth_threads(products * kv_heads *
                                 (problem.score_dim() + problem.head_dim_v()))) {
      concurrency = detail::worker_count(executor);
    }
    const auto count_tasks = [&] {
      tasks = 0;
      for (index_t b = 0; b < batch; ++b) {
        tasks += tasks_of(detail::tiling_of(problem, b), kv_heads);
      }
    };
    // Where memory holds a key's rows of several heads side by side, heads visit a block one after another: one head alone
    // reads a piece of every page, which takes keys of (batch, seq, heads, dim) twice as long (attn_report's
    // cost_seq_major and cost_paged).
    if (!packs_keys && (problem.paged() || problem.k.stride(1) < problem.k.stride(2))) {
      heads_per_task = std::clamp(kv_heads, index_t{1}, kMostHeads);
    }
    for (count_tasks(); heads_per_task > 1 && tasks < concurrency; count_tasks()) {
      heads_per_task = (heads_per_task + 1) / 2;
    }
    while (rows_per_task > kLeastRows && tasks < 2 * concurrency) {
      rows_per_task /= 2;
      if (most_rows > rows_per_task) count_tasks();
    }
    most_rows = (std::min)(most_rows, rows_per_task);
    const AttentionOptions<T>& options = problem.options;
    if (options.average_weights && (!options.weights || options.weight_heads))
      scores_elements = size_of(problem.scores);
    if (options.column_sums || options.max_logits) {
      states = batch * problem.num_heads() * problem.scores[2];
    }
    const detail::ForwardScratch<T> scratch = scratch_at<T>(problem, nullptr);
    worker_elements = scratch.elements;
    out_stride = scratch.out_stride;
    using detail::kFewRows, detail::RowState;
    workspace_bytes = Scratch<T>::bytes(scores_elements) + Scratch<RowState<T>>::bytes(states) +
                      Scratch<Sequence>::bytes(batch) +
                      Scratch<T>::bytes(worker_elements * concurrency) +
                      Scratch<T>::bytes(parts * kFewRows * out_stride) +
                      Scratch<RowState<T>>::bytes(parts * kFewRows);
  }

  /// Groups of heads_per_task key/value heads; the last may be smaller.
  index_t head_groups(index_t kv_heads) const {
    return (kv_heads + heads_per_task - 1) / heads_per_task;
  }
  /// Of a batch row.
  index_t tasks_of(const detail::SequenceTiling& tiling, index_t kv_heads) const {
    return head_groups(kv_heads) * tiling.tasks(rows_per_task);
  }

  template <class T>
  detail::ForwardScratch<T> scratch_at(const detail::AttentionProblem<T>& problem,
                                       T* memory) const {
    return {memory,
            heads_per_task,
            most_rows,
            most_block_kv,
            packs_keys,
            static_cast<bool>(problem.options.qv),
            static_cast<bool>(problem.k_scales),
            problem.score_dim(),
            problem.head_dim_v()};
  }
};

ATTN_NAMESPACE_END
