// BackwardTask: one part of the keys of one key/value head against all of its queries.
// SPDX-License-Identifier: Apache-2.0
//
// It makes d_k and d_v of these keys, and this part's share of d_q and of the biases' gradients.
//
// Scores are made again block by block from q, k and lse, so that no score matrix stands in memory.
// Source: Dao, "FlashAttention-2" (2023), algorithm 2.
#pragma once

#include "attn/attention/keys_backward.hpp"
#include "attn/attention/queries_backward.hpp"
#include "attn/attention/tile_backward.hpp"

ATTN_NAMESPACE_BEGIN

namespace detail {

template <class T>
class BackwardTask {
 public:
  BackwardTask(const BackwardProblem<T>& problem, const RowKernels<T>& kernels,
               const GradientKernels<T>& gradients, const BackwardTiling& tiling,
               const BackwardScratch<T>& scratch, const BackwardShare<T>& share, T* deltas,
               index_t b, index_t kv_head)
      : problem_(problem),
        forward_(problem.forward),
        kernels_(kernels),
        gradients_(gradients),
        tiling_(tiling),
        scratch_(scratch),
        b_(b),
        kv_head_(kv_head),
        queries_(problem, kernels, gradients, scratch, share, deltas, b, kv_head),
        keys_(problem.forward, kernels, gradients, scratch, b, kv_head),
        tile_(problem, kernels, gradients, scratch, share, deltas, b) {}

  /// Before run() of any part, with a prob functor: delta of each row += the sum over its keys of p
  /// d_p, in order.
  void add_to_deltas() {
    makes_deltas_ = true;
    const KeyRange keys{0, forward_.lengths(b_).kv_len};
    queries_.find_seen(keys);
    for (index_t first = 0; first < keys.end; first += tiling_.block_kv) {
      pass_over_block({first, (std::min)(first + tiling_.block_kv, keys.end)});
    }
    makes_deltas_ = false;
  }

  void run(index_t part) {
    const index_t kv_len = forward_.lengths(b_).kv_len;
    const KeyRange keys{(std::min)(part * tiling_.keys_of_part, kv_len),
                        (std::min)((part + 1) * tiling_.keys_of_part, kv_len)};
    queries_.find_seen(keys);
    queries_.clear_gradients();
    for (index_t first = keys.begin; first < keys.end; first += tiling_.block_kv) {
      run_block({first, (std::min)(first + tiling_.block_kv, keys.end)});
    }
    if (forward_.options.masked_row == MaskedRow::mean) add_means(keys);
  }

 private:
  static constexpr index_t kRows = BackwardTiling::kBlockQ;

  static KeyRange both(KeyRange a, KeyRange b) {
    return {(std::max)(a.begin, b.begin), (std::min)(a.end, b.end)};
  }

  /// Where keys stand in the block.
  KeyRange columns(KeyRange keys) const {
    return {keys.begin - keys_.first(), keys.end - keys_.first()};
  }

  /// One block of keys against all rows that see any of it.
  void pass_over_block(KeyRange block) {
    KeyRange used{block.end, block.begin};
    for (index_t first = 0, n = 0; first < queries_.count(); first += kRows, ++n) {
      const KeyRange seen = both(scratch_.seen[n], block);
      if (seen.begin < seen.end) {
        used = {(std::min)(used.begin, seen.begin), (std::max)(used.end, seen.end)};
      }
    }
    if (used.begin >= used.end) return;
    keys_.pack(block.begin, used);
    for (index_t first = 0, n = 0; first < queries_.count(); first += kRows, ++n) {
      const KeyRange seen = both(scratch_.seen[n], used);
      if (seen.begin < seen.end) add_rows(first, seen);
    }
  }

  /// d_k and d_v of one block of keys, and what it gives d_q.
  void run_block(KeyRange block) {
    const index_t d = forward_.head_dim(), dv = forward_.head_dim_v();
    const index_t filled = block.end - block.begin + kMaxTileRows;
    std::fill_n(scratch_.d_k, filled * scratch_.d_stride, T{0});
    std::fill_n(scratch_.d_v, filled * scratch_.dv_stride, T{0});
    pass_over_block(block);
    for (index_t j = block.begin; j < block.end; ++j) {
      const T* d_k = scratch_.d_k + (j - block.begin) * scratch_.d_stride;
      T* to = problem_.key_row(problem_.d_k, b_, kv_head_, j);
      std::fill_n(to, d, T{0});
      gradients_.add_scaled(d, forward_.scale, d_k, to);
      to = problem_.key_row(problem_.d_v, b_, kv_head_, j);
      std::copy_n(scratch_.d_v + (j - block.begin) * scratch_.dv_stride, dv, to);
      if (forward_.options.qv) gradients_.add_scaled(dv, forward_.scale, d_k + d, to);
    }
  }

