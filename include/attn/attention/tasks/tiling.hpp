// SequenceTiling: rows, splits and blocks of a sequence, and its path.
// SPDX-License-Identifier: Apache-2.0
//
// A row is one query of one head; a key/value head has heads_per_kv_head * q_len of them. The tiled
// path packs keys into panels and multiplies tiles of MR rows. The decode path, for few rows, reads
// keys and values once, unpacked, because memory bandwidth limits it; its tile is all rows.
#pragma once

#include "attn/attention/rows/row_kernels.hpp"
#include "attn/exec/caches.hpp"
#include "attn/exec/executor.hpp"

ATTN_NAMESPACE_BEGIN

namespace detail {

/// Whether L2 is large. False for 512 KB (Zen 3): tasks and blocks are then half as large.
inline bool has_large_second_level_cache() { return second_level_cache() >= (1 << 20); }

/// How the rows and keys of one batch row are cut. Depends only on lengths and the machine, and
/// determines where sums are rescaled and merged. So results do not depend on the rest of the batch
/// or on the number of threads.
struct SequenceTiling {
  static constexpr index_t kMaxBlockKV = 512;
  /// Keys of one split on the decode path: enough work for a task, and enough tasks for one head.
  static constexpr index_t kSplitKV = 2048;

  index_t rows;  ///< of one key/value head: heads_per_kv_head * q_len, stacked
  index_t kv_len;
  bool decode;        ///< the decode path, else the tiled one
  index_t kv_splits;  ///< splits of the keys, each a task (Flash-Decoding)
  index_t block_kv;   ///< keys of one block, a multiple of every panel's width
  /// The first splits, whose keys all batch rows share: tasks of several batch rows sum them.
  index_t shared_splits = 0;

  /// Has num_heads * q_len rows, cut as if there were heads_per_kv_head * q_len. `never_split`: one
  /// split, whatever num_keys is.
  SequenceTiling(index_t num_heads, index_t heads_per_kv_head, index_t q_len, index_t num_keys,
                 bool never_split)
      : rows(num_heads * q_len),
        kv_len(num_keys),
        decode(heads_per_kv_head * q_len <= max_decode_rows(heads_per_kv_head, kv_len)) {
    kv_splits =
        decode && !never_split ? (std::max)((kv_len + kSplitKV - 1) / kSplitKV, index_t{1}) : 1;
    // Packed K and V of 512 x 64 floats are 128 KB each. Unpacked blocks may be longer, which suits
    // hardware prefetchers, as long as the scores of all rows stay in a near cache: 2048 keys take
    // 0.95 of the time of 512 (attn_report sdpa_decode). The length depends on the rows of one
    // query only, so that a query has the same bits alone and together with others, which
    // speculative decoding requires.
    index_t max_block_kv = has_large_second_level_cache() ? kMaxBlockKV : kMaxBlockKV / 2;
    if (decode) {
      const index_t heads = (std::max)(heads_per_kv_head, index_t{1});
      max_block_kv = (std::max)(max_block_kv, kSplitKV / heads / 64 * 64);
    }
    // Packed sequences may be empty.
    block_kv = std::clamp(round_up(kv_len, 64), index_t{64}, max_block_kv);
  }

  /// Maximal number of rows on the decode path. Packing a key pays off from 5 rows on, or from 13
  /// if keys may come from memory. Zen 4, time relative to the tiled path: 8 rows on 256 keys 1.07,
  /// with ATTN_ISA=avx2 0.99 (attention_bench attention_queries_8_short); on 4096 keys of 32 heads
  /// 8 rows 0.72 and 0.73, 16 rows 1.07 and 0.99 (attn_report sdpa_queries_8 and sdpa_queries_16).
  /// With grouped heads the limit does not depend on kv_len: several tokens at once must have the
  /// same bits as one at a time, which speculative decoding requires.
  static index_t max_decode_rows(index_t heads_per_kv_head, index_t kv_len) {
    constexpr index_t kMaxRowsOfOneBlock = 4;
    return heads_per_kv_head > 1 || kv_len > kMaxBlockKV ? kMaxDecodeRows : kMaxRowsOfOneBlock;
  }

  /// Number of tasks of one key/value head, without those of shared splits.
  index_t tasks(index_t rows_per_task) const {
    return kv_splits > 1 ? kv_splits - shared_splits : (rows + rows_per_task - 1) / rows_per_task;
  }
  /// Number of groups of batch rows whose rows together are at most kMaxDecodeRows.
  index_t batch_groups(index_t batch) const {
    const index_t at_once = kMaxDecodeRows / rows;
    return (batch + at_once - 1) / at_once;
  }
  /// Number of splits of one key/value head whose results are stored and merged: 0 if there is only
  /// one.
  index_t stored_splits() const { return kv_splits > 1 ? kv_splits : 0; }
};

/// The largest number of queries for which one call gives the same bits as one call per query; at
/// least 1. The first query sees kv_len keys, each further one a key more. All of them take the
/// decode path, together and alone, and all their lengths lie within one step of kKeyStep keys.
inline index_t max_decode_queries(index_t heads_per_kv_head, index_t kv_len) {
  const index_t left = round_up(kv_len, kKeyStep) - kv_len;
  return std::clamp(SequenceTiling::max_decode_rows(heads_per_kv_head, kv_len) / heads_per_kv_head,
                    index_t{1}, left + 1);
}

template <class T>
SequenceTiling tiling_of(const AttentionProblem<T>& problem, index_t b) {
  const SequenceLengths lengths = problem.lengths(b);
  // A prob functor needs final weights, which a single split does not have.
  SequenceTiling tiling(problem.heads_per_kv_head, problem.tiled_heads_per_kv_head, lengths.q_len,
                        lengths.kv_len, static_cast<bool>(problem.functors.prob));
  if (problem.shared.length > 0 && tiling.kv_splits > 1 && problem.scores_alike() &&
      tiling.rows <= kMaxDecodeRows / 2) {
    tiling.shared_splits = problem.shared.length / SequenceTiling::kSplitKV;
  }
  return tiling;
}

}  // namespace detail

ATTN_NAMESPACE_END
