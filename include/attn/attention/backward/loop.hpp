// BackwardLoop: one split of keys of one key/value head with all of its queries.
// SPDX-License-Identifier: Apache-2.0
//
// Computes d_k and d_v of these keys, and partial sums of d_q and of the gradients of biases.
// Scores are recomputed block by block from q, k and lse, so that no score matrix is stored.
// Source: Dao, "FlashAttention-2" (2023), algorithm 2.
#pragma once

#include "attn/attention/backward/keys.hpp"
#include "attn/attention/backward/products.hpp"
#include "attn/attention/backward/queries.hpp"

ATTN_NAMESPACE_BEGIN

namespace detail {

template <class T>
class BackwardLoop {
 public:
  explicit BackwardLoop(const BackwardTask<T>& task)
      : task_(task), forward_(task.problem.forward), queries_(task), keys_(task), tile_(task) {}

  /// With a prob functor, before any run(): adds the sum over the keys of p d_p to each row's
  /// delta, in the order of keys.
  void add_to_deltas() {
    only_deltas_ = true;
    const KeyRange keys{0, forward_.lengths(task_.b).kv_len};
    queries_.find_seen(keys);
    for (index_t first = 0; first < keys.end; first += task_.tiling.block_kv) {
      pass_over_block({first, (std::min)(first + task_.tiling.block_kv, keys.end)});
    }
    only_deltas_ = false;
  }

  void run(index_t split) {
    const index_t kv_len = forward_.lengths(task_.b).kv_len;
    const KeyRange keys{(std::min)(split * task_.tiling.keys_per_split, kv_len),
                        (std::min)((split + 1) * task_.tiling.keys_per_split, kv_len)};
    queries_.find_seen(keys);
    queries_.clear_gradients();
    for (index_t first = keys.begin; first < keys.end; first += task_.tiling.block_kv) {
      run_block({first, (std::min)(first + task_.tiling.block_kv, keys.end)});
    }
    if (forward_.options.masked_row == MaskedRow::mean) add_means(keys);
  }

 private:
  static constexpr index_t kRows = BackwardTiling::kBlockQ;

  /// Key columns in the score matrices of the block.
  KeyRange columns(KeyRange keys) const {
    return {keys.begin - keys_.first(), keys.end - keys_.first()};
  }

  /// The keys of `block` that the block of rows from `first` on sees.
  KeyRange seen_by_rows(index_t first, KeyRange block) const {
    const KeyRange seen = intersection(task_.scratch.seen[first / kRows], block);
    // A BlockTable may also mask out keys between those seen.
    const bool trims = forward_.functors.blocks && seen.begin < seen.end;
    return trims ? queries_.rows_from(first).seen(seen) : seen;
  }

  /// Multiplies one block of keys with all blocks of rows that see any of it.
  void pass_over_block(KeyRange block) {
    KeyRange used{block.end, block.begin};
    for (index_t first = 0; first < queries_.count(); first += kRows) {
      const KeyRange seen = seen_by_rows(first, block);
      if (seen.begin < seen.end) {
        used = {(std::min)(used.begin, seen.begin), (std::max)(used.end, seen.end)};
      }
    }
    if (used.begin >= used.end) return;
    keys_.pack(block.begin, used);
    for (index_t first = 0; first < queries_.count(); first += kRows) {
      const KeyRange seen = seen_by_rows(first, used);
      if (seen.begin < seen.end) add_rows(first, seen);
    }
  }

  /// Computes d_k and d_v of one block of keys, and adds its contribution to d_q.
  void run_block(KeyRange block) {
    const index_t d = forward_.head_dim(), dv = forward_.head_dim_v();
    const index_t filled = block.end - block.begin + kMaxTileRows;
    std::fill_n(task_.scratch.d_k, filled * task_.scratch.d_stride, T{0});
    std::fill_n(task_.scratch.d_v, filled * task_.scratch.dv_stride, T{0});
    pass_over_block(block);
    for (index_t j = block.begin; j < block.end; ++j) {
      const T* d_k = task_.scratch.d_k + (j - block.begin) * task_.scratch.d_stride;
      const T* d_v = task_.scratch.d_v + (j - block.begin) * task_.scratch.dv_stride;
      T* to = task_.problem.key_row(task_.problem.d_k, keys_.head(), j);
      if (!forward_.gathered) std::fill_n(to, d, T{0});  // else other lists add to it
      task_.gradients.add_scaled(d, forward_.scale, d_k, to);
      to = task_.problem.key_row(task_.problem.d_v, keys_.head(), j);
      if (!forward_.gathered) {
        std::copy_n(d_v, dv, to);
      } else {
        task_.gradients.add_scaled(dv, T{1}, d_v, to);
      }
      if (forward_.options.qv) task_.gradients.add_scaled(dv, forward_.scale, d_k + d, to);
    }
  }