  /// One block of rows against the keys of the block that some of them see.
  void add_rows(index_t first, KeyRange seen) {
    const TaskRows<T> rows = queries_.rows_from(first);
    const index_t d = forward_.score_dim(), dv = forward_.head_dim_v(), count = rows.count();
    const index_t MR = kernels_.tile_rows;
    const bool finite = queries_.copy(rows) && keys_.is_finite();
    const KeyRange all = columns(seen);
    KeyRange of_tile[kRows];
    for (index_t r = 0; r < count; r += MR) {
      const index_t height = (std::min)(MR, count - r);
      of_tile[r / MR] = columns(rows.seen_by(r, height, seen));
      tile_.clear_beyond(r, height, of_tile[r / MR], all);
    }
    tile_.multiply(count, d, scratch_.q, scratch_.k_panels, forward_.scale, of_tile, all,
                   scratch_.weights);
    tile_.multiply(count, dv, scratch_.d_out, scratch_.v_panels, T{1}, of_tile, all, scratch_.d_s);
    for (index_t r = 0; r < count; r += MR) {
      const KeyRange keys = of_tile[r / MR];
      if (keys.begin >= keys.end) continue;
      tile_.make(rows, r, (std::min)(MR, count - r), keys_.first(), keys, finite, makes_deltas_);
    }
    if (makes_deltas_) return;
    std::fill_n(scratch_.d_q, round_up(count, MR) * scratch_.d_stride, T{0});
    if (finite) {
      add_products(count, of_tile, all);
    } else {
      add_visible(count, all);
    }
    for (index_t r = 0; r < count; ++r) {
      queries_.add_gradient(first + r, scratch_.d_q + r * scratch_.d_stride);
    }
  }

  /// d_q += d_s k, d_v += p^T d_out, d_k += d_s^T q, of `count` rows and the keys in `columns`.
  void add_products(index_t count, const KeyRange* of_tile, KeyRange columns) const {
    // 64 keys of 64 floats are 16 KB of the first cache, where the tiles of rows find them.
    constexpr index_t kKeys = 64;
    const index_t d = forward_.score_dim(), dv = forward_.head_dim_v();
    const index_t stride = scratch_.score_stride, MR = kernels_.tile_rows;
    const auto [begin, end] = columns;
    for (index_t j = begin; j < end; j += kKeys) {
      for (index_t r = 0; r < count; r += MR) {
        const KeyRange keys = both(of_tile[r / MR], {j, j + kKeys});
        if (keys.begin >= keys.end) continue;
        gradients_.add_product(d, keys.end - keys.begin, scratch_.d_s + r * stride + keys.begin,
                               stride, scratch_.k + keys.begin * scratch_.d_stride,
                               scratch_.d_stride, scratch_.d_q + r * scratch_.d_stride,
                               scratch_.d_stride);
      }
    }
    gradients_.add_transposed(end - begin, dv, count, scratch_.dropped + begin, stride,
                              scratch_.d_out, dv, scratch_.d_v + begin * scratch_.dv_stride,
                              scratch_.dv_stride);
    gradients_.add_transposed(end - begin, d, count, scratch_.d_s + begin, stride, scratch_.q, d,
                              scratch_.d_k + begin * scratch_.d_stride, scratch_.d_stride);
  }

  /// The products pair by pair, where something is not finite: pairs of weight 0 give nothing, else
  /// 0 times a hidden NaN would leak.
  void add_visible(index_t count, KeyRange columns) const {
    const index_t d = forward_.score_dim(), dv = forward_.head_dim_v(),
                  stride = scratch_.score_stride;
    for (index_t r = 0; r < count; ++r) {
      for (index_t j = columns.begin; j < columns.end; ++j) {
        if (scratch_.weights[r * stride + j] == T{0}) continue;
        const T d_s = scratch_.d_s[r * stride + j];
        gradients_.add_scaled(d, d_s, scratch_.k + j * scratch_.d_stride,
                              scratch_.d_q + r * scratch_.d_stride);
        gradients_.add_scaled(d, d_s, scratch_.q + r * d, scratch_.d_k + j * scratch_.d_stride);
        gradients_.add_scaled(dv, scratch_.dropped[r * stride + j], scratch_.d_out + r * dv,
                              scratch_.d_v + j * scratch_.dv_stride);
      }
    }
  }

  /// d_v of `keys` += its share of the rows that see no key, whose output is the mean of all
  /// values.
  void add_means(KeyRange keys) const {
    const index_t dv = forward_.head_dim_v();
    const KeyRange all = forward_.unpadded_keys(b_), own = both(keys, all);
    if (own.begin >= own.end) return;
    T* sum = scratch_.d_v;
    std::fill_n(sum, dv, T{0});
    for (index_t r = 0; r < queries_.count(); ++r) {
      const auto [h, i] = queries_.query(r);
      if (problem_.of_query(problem_.lse, b_, h, i) != kMinusInf<T>) continue;
      gradients_.add_scaled(dv, T{1}, problem_.query_row(problem_.d_out, b_, h, i), sum);
    }
    const T share = T{1} / static_cast<T>(all.end - all.begin);
    for (index_t j = own.begin; j < own.end; ++j) {
      gradients_.add_scaled(dv, share, sum, problem_.key_row(problem_.d_v, b_, kv_head_, j));
    }
  }

  const BackwardProblem<T>& problem_;
  const AttentionProblem<T>& forward_;
  const RowKernels<T>& kernels_;
  const GradientKernels<T>& gradients_;
  const BackwardTiling& tiling_;
  const BackwardScratch<T>& scratch_;
  index_t b_, kv_head_;
  BackwardQueries<T> queries_;
  BackwardKeys<T> keys_;
  BackwardTile<T> tile_;
  bool makes_deltas_ = false;  ///< of this pass only the deltas are wanted
};

}  // namespace detail

ATTN_NAMESPACE_END
