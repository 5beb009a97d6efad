// TiledPath: base of the paths that pack keys into panels.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attn/attention/tasks/prefetch_stream.hpp"
#include "attn/attention/tasks/task.hpp"

ATTN_NAMESPACE_BEGIN

namespace detail {

/// Values computes the second product: TileValues or PairValues.
template <class T, class Values>
class TiledPath : public ScorePath<T> {
 public:
  /// `task` has rows of one key/value head.
  explicit TiledPath(const ForwardTask<T>& task) : task_(task), values_(task) {
    // With scattered keys, only queries are prefetched: unused page-table entries may be invalid.
    const RowBlock& next = task.next;
    const bool has_new_keys = next.b != task.block.b || next.kv_head != task.block.kv_head;
    if (next.num_rows > 0 && has_new_keys && !task.problem.scattered()) {
      next_keys_ = (std::min)(task.problem.keys_of(next.b), task.tiling.block_kv);
    }
  }

  void load(const KeyBlock& block, bool with_values) override {
    pack_keys(block.first, block.keys);
    if (with_values) values_.load(block.first, block.keys);
    const index_t num_keys = block.keys.end - block.keys.begin;
    const index_t panel_width = task_.kernels.rows.panel_width;
    const index_t panels = (num_keys + panel_width - 1) / panel_width;
    const RowBlock no_rows{
        .b = task_.block.b, .kv_head = task_.block.kv_head, .first_row = 0, .num_rows = 0};
    // Copying prefetches gathered keys: beside the products it took longer (attn_report
    // gather_512).
    const KeyRange after = task_.problem.gathered ? KeyRange{} : block.next;
    stream_ = {task_.problem,
               block.is_last() ? task_.next : no_rows,
               block.is_last() ? KeyRange{0, next_keys_} : after,
               task_.rows.count(),
               task_.queries.count() * panels,
               panel_bytes()};
  }

  void prefetch(const ScoreTile<T>& tile, index_t x) override {
    const AttentionProblem<T>& problem = task_.problem;
    const QueryRow<T>* later = tile.rows + x + task_.queries.tile_rows();  // of the next tile
    const auto all = task_.rows.all();
    if (later < all.data() + all.size()) prefetch_masks(problem, tile.b, *later, tile.keys);
    stream_.advance();
    if (tile.is_last_block) {
      prefetch_row<1>(problem.output(tile.b, tile.rows[x].h, tile.rows[x].i), problem.out);
    }
  }

  void add_values(const ScoreTile<T>& tile, const T* rescale) override {
    if (!tile.chunks.has_empty()) return values_.add(tile, rescale);
    tile.chunks.for_each_seen(tile.keys, [&](KeyRange seen) {
      values_.add(tile.part_of(seen), rescale);
      rescale = kOnes.data();
    });
  }
  ATTN_COLD void copy_kept_values(const ScoreTile<T>& tile, KeyRange keys, const T* kept) override {
    values_.copy_kept(tile.first_key, keys, kept);
  }
  void add_copied_values(const ScoreTile<T>& tile, const T* rescale) override {
    values_.add_copied(tile, rescale);
  }

 protected:
  ~TiledPath() = default;

  /// Packs `keys`, each visible to at least one row of the task, of the block that begins at
  /// first_key.
  virtual void pack_keys(index_t first_key, KeyRange keys) const = 0;
  /// Size in bytes of a packed panel of keys; each product prefetches as many bytes.
  virtual index_t panel_bytes() const = 0;

  const void* next_panel(const void* otherwise) { return stream_.next_panel(otherwise); }

  const ForwardTask<T>& task_;

 private:
  static constexpr auto kOnes = [] {
    std::array<T, kMaxTileHeight> ones{};
    ones.fill(T{1});
    return ones;
  }();

  Values values_;
  index_t next_keys_ = 0;  ///< keys of the next task's first block, unless they are this task's
  PrefetchStream<T> stream_;
};

}  // namespace detail

ATTN_NAMESPACE_END