  /// Multiplies one block of rows with those keys of the block that at least one of the rows sees.
  void add_rows(index_t first, KeyRange seen) {
    const TaskRows<T> rows = queries_.rows_from(first);
    const index_t d = forward_.score_dim(), dv = forward_.head_dim_v(), count = rows.count();
    const index_t MR = task_.kernels.tile_rows;
    const bool finite = queries_.copy(rows) && keys_.is_finite();
    const KeyRange all = columns(seen);
    TileKeys of_tile[kRows];
    for (index_t r = 0; r < count; r += MR) {
      const index_t height = (std::min)(MR, count - r);
      const KeyRange keys = rows.seen_by(r, height, seen);
      TileKeys& tile = of_tile[r / MR];
      tile.columns = columns(keys);
      if (keys.begin < keys.end) tile.chunks = rows.chunks(r, height, keys_.first(), keys);
      tile_.clear_beyond(r, height, tile.columns, all);
    }
    tile_.multiply(count, d, task_.scratch.q, task_.scratch.k_panels, forward_.scale, of_tile, all,
                   task_.scratch.weights);
    tile_.multiply(count, dv, task_.scratch.d_out, task_.scratch.v_panels, T{1}, of_tile, all,
                   task_.scratch.d_s);
    for (index_t r = 0; r < count; r += MR) {
      const TileKeys& tile = of_tile[r / MR];
      if (tile.columns.begin >= tile.columns.end) continue;
      tile_.make(rows, r, (std::min)(MR, count - r), tile, finite, only_deltas_);
    }
    if (only_deltas_) return;
    std::fill_n(task_.scratch.d_q, round_up(count, MR) * task_.scratch.d_stride, T{0});
    if (finite) {
      add_products(task_, task_.scratch, task_.scratch, task_.scratch, count, of_tile, all,
                   rows.chunks(0, count, keys_.first(), seen));
    } else {
      add_visible(count, all);
    }
    for (index_t r = 0; r < count; ++r) {
      queries_.add_gradient(first + r, task_.scratch.d_q + r * task_.scratch.d_stride);
    }
  }

  /// Computes the same products pair by pair, for blocks with non-finite elements: skips pairs of
  /// weight 0, because 0 times a masked NaN would leak.
  void add_visible(index_t count, KeyRange columns) const {
    const index_t d = forward_.score_dim(), dv = forward_.head_dim_v(),
                  stride = task_.scratch.score_stride;
    for (index_t r = 0; r < count; ++r) {
      for (index_t j = columns.begin; j < columns.end; ++j) {
        if (task_.scratch.weights[r * stride + j] == T{0}) continue;
        const T d_s = task_.scratch.d_s[r * stride + j];
        task_.gradients.add_scaled(d, d_s, task_.scratch.k + j * task_.scratch.d_stride,
                                   task_.scratch.d_q + r * task_.scratch.d_stride);
        task_.gradients.add_scaled(d, d_s, task_.scratch.q + r * d,
                                   task_.scratch.d_k + j * task_.scratch.d_stride);
        task_.gradients.add_scaled(dv, task_.scratch.dropped[r * stride + j],
                                   task_.scratch.d_out + r * dv,
                                   task_.scratch.d_v + j * task_.scratch.dv_stride);
      }
    }
  }

  /// MaskedRow::mean: adds to d_v of `keys` the contribution of fully masked rows, whose output is
  /// the mean of all unpadded values.
  void add_means(KeyRange keys) const {
    const index_t dv = forward_.head_dim_v();
    const KeyRange all = forward_.unpadded_keys(task_.b), own = intersection(keys, all);
    if (own.begin >= own.end) return;
    T* sum = task_.scratch.d_v;
    std::fill_n(sum, dv, T{0});
    for (index_t r = 0; r < queries_.count(); ++r) {
      const auto [h, i] = queries_.query(r);
      if (task_.problem.of_query(task_.problem.lse, task_.b, h, i) != kMinusInf<T>) continue;
      task_.gradients.add_scaled(dv, T{1},
                                 task_.problem.query_row(task_.problem.d_out, task_.b, h, i), sum);
    }
    const T share = T{1} / static_cast<T>(all.end - all.begin);
    for (index_t j = own.begin; j < own.end; ++j) {
      task_.gradients.add_scaled(dv, share, sum,
                                 task_.problem.key_row(task_.problem.d_v, keys_.head(), j));
    }
  }

  BackwardTask<T> task_;
  const AttentionProblem<T>& forward_;
  BackwardQueries<T> queries_;
  BackwardKeys<T> keys_;
  BackwardTile<T> tile_;
  bool only_deltas_ = false;  ///< this pass computes deltas, no gradients
};

}  // namespace detail

ATTN_NAMESPACE_END
