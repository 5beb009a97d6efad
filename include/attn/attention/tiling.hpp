// SequenceTiling: how a sequence is cut into rows, splits and blocks, and the path it takes.
// SPDX-License-Identifier: Apache-2.0
//
// The tiled path packs keys in panels; a tile is MR rows. The decode path, for few rows of a
// key/value head, passes once over keys and values where they lie, since memory limits it; a tile
// is all rows.
#pragma once

#include "attn/attention/row_kernels.hpp"
#include "attn/exec/caches.hpp"
#include "attn/exec/executor.hpp"

ATTN_NAMESPACE_BEGIN

namespace detail {

/// Half a megabyte, as Zen 3 has, holds half of what tasks and blocks take elsewhere.
inline bool has_large_second_level_cache() { return second_level_cache() >= (1 << 20); }

/// How the rows and keys of one batch row are cut. All of it follows from lengths and the machine
/// alone, and fixes where sums are rescaled and merged: results do not depend on the rest of the
/// batch or on the threads.
struct SequenceTiling {
  static constexpr index_t kMaxBlockKV = 512;
  /// Keys of one split on the decode path: enough work to be worth a task, and enough tasks for one
  /// head.
  static constexpr index_t kSplitKV = 2048;

  index_t rows;  ///< of one key/value head: heads_per_kv_head * q_len, stacked
  index_t kv_len;
  bool decode;        ///< the decode path, else the tiled one
  index_t kv_splits;  ///< parts of the keys, each a task
  index_t block_kv;   ///< keys of one block, a multiple of every panel's width

  /// One query has `heads_per_kv_head` rows; `one_part`: the keys are not split.
  SequenceTiling(index_t num_rows, index_t heads_per_kv_head, index_t num_keys, bool one_part)
      : rows(num_rows),
        kv_len(num_keys),
        decode(rows <= max_decode_rows(heads_per_kv_head, kv_len)) {
    kv_splits =
        decode && !one_part ? (std::max)((kv_len + kSplitKV - 1) / kSplitKV, index_t{1}) : 1;
    // Packed K and V of 512 x 64 floats are 128 KB each. What is not packed may be longer, as
    // hardware prefetchers like it, while the scores of all rows stay near: 2048 take 0.95 of the
    // time of 512 (attn_report's sdpa_decode). By the rows of one query, so that a query has the
    // same bits beside others, as speculative decoding needs.
    index_t max_block_kv = has_large_second_level_cache() ? kMaxBlockKV : kMaxBlockKV / 2;
    if (decode) {
      const index_t heads = (std::max)(heads_per_kv_head, index_t{1});
      max_block_kv = (std::max)(max_block_kv, kSplitKV / heads / 64 * 64);
    }
    // Packed sequences may be empty.
    block_kv = std::clamp(round_up(kv_len, 64), index_t{64}, max_block_kv);
  }

  /// Most rows of the decode path. Packing a key pays off from 5 rows on, or from 13 where keys may
  /// come from memory. Zen 4, time over that of tiles: 8 rows on 256 keys 1.07, with ATTN_ISA=avx2
  /// 0.99 (attention_bench's attention_queries_8_short); on 4096 keys of 32 heads 8 rows 0.72 and
  /// 0.73, 16 rows 1.07 and 0.99 (attn_report's sdpa_queries_8 and sdpa_queries_16). Rows of heads
  /// that share keys are those of few tokens, whose bits speculative decoding wants to be those of
  /// one at a time.
  static index_t max_decode_rows(index_t heads_per_kv_head, index_t kv_len) {
    constexpr index_t kMaxRowsOfOneBlock = 4;
    return heads_per_kv_head > 1 || kv_len > kMaxBlockKV ? kMaxDecodeRows : kMaxRowsOfOneBlock;
  }

  /// Tasks of one key/value head.
  index_t tasks(index_t rows_per_task) const {
    return kv_splits > 1 ? kv_splits : (rows + rows_per_task - 1) / rows_per_task;
  }
  /// Parts of one key/value head whose results are kept until all are there.
  index_t parts() const { return kv_splits > 1 ? kv_splits : 0; }
};

/// Most queries of one call, each of `heads_per_kv_head` heads that share keys, that have the bits
/// of as many calls of one query. The first query sees kv_len keys, each one more than the last,
/// from the first key on. They are on the decode path together and alone, and all within one step
/// of keys; 1 where there is no such number.
inline index_t max_decode_queries(index_t heads_per_kv_head, index_t kv_len) {
  const index_t left = round_up(kv_len, kKeyStep) - kv_len;
  return std::clamp(SequenceTiling::max_decode_rows(heads_per_kv_head, kv_len) / heads_per_kv_head,
                    index_t{1}, left + 1);
}

template <class T>
SequenceTiling tiling_of(const AttentionProblem<T>& problem, index_t b) {
  const SequenceLengths lengths = problem.lengths(b);
  // A prob functor needs final weights, which the parts of a split do not have.
  return {problem.heads_per_kv_head * lengths.q_len, problem.heads_per_kv_head, lengths.kv_len,
          static_cast<bool>(problem.functors.prob)};
}

}  // namespace detail

ATTN_NAMESPACE_END
