// ScoreTile: scores of a tile of queries and a block of keys, and which of them are visible.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attn/attention/row_modifiers.hpp"

ATTN_NAMESPACE_BEGIN

namespace detail {

/// Holds no state of its own: it says where everything about the tile lies. Every driver takes
/// scores as these.
template <class T>
struct ScoreTile {
  index_t b, kv_head;
  QueryRow<T>* rows;
  index_t num_rows;
  const T* queries;  ///< with rows of any values behind them, up to the height of a tile
  index_t query_stride;

  index_t first_key;  ///< of the block: column 0 of the scores
  KeyRange keys;      ///< that some of the rows see
  /// The scores of `keys`, from the beginning of a panel on: lanes add up the same keys whatever
  /// other rows a tile holds.
  KeyRange columns;
  T* scores;  ///< (rows, keys of a block)
  index_t stride;

  T* sums;              ///< of weights times values, out_stride of the scratch apart
  bool is_all_visible;  ///< by the mask functor
  bool is_last_block;

  index_t num_keys() const { return keys.end - keys.begin; }
  index_t num_columns() const { return columns.end - columns.begin; }
  /// Of the first key of `keys`.
  index_t first_column() const { return keys.begin - first_key; }
  /// Scores of row x, of all columns.
  T* row_scores(index_t x) const { return scores + x * stride + columns.begin; }
  /// Scores of row x, of `keys`.
  T* key_scores(index_t x) const { return scores + x * stride + first_column(); }
};

/// From products to scores: -inf where a row does not see the key, and all that options and
/// functors add, up to `stage`.
template <class T>
void mask_tile(const AttentionProblem<T>& problem, const RowKernels<T>& kernels,
               const ScoreTile<T>& tile, ScoreStage stage, bool changes_scores) {
  const KeyRange columns = tile.columns;
  const index_t first_number = problem.lengths(tile.b).first_key;
  for (index_t x = 0; x < tile.num_rows; ++x) {
    const QueryRow<T>& row = tile.rows[x];
    T* s = tile.scores + x * tile.stride;
    const index_t begin = std::clamp((std::max)(row.keys.begin, tile.keys.begin) - tile.first_key,
                                     columns.begin, columns.end);
    const index_t end =
        std::clamp((std::min)(row.keys.end, tile.keys.end) - tile.first_key, begin, columns.end);
    std::fill(s + columns.begin, s + begin, kMinusInf<T>);
    std::fill(s + end, s + columns.end, kMinusInf<T>);
    if (begin >= end || !changes_scores || stage == ScoreStage::scaled) continue;
    const index_t first = tile.first_key + begin;
    const ScoreRow<T> scores{tile.b,      row.h,    row.i, first, first_number + first,
                             end - begin, s + begin};
    cap_row(problem, kernels, scores);
    if (stage == ScoreStage::masked) mask_row(problem, kernels, scores, tile.is_all_visible);
  }
}

/// Some keys of a call's block, and those of the next one; empty where there is none.
struct KeyBlock {
  index_t first;  ///< of the whole block
  KeyRange keys;  ///< that some row of the task sees
  KeyRange next;

  bool is_last() const { return next.begin >= next.end; }
};

/// How one path computes both products of a tile: tiled_path.hpp, decode_path.hpp.
template <class T>
class ScorePath {
 public:
  /// Before the tiles of a block.
  virtual void load(const KeyBlock& block, bool with_values) = 0;
  /// tile.scores = scale q k^T
  virtual void score(const ScoreTile<T>& tile) = 0;
  /// Between rows of scores: what is needed after row x.
  virtual void prefetch(const ScoreTile<T>& tile, index_t x) = 0;
  /// tile.sums = rescale times themselves + weights, in the place of the scores, times values.
  virtual void add_values(const ScoreTile<T>& tile, const T* rescale) = 0;

  /// Copies the values of `keys` of a tile; 0 where `shown` is -inf for a key.
  virtual void copy_shown_values(const ScoreTile<T>& tile, KeyRange keys, const T* shown) = 0;
  /// As add_values(), with those copies.
  virtual void add_copied_values(const ScoreTile<T>& tile, const T* rescale) = 0;

 protected:
  ~ScorePath() = default;
};

}  // namespace detail

ATTN_NAMESPACE_END
