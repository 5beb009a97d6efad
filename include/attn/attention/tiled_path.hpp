// TiledPath: what paths have in common that pack keys and multiply MR rows at a time by them.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attn/attention/pair_values.hpp"
#include "attn/attention/prefetch_stream.hpp"
#include "attn/attention/query_tiles.hpp"
#include "attn/attention/score_tile.hpp"

ATTN_NAMESPACE_BEGIN

namespace detail {

template <class T>
class TiledPath : public ScorePath<T> {
 public:
  /// For the rows of one key/value head. `next`: what its worker does afterwards, to be prefetched
  /// during the last block of keys; without rows where that is not known.
  TiledPath(const AttentionProblem<T>& problem, const ForwardKernels<T>& kernels,
            const SequenceTiling& tiling, const ForwardScratch<T>& scratch, const TaskRows<T>& rows,
            const QueryTiles<T>& queries, const RowBlock& block, const RowBlock& next)
      : problem_(problem),
        kernels_(kernels.rows),
        of_keys_(kernels.of_keys),
        scratch_(scratch),
        rows_(rows),
        queries_(queries),
        at_(block),
        next_(next),
        copies_values_(problem.paged() || problem.widens_keys() ||
                       problem.v.stride(2) != problem.head_dim_v()) {
    if (kernels.pairs != nullptr) pairs_.emplace(problem, kernels, scratch, block);
    // With paged keys, only queries are prefetched: unused page-table entries may be invalid.
    const bool has_new_keys = next.b != block.b || next.kv_head != block.kv_head;
    if (next.num_rows > 0 && has_new_keys && !problem.paged()) {
      next_keys_ = (std::min)(problem.keys_of(next.b), tiling.block_kv);
    }
  }

  void load(const KeyBlock& block, bool with_values) override {
    pack_keys(block.first, block.keys);
    if (with_values) load_values(block);
    const index_t num_keys = block.keys.end - block.keys.begin;
    const index_t panels = (num_keys + kernels_.panel_width - 1) / kernels_.panel_width;
    stream_ = {problem_,
               block.is_last() ? next_ : RowBlock{at_.b, at_.kv_head, 0, 0},
               block.is_last() ? KeyRange{0, next_keys_} : block.next,
               rows_.count(),
               queries_.count() * panels,
               panel_bytes()};
  }

  void prefetch(const ScoreTile<T>& tile, index_t x) override {
    const QueryRow<T>* later = tile.rows + x + queries_.tile_rows();  // of the next tile
    const auto all = rows_.all();
    if (later < all.data() + all.size()) prefetch_masks(problem_, at_.b, *later, tile.keys);
    stream_.advance();
    if (tile.is_last_block) {
      prefetch_row<1>(problem_.output(at_.b, tile.rows[x].h, tile.rows[x].i), problem_.out);
    }
  }

  void add_values(const ScoreTile<T>& tile, const T* rescale) override {
    if (copies_values_ || pairs_) return add_copied_values(tile, rescale);
    const void* values = problem_.key(problem_.v, at_.b, at_.kv_head, tile.keys.begin);
    add(tile, static_cast<const T*>(values), problem_.v.stride(2), rescale);
  }

  ATTN_COLD void copy_shown_values(const ScoreTile<T>& tile, KeyRange keys,
                                   const T* shown) override {
    if (pairs_) return pairs_->load(tile.first_key, keys, shown);
    const index_t dv = problem_.head_dim_v(), stride = scratch_.out_stride;
    for (index_t j = keys.begin; j < keys.end; ++j) {
      T* to = scratch_.v + (j - tile.first_key) * stride;
      if (shown[j - keys.begin] == kMinusInf<T>) {
        std::fill_n(to, dv, T{0});
      } else {
        of_keys_.widen_rows(1, dv, problem_.values_from(at_.b, at_.kv_head, j), to, stride);
      }
    }
  }

  void add_copied_values(const ScoreTile<T>& tile, const T* rescale) override {
    if (pairs_) return pairs_->add(tile, rescale);
    const index_t stride = scratch_.out_stride;
    add(tile, scratch_.v + tile.first_column() * stride, stride, rescale);
  }

 protected:
  ~TiledPath() = default;

  /// Keys that some row of the task sees, of the block that begins with first_key.
  virtual void pack_keys(index_t first_key, KeyRange keys) const = 0;
  /// What a panel of keys takes: score() prefetches as much.
  virtual index_t panel_bytes() const = 0;

  const void* next_panel(const void* otherwise) { return stream_.next_panel(otherwise); }

 private:
  void load_values(const KeyBlock& block) {
    if (pairs_) return pairs_->load(block.first, block.keys, nullptr);
    if (copies_values_) copy_values(block.first, block.keys);
  }

  void copy_values(index_t first_key, KeyRange keys) const {
    const index_t dv = problem_.head_dim_v(), stride = scratch_.out_stride;
    for (index_t j = keys.begin; j < keys.end;) {
      const index_t end = problem_.run_end(j, keys.end);
      of_keys_.widen_rows(end - j, dv, problem_.values_from(at_.b, at_.kv_head, j),
                          scratch_.v + (j - first_key) * stride, stride);
      j = end;
    }
  }

  void add(const ScoreTile<T>& tile, const T* values, index_t value_stride,
           const T* rescale) const {
    kernels_.add_values_tile(problem_.head_dim_v(), tile.num_keys(), tile.key_scores(0),
                             tile.stride, values, value_stride, tile.sums, scratch_.out_stride,
                             rescale);
  }

  const AttentionProblem<T>& problem_;
  const RowKernels<T>& kernels_;
  const ElementKernels<T>& of_keys_;
  const ForwardScratch<T>& scratch_;
  const TaskRows<T>& rows_;
  const QueryTiles<T>& queries_;
  RowBlock at_, next_;
  index_t next_keys_ = 0;  ///< of the next task, where it begins with other keys
  /// Values of a block are copied side by side, once for all tiles: rows apart by a power of two,
  /// as in (batch, seq, 16 heads, 64), fall into few sets of the caches, which took up to 1.2 times
  /// as long (attention_bench's attention_1024_seq_major).
  bool copies_values_;
  std::optional<PairValues<T>> pairs_;  ///< instead, where the target multiplies pairs
  PrefetchStream<T> stream_;
};

}  // namespace detail

ATTN_NAMESPACE_END
