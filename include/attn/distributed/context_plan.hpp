// ContextPlan: the chunks in which the keys of a context parallel call travel, and who needs them.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "attn/attention/tasks/tiling.hpp"
#include "attn/core/buffer.hpp"
#include "attn/distributed/context_layout.hpp"

ATTN_NAMESPACE_BEGIN

namespace detail {

/// Batch rows whose queries and keys are the same tokens of the layout: all rows of a call, or one
/// packed sequence.
struct ContextSequence {
  IndexRange batch;
  IndexRange queries, keys;  ///< tokens of the layout

  /// Whether it takes the decode path, whose sums depend on all rows of a key/value head.
  template <class T>
  bool is_decoded(const AttentionProblem<T>& problem) const {
    return !is_empty(queries) && tiling_of(problem, batch.begin).decode;
  }
};

/// All sequences of a call, in order.
template <class T>
std::vector<ContextSequence> sequences_of(const AttentionProblem<T>& problem) {
  if (!problem.packed()) {
    return {{{0, problem.batch()}, {0, problem.scores[2]}, {0, problem.scores[3]}}};
  }
  const auto &q_starts = problem.options.cu_seqlens_q, &k_starts = problem.options.cu_seqlens_k;
  std::vector<ContextSequence> sequences;
  for (index_t b = 0; b < problem.batch(); ++b) {
    sequences.push_back(
        {{b, b + 1}, {q_starts(b), q_starts(b + 1)}, {k_starts(b), k_starts(b + 1)}});
  }
  return sequences;
}

/// Whole blocks of keys of one sequence.
struct ContextChunk {
  KeyRange keys;                ///< numbers in the sequence
  IndexRange tokens;            ///< of the layout
  std::vector<bool> needed_by;  ///< for each rank
};

/// The queries of one sequence in one range of this rank's tokens.
template <class T>
struct ContextRows {
  std::size_t range;  ///< of the two ranges
  IndexRange batch;
  IndexRange queries;          ///< numbers in the sequence
  KeyRange seen;               ///< contains all keys that they see
  IndexRange chunks = {0, 0};  ///< with keys that they see
  std::vector<RowState<T>> states = {};
  std::vector<T> output_scales = {};
  Buffer<T> sums = {};
  std::vector<std::uint8_t> non_finite = {};
};

/// The chunks of all sequences that are not on the decode path, and the rows of one rank.
template <class T>
class ContextPlan {
 public:
  ContextPlan(const AttentionProblem<T>& problem, const ContextLayout& layout, int rank)
      : problem_(problem), layout_(layout), rank_(rank) {
    for (const ContextSequence& sequence : sequences_of(problem)) {
      if (!detail::is_empty(sequence.queries) && !sequence.is_decoded(problem)) {
        is_empty_ = false;
        add(sequence);
      }
    }
  }

  /// Whether all sequences are empty or on the decode path; the same on every rank.
  bool is_empty() const { return is_empty_; }
  const std::vector<ContextChunk>& chunks() const { return chunks_; }
  std::vector<ContextRows<T>>& rows() { return rows_; }
  index_t longest_chunk() const { return longest_chunk_; }

 private:
  /// The smallest range that contains all keys that queries see in any of the batch rows.
  KeyRange seen_by(const IndexRange& batch, const IndexRange& queries) const {
    KeyRange all{layout_.seq(), 0};
    const bool varies = problem_.options.mask.has_intervals();
    for (index_t b = batch.begin; b < batch.end; ++b) {
      for (index_t i = queries.begin; i < (varies ? queries.end : queries.begin + 1); ++i) {
        const KeyRange seen = problem_.keys_seen(b, i);
        if (detail::is_empty(seen)) continue;
        all = {(std::min)(all.begin, seen.begin), (std::max)(all.end, seen.end)};
      }
    }
    return all;
  }

  void add(const ContextSequence& sequence) {
    std::vector<std::pair<int, KeyRange>> seen;  // rank, and keys that queries of it see
    const std::size_t first_rows = rows_.size();
    for (int rank = 0; rank < layout_.ranks(); ++rank) {
      for_parts(layout_, rank, sequence.queries,
                [&](const IndexRange& tokens, index_t, std::size_t n) {
                  const IndexRange queries{tokens.begin - sequence.queries.begin,
                                           tokens.end - sequence.queries.begin};
                  const KeyRange keys = seen_by(sequence.batch, queries);
                  seen.emplace_back(rank, keys);
                  if (rank != rank_) return;
                  rows_.push_back(
                      {.range = n, .batch = sequence.batch, .queries = queries, .seen = keys});
                });
    }
    const index_t longest = layout_.ranges(0)[0].end;  // no range of a rank is longer
    // Longer chunks save copies of the rows' sums, shorter ones memory.
    constexpr index_t kMaxKeys = 2048;
    const index_t block = tiling_of(problem_, sequence.batch.begin).block_kv;
    const index_t step = (std::max)(round_up((std::min)(longest, kMaxKeys), block), block);
    const index_t first = sequence.keys.begin, count = sequence.keys.end - first;
    for (index_t begin = 0; begin < count; begin += step) {
      const KeyRange keys{begin, (std::min)(begin + step, count)};
      const auto contains_some = [&](const KeyRange& range) {
        return !detail::is_empty(intersection(range, keys));
      };
      ContextChunk chunk{keys,
                         {first + keys.begin, first + keys.end},
                         std::vector<bool>(static_cast<std::size_t>(layout_.ranks()))};
      for (const auto& [rank, range] : seen) {
        if (contains_some(range)) chunk.needed_by[static_cast<std::size_t>(rank)] = true;
      }
      const index_t number = std::ssize(chunks_);
      for (std::size_t n = first_rows; n < rows_.size(); ++n) {
        if (!contains_some(rows_[n].seen)) continue;
        IndexRange& needed = rows_[n].chunks;
        needed = {detail::is_empty(needed) ? number : needed.begin, number + 1};
      }
      longest_chunk_ = (std::max)(longest_chunk_, keys.end - keys.begin);
      chunks_.push_back(std::move(chunk));
    }
  }

  const AttentionProblem<T>& problem_;
  const ContextLayout& layout_;
  int rank_;
  bool is_empty_ = true;
  std::vector<ContextChunk> chunks_;
  std::vector<ContextRows<T>> rows_;
  index_t longest_chunk_ = 0;
};

}  // namespace detail

ATTN_NAMESPACE_END
