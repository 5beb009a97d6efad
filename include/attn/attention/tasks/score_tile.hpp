// ScoreTile: scores of a tile of queries and a block of keys, with their visibility.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attn/attention/tasks/row_modifiers.hpp"

ATTN_NAMESPACE_BEGIN

namespace detail {

/// A non-owning view of a tile: pointers to its queries, keys, scores and sums. All drivers (online
/// softmax, weights and scores on request, column sums) loop over tiles.
template <class T>
struct ScoreTile {
  index_t b, kv_head;
  QueryRow<T>* rows;
  index_t num_rows;
  const T* queries;  ///< followed by rows of any values, up to the height of a tile
  index_t query_stride;

  index_t first_key;  ///< of the block: column 0 of the scores
  KeyRange keys;      ///< keys visible to at least one row
  /// Score columns of `keys`, widened to the start of a panel: each lane then sums the same keys in
  /// any tile.
  KeyRange columns;
  T* scores;  ///< (rows, keys of a block)
  index_t stride;

  T* sums;           ///< of weights times values, out_stride of the scratch apart
  KeyChunks chunks;  ///< visibility of `keys` under the mask functor
  bool is_last_block;

  index_t num_keys() const { return keys.end - keys.begin; }
  index_t num_columns() const { return columns.end - columns.begin; }
  /// Column of keys.begin.
  index_t first_column() const { return keys.begin - first_key; }
  /// The tile with the keys `part` alone, which begin and end at the tile's or a chunk's ends.
  ScoreTile part_of(KeyRange part) const {
    ScoreTile result = *this;
    result.keys = part;
    result.columns = {part.begin == keys.begin ? columns.begin : part.begin - first_key,
                      part.end - first_key};
    return result;
  }
  /// Scores of row x, all columns.
  T* row_scores(index_t x) const { return scores + x * stride + columns.begin; }
  /// Scores of row x for `keys`.
  T* key_scores(index_t x) const { return scores + x * stride + first_column(); }
};

/// The scores of row x of a tile for the keys of the tile that the row sees, possibly none.
/// first_position: of key 0.
template <class T>
ScoreRow<T> seen_scores(const ScoreTile<T>& tile, index_t x, index_t first_position) {
  const QueryRow<T>& row = tile.rows[x];
  const index_t begin = std::clamp((std::max)(row.keys.begin, tile.keys.begin) - tile.first_key,
                                   tile.columns.begin, tile.columns.end);
  const index_t end =
      std::clamp((std::min)(row.keys.end, tile.keys.end) - tile.first_key, begin, tile.columns.end);
  const index_t first = tile.first_key + begin;
  return {.b = tile.b,
          .h = row.h,
          .i = row.i,
          .first_key = first,
          .first_position = first_position + first,
          .n = end - begin,
          .s = tile.scores + x * tile.stride + begin};
}

/// Turns scaled products into scores: applies options and functors up to `stage`, and sets -inf
/// where a key is masked out. changes_scores: see changes_scores().
template <class T>
void mask_tile(const AttentionProblem<T>& problem, const RowKernels<T>& kernels,
               const ScoreTile<T>& tile, ScoreStage stage, bool changes_scores) {
  const index_t first_position = problem.lengths(tile.b).first_key;
  for (index_t x = 0; x < tile.num_rows; ++x) {
    const ScoreRow<T> scores = seen_scores(tile, x, first_position);
    std::fill(tile.row_scores(x), scores.s, kMinusInf<T>);
    std::fill(scores.s + scores.n, tile.row_scores(x) + tile.num_columns(), kMinusInf<T>);
    if (scores.n == 0 || !changes_scores || stage == ScoreStage::scaled) continue;
    cap_row(problem, kernels, scores);
    if (stage == ScoreStage::masked) mask_row(problem, kernels, scores, tile.chunks);
  }
}

/// The keys of one block that a task visits, and those of its next block, which may be empty.
struct KeyBlock {
  index_t first;  ///< of the whole block
  KeyRange keys;  ///< keys visible to at least one row of the task
  KeyRange next;

  bool is_last() const { return next.begin >= next.end; }
};

/// How one path computes both products of a tile. Implemented in paths/.
template <class T>
class ScorePath {
 public:
  /// Prepares a block, for example packs its keys, before its tiles are scored.
  virtual void load(const KeyBlock& block, bool with_values) = 0;
  /// tile.scores = scale q k^T
  virtual void score(const ScoreTile<T>& tile) = 0;
  /// Called before row x of a tile's scores: prefetches what later rows and blocks need.
  virtual void prefetch(const ScoreTile<T>& tile, index_t x) = 0;
  /// tile.sums = rescale tile.sums + weights v; the weights are stored in tile.scores.
  virtual void add_values(const ScoreTile<T>& tile, const T* rescale) = 0;

  /// Copies the values of `keys` of a tile; 0 for keys whose `kept` is -inf.
  virtual void copy_kept_values(const ScoreTile<T>& tile, KeyRange keys, const T* kept) = 0;
  /// tile.sums = rescale tile.sums + weights v for the values that copy_kept_values() stored.
  virtual void add_copied_values(const ScoreTile<T>& tile, const T* rescale) = 0;

 protected:
  ~ScorePath() = default;
};

}  // namespace detail

ATTN_NAMESPACE_END
