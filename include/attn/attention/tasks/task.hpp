// ForwardTask: state of one task; ScoreTiles: its loop over score tiles.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attn/attention/tasks/kernels.hpp"
#include "attn/attention/tasks/query_tiles.hpp"

ATTN_NAMESPACE_BEGIN

namespace detail {

template <class T>
class DecodePath;

/// The maximal number of rows of a tile, on any path.
inline constexpr index_t kMaxTileHeight = (std::max)({kMaxTileRows, kMaxDecodeRows, kPairRows});

/// The state of one task: the call, the task's rows and queries, and its path. While it exists, no
/// other task may use its worker's scratch.
template <class T>
struct ForwardTask {
  const AttentionProblem<T>& problem;
  const ForwardKernels<T>& kernels;
  const SequenceTiling& tiling;
  const ForwardScratch<T>& scratch;
  RowBlock block;
  KeyHead head;   ///< the first key/value head of the block
  RowBlock next;  ///< the worker's next task, to prefetch its keys; no rows: none
  TaskRows<T> rows;
  QueryTiles<T> queries;
  bool changes_scores;  ///< whether options or functors change scores: see changes_scores()

  ForwardTask(const AttentionProblem<T>& call, const ForwardKernels<T>& call_kernels,
              const SequenceTiling& sequence, const ForwardScratch<T>& worker_scratch,
              const RowBlock& row_block, const RowBlock& next_block = {})
      : problem(call),
        kernels(call_kernels),
        tiling(sequence),
        scratch(worker_scratch),
        block(row_block),
        head(call.key_head(row_block.b, row_block.kv_head)),
        next(next_block),
        rows(call, row_block, worker_scratch.rows, !sequence.decode),
        queries(call, call_kernels, sequence, worker_scratch, rows, row_block),
        changes_scores(detail::changes_scores(call)) {
    path_ = &(sequence.decode ? make_path<DecodePath<T>, T> : kernels.products.make_path)(
        path_memory_, *this);
  }
  ForwardTask(const ForwardTask&) = delete;
  ForwardTask& operator=(const ForwardTask&) = delete;

  ScorePath<T>& path() { return *path_; }

  /// tile.scores = scores up to `stage`; with ScoreStage::masked, -inf where a key is masked out.
  void score(const ScoreTile<T>& tile, ScoreStage stage = ScoreStage::masked) {
    tile.chunks.has_empty() ? score_seen(tile) : path().score(tile);
    if (rows.uniform() && !changes_scores) return;
    mask_tile(problem, kernels.rows, tile, stage, changes_scores);
  }

  /// Sums of tile t, row after row.
  T* tile_sums(index_t t) const { return scratch.sums + t * queries.height() * scratch.out_stride; }
  T* sums(index_t r) const {
    return tile_sums(r / queries.tile_rows()) + r % queries.tile_rows() * scratch.out_stride;
  }

 private:
  /// Products without the empty chunks, whose scores become 0 because score functors take them.
  void score_seen(const ScoreTile<T>& tile) {
    tile.chunks.for_each_run(tile.keys, [&](KeyRange keys, Visibility visibility) {
      const ScoreTile<T> part = tile.part_of(keys);
      if (visibility != Visibility::empty) return path().score(part);
      for (index_t x = 0; x < tile.num_rows; ++x) {
        std::fill_n(part.row_scores(x), part.num_columns(), T{0});
      }
    });
  }

  ScorePath<T>* path_;
  alignas(std::max_align_t) PathMemory path_memory_;
};

/// Iterates over a task's tiles, for one block of `keys` after another; skips blocks and tiles that
/// are fully masked:
///
///   ScoreTiles<T> tiles(task, keys, with_values);
///   while (tiles.next()) { .. tiles.tile() .. }
///
/// Blocks begin at multiples of block_kv whatever the rows are, so that a row is summed in the same
/// order in every task.
template <class T>
class ScoreTiles {
 public:
  /// with_values: add_values() of the path will be called.
  ScoreTiles(ForwardTask<T>& task, KeyRange keys, bool with_values)
      : task_(task),
        all_(task.rows.seen(keys)),
        with_values_(with_values),
        t_(task.queries.count()) {
    const index_t step = task.tiling.block_kv;
    block_.first = all_.begin / step * step - step;
  }

  /// Moves on to the next tile; false after the last one.
  bool next() {
    for (;;) {
      for (++t_; t_ < task_.queries.count(); ++t_) {
        if (enter_tile()) return true;
      }
      if (!enter_block()) return false;
      t_ = -1;
    }
  }

  const ScoreTile<T>& tile() const { return tile_; }

 private:
  /// Moves on to the next block with a key visible to at least one row.
  bool enter_block() {
    const index_t step = task_.tiling.block_kv;
    for (block_.first += step; block_.first < all_.end; block_.first += step) {
      const index_t end = block_.first + step;
      block_.keys =
          task_.rows.seen({(std::max)(block_.first, all_.begin), (std::min)(end, all_.end)});
      if (block_.keys.begin >= block_.keys.end) continue;
      block_.next = {end, (std::min)(end + step, all_.end)};
      task_.path().load(block_, with_values_);
      return true;
    }
    return false;
  }

  /// Sets tile_ to tile t_; returns false if the block is fully masked for the rows of the tile.
  bool enter_tile() {
    const QueryTiles<T>& queries = task_.queries;
    const TaskRows<T>& rows = task_.rows;
    const index_t r = t_ * queries.tile_rows(), num_rows = queries.rows_from(r);
    const KeyRange keys = rows.seen_by(r, num_rows, block_.keys);
    if (keys.begin >= keys.end) return false;
    const KeyChunks chunks = rows.chunks(r, num_rows, block_.first, keys);
    if (chunks.is_empty(keys)) return false;
    const index_t panel_width = task_.kernels.rows.panel_width;  // a power of two
    tile_ = {.b = task_.block.b,
             .kv_head = task_.block.kv_head + (task_.tiling.decode ? t_ : 0),
             .rows = &rows[r],
             .num_rows = num_rows,
             .queries = queries.tile(t_),
             .query_stride = queries.stride(),
             .first_key = block_.first,
             .keys = keys,
             .columns = {(keys.begin - block_.first) & -panel_width, keys.end - block_.first},
             .scores = task_.scratch.scores,
             .stride = task_.tiling.block_kv,
             .sums = task_.tile_sums(t_),
             .chunks = chunks,
             .is_last_block = block_.is_last()};
    return true;
  }

  ForwardTask<T>& task_;
  KeyRange all_;
  bool with_values_;
  KeyBlock block_;
  index_t t_;
  ScoreTile<T> tile_;  ///< set by next()
};

}  // namespace detail

ATTN_NAMESPACE_END
