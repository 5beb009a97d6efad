// BackwardTask: one part of the keys of one key/value head against all of its queries.
// SPDX-License-Identifier: Apache-2.0
//
// It makes d_k and d_v of these keys, and this part's share of d_q and of the biases' gradients.
//
// Scores are made again block by block from q, k and lse, so that no score matrix stands in memory.
// Source: Dao, "FlashAttention-2" (2023), algorithm 2.
#pragma once

#include "attn/attention/problem_backward.hpp"
#include "attn/attention/row_modifiers.hpp"
#include "attn/attention/task_rows.hpp"

ATTN_NAMESPACE_BEGIN

namespace detail {

/// Where a task leaves what other tasks add to as well.
template <class T>
struct BackwardShare {
  T* d_q;  ///< (batch, num_heads, q_len, head_dim) of this part of the keys; nullptr: the call's d_q itself
  T* head_sums;  ///< of each head: d_alibi_slope, then d_relative_bias; nullptr where none is wanted
  index_t head_stride;
};

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
        share_(share),
        deltas_(deltas),
        b_(b),
        kv_head_(kv_head),
        num_rows_(forward_.group * forward_.lengths(b).q_len) {}

  /// Before run() of any part, with a prob functor: delta of each row += the sum over its keys of p
  /// d_p, in order.
  void add_to_deltas() {
    makes_deltas_ = true;
    const KeyRange keys{0, forward_.lengths(b_).kv_len};
    find_seen(keys);
    for (index_t first = 0; first < keys.end; first += tiling_.block_kv) {
      pass_over_block({first, (std::min)(first + tiling_.block_kv, keys.end)});
    }
    makes_deltas_ = false;
  }

  void run(index_t part) {
    const index_t kv_len = forward_.lengths(b_).kv_len;
    const KeyRange keys{(std::min)(part * tiling_.keys_of_part, kv_len),
                        (std::min)((part + 1) * tiling_.keys_of_part, kv_len)};
    find_seen(keys);
    for (index_t r = 0; r < num_rows_; ++r) std::fill_n(d_q_row(r), forward_.head_dim(), T{0});
    for (index_t first = keys.begin; first < keys.end; first += tiling_.block_kv) {
      run_block({first, (std::min)(first + tiling_.block_kv, keys.end)});
    }
    if (forward_.options.masked_row == MaskedRow::mean) add_means(keys);
  }

 private:
  static constexpr index_t kRows = BackwardTiling::kBlockQ;

  void find_seen(KeyRange keys) const {
    for (index_t first = 0, n = 0; first < num_rows_; first += kRows, ++n) {
      scratch_.seen[n] = rows_from(first).seen(keys);
    }
  }

  TaskRows<T> rows_from(index_t first) const {
    return {forward_, {b_, kv_head_, first, (std::min)(kRows, num_rows_ - first)}, scratch_.rows};
  }

  T* d_q_row(index_t r) const {
    const index_t q_len = forward_.lengths(b_).q_len;
    const index_t h = kv_head_ * forward_.group + r / q_len, i = r % q_len;
    if (share_.d_q == nullptr) return problem_.query_row(problem_.d_q, b_, h, i);
    return share_.d_q + forward_.row_at(b_, h, i) * forward_.head_dim();
  }

  static KeyRange both(KeyRange a, KeyRange b) {
    return {(std::max)(a.begin, b.begin), (std::min)(a.end, b.end)};
  }

  /// One block of keys against all rows that see any of it.
  void pass_over_block(KeyRange block) {
    KeyRange used{block.end, block.begin};
    for (index_t first = 0, n = 0; first < num_rows_; first += kRows, ++n) {
      const KeyRange seen = both(scratch_.seen[n], block);
      if (seen.begin < seen.end) {
        used = {(std::min)(used.begin, seen.begin), (std::max)(used.end, seen.end)};
      }
    }
    first_key_ = block.begin;
    if (used.begin >= used.end) return;
    keys_are_finite_ = pack_keys(used);
    for (index_t first = 0, n = 0; first < num_rows_; first += kRows, ++n) {
      const KeyRange seen = both(scratch_.seen[n], used);
      if (seen.begin < seen.end) add_rows(first, seen);
    }
  }

  /// d_k and d_v of one block of keys, and what it gives d_q.
  void run_block(KeyRange block) {
    const index_t d = forward_.head_dim(), dv = forward_.head_dim_v();
    std::fill_n(scratch_.d_k, (tiling_.block_kv + kMostTileRows) * scratch_.d_stride, T{0});
    std::fill_n(scratch_.d_v, (tiling_.block_kv + kMostTileRows) * scratch_.dv_stride, T{0});
    pass_over_block(block);
    for (index_t j = block.begin; j < block.end; ++j) {
      const T* d_k = scratch_.d_k + (j - first_key_) * scratch_.d_stride;
      T* to = problem_.key_row(problem_.d_k, b_, kv_head_, j);
      for (index_t x = 0; x < d; ++x) to[x] = forward_.scale * d_k[x];
      std::copy_n(scratch_.d_v + (j - first_key_) * scratch_.dv_stride, dv,
                  problem_.key_row(problem_.d_v, b_, kv_head_, j));
    }
  }

  /// Keys and values of `keys` in panels, and keys in rows; what no row sees is not read but taken
  /// as 0. Returns whether all are finite.
  bool pack_keys(KeyRange keys) {
    const index_t d = forward_.head_dim();
    pack_panels(forward_.k, d, keys, scratch_.k_panels);
    pack_panels(forward_.v, forward_.head_dim_v(), keys, scratch_.v_panels);
    const T* k = static_cast<const T*>(forward_.key(forward_.k, b_, kv_head_, keys.begin));
    for (index_t j = keys.begin; j < keys.end; ++j, k += forward_.k.stride(2)) {
      std::copy_n(k, d, scratch_.k + (j - first_key_) * scratch_.d_stride);
    }
    const index_t n = keys.end - keys.begin;
    return gradients_.all_finite(n, d, scratch_.k + (keys.begin - first_key_) * scratch_.d_stride,
                                 scratch_.d_stride) &&
           gradients_.all_finite(
               n, forward_.head_dim_v(),
               static_cast<const T*>(forward_.key(forward_.v, b_, kv_head_, keys.begin)),
               forward_.v.stride(2));
  }

  void pack_panels(const StoredView<const void>& of, index_t dim, KeyRange keys, T* panels) const {
    const index_t NR = kernels_.panel_width, end = keys.end - first_key_;
    for (index_t j = (keys.begin - first_key_) & -NR; j < end; j += NR) {
      const index_t begin = (std::max)(j, keys.begin - first_key_), stop = (std::min)(j + NR, end);
      T* panel = panels + j * dim;
      if (stop - begin < NR) std::fill_n(panel, NR * dim, T{0});
      kernels_.pack_part(stop - begin, j + NR - begin, dim,
                         static_cast<const T*>(forward_.key(of, b_, kv_head_, first_key_ + begin)),
                         of.stride(2), panel + (begin - j));
    }
  }

  /// One block of rows against the keys of the block that some of them see.
  void add_rows(index_t first, KeyRange seen) {
    TaskRows<T> rows = rows_from(first);
    const index_t count = rows.count();
    const bool finite = copy_rows(rows) && keys_are_finite_;
    std::fill_n(scratch_.d_q, round_up(count, kernels_.tile_rows) * scratch_.d_stride, T{0});
    for (index_t r = 0; r < count; r += kernels_.tile_rows) {
      const index_t height = (std::min)(kernels_.tile_rows, count - r);
      const KeyRange keys = rows.seen_by(r, height, seen);
      clear_beyond(r, height, keys, seen);
      if (keys.begin >= keys.end) continue;
      score_tile(rows, r, height, keys, finite);
      if (!finite || makes_deltas_) continue;
      T ones[kMostTileRows];
      std::fill_n(ones, kMostTileRows, T{1});
      const index_t at = keys.begin - first_key_;
      kernels_.add_values_tile(forward_.head_dim(), keys.end - keys.begin,
                               scratch_.d_s + r * scratch_.score_stride + at, scratch_.score_stride,
                               scratch_.k + at * scratch_.d_stride, scratch_.d_stride,
                               scratch_.d_q + r * scratch_.d_stride, scratch_.d_stride, ones);
    }
    if (makes_deltas_) return;
    if (finite) {
      const index_t d = forward_.head_dim(), dv = forward_.head_dim_v();
      const index_t at = seen.begin - first_key_, n = seen.end - seen.begin;
      gradients_.add_transposed(n, dv, count, scratch_.dropped + at, scratch_.score_stride,
                                scratch_.d_out, dv, scratch_.d_v + at * scratch_.dv_stride,
                                scratch_.dv_stride);
      gradients_.add_transposed(n, d, count, scratch_.d_s + at, scratch_.score_stride, scratch_.q,
                                d, scratch_.d_k + at * scratch_.d_stride, scratch_.d_stride);
    } else {
      add_visible(count, seen);
    }
    for (index_t r = 0; r < count; ++r) {
      gradients_.add_scaled(forward_.head_dim(), forward_.scale,
                            scratch_.d_q + r * scratch_.d_stride, d_q_row(first + r));
    }
  }

  /// Queries and gradients of outputs side by side, in whole tiles, and what is known of each row.
  /// Returns whether all is finite.
  bool copy_rows(const TaskRows<T>& rows) const {
    const index_t d = forward_.head_dim(), dv = forward_.head_dim_v(), count = rows.count();
    bool finite = true;
    for (index_t r = 0; r < count; ++r) {
      QueryRow<T>& row = rows[r];
      std::copy_n(static_cast<const T*>(forward_.query(b_, row.h, row.i)), d, scratch_.q + r * d);
      std::copy_n(problem_.query_row(problem_.d_out, b_, row.h, row.i), dv,
                  scratch_.d_out + r * dv);
      const T lse = problem_.of_query(problem_.lse, b_, row.h, row.i);
      const T delta = deltas_[forward_.row_at(b_, row.h, row.i)];
      scratch_.delta[r] = delta;
      // Of a row without a key all scores are -inf: weights e^(-inf - 0) are 0.
      row.state = {lse == kMinusInf<T> ? T{0} : lse, T{1}};
      finite = finite && std::isfinite(row.state.most) && std::isfinite(delta);
    }
    const index_t filled = round_up(count, kernels_.tile_rows);
    std::fill_n(scratch_.q + count * d, (filled - count) * d, T{0});
    std::fill_n(scratch_.d_out + count * dv, (filled - count) * dv, T{0});
    return finite && gradients_.all_finite(count, d, scratch_.q, d) &&
           gradients_.all_finite(count, dv, scratch_.d_out, dv);
  }

  /// Weights and score gradients are 0 where a tile's rows see nothing but others of the block do;
  /// up to a whole tile of keys.
  void clear_beyond(index_t r, index_t height, KeyRange keys, KeyRange seen) const {
    const index_t begin = seen.begin - first_key_,
                  end = seen.end - first_key_ + kMostTileRows;  // score_stride has room
    const bool any = keys.begin < keys.end;
    const index_t from = any ? keys.begin - first_key_ : end;
    const index_t to = any ? keys.end - first_key_ : end;
    for (index_t x = r; x < r + height; ++x) {
      for (T* row : {scratch_.weights, scratch_.dropped, scratch_.d_s}) {
        row += x * scratch_.score_stride;
        std::fill(row + begin, row + from, T{0});
        std::fill(row + to, row + end, T{0});
      }
    }
  }

  /// Weights, dropped weights and score gradients of one tile of rows over `keys`.
  void score_tile(const TaskRows<T>& rows, index_t r, index_t height, KeyRange keys, bool finite) {
    const index_t d = forward_.head_dim(), dv = forward_.head_dim_v();
    const index_t stride = scratch_.score_stride, NR = kernels_.panel_width;
    const index_t begin = keys.begin - first_key_, end = keys.end - first_key_;
    T *s = scratch_.weights + r * stride, *d_p = scratch_.d_s + r * stride;
    // Columns of a panel beyond `keys` belong to keys that no row of the tile sees; they are 0
    // again afterwards.
    const index_t first = begin & -NR;
    for (index_t j = first; j < end; j += NR) {
      const T *k_panel = scratch_.k_panels + j * d, *v_panel = scratch_.v_panels + j * dv;
      kernels_.score_panel(d, scratch_.q + r * d, d, k_panel, forward_.scale, s + j, stride,
                           k_panel);
      kernels_.score_panel(dv, scratch_.d_out + r * dv, dv, v_panel, T{1}, d_p + j, stride,
                           v_panel);
    }
    const index_t last = round_up(end, NR);
    const bool all_visible = rows.visibility(r, height, keys) == Visibility::full;
    for (index_t x = 0; x < height; ++x, s += stride, d_p += stride) {
      std::fill(s + first, s + begin, T{0});
      std::fill(d_p + first, d_p + begin, T{0});
      std::fill(s + end, s + last, T{0});
      std::fill(d_p + end, d_p + last, T{0});
      gradient_row(rows[r + x], r + x, begin, end, all_visible, finite);
      if (scratch_.dropped != scratch_.weights) {
        T* dropped = scratch_.dropped + (r + x) * stride;
        std::fill(dropped + first, dropped + begin, T{0});
        std::fill(dropped + end, dropped + last, T{0});
      }
    }
  }

  /// From scores and d_p of columns [begin, end) to weights, dropped weights and score gradients.
  void gradient_row(const QueryRow<T>& row, index_t r, index_t begin, index_t end, bool all_visible,
                    bool finite) {
    const AttentionOptions<T>& options = forward_.options;
    const index_t stride = scratch_.score_stride;
    T *s = scratch_.weights + r * stride, *d_s = scratch_.d_s + r * stride;
    const index_t from = std::clamp(row.keys.begin - first_key_, begin, end);
    const index_t to = std::clamp(row.keys.end - first_key_, from, end);
    const index_t n = to - from, first = first_key_ + from;
    const auto clear = [&](T* x) {
      std::fill(x + begin, x + from, T{0});
      std::fill(x + to, x + end, T{0});
    };
    clear(s);
    clear(d_s);
    T* dropped = scratch_.dropped + r * stride;
    if (dropped != s) clear(dropped);
    s += from, d_s += from, dropped += from;
    if (n == 0) return;
    T* slope = scratch_.slope;
    const ScoreRow<T> scores{b_, row.h, row.i, first, first, n, s};
    if (slope != nullptr) bend(scores, slope);
    cap_row(forward_, kernels_, scores);
    if (options.softcap > 0) {
      gradients_.softcap_slope(n, s, static_cast<T>(options.softcap), slope);
    }
    mask_row(forward_, kernels_, scores, all_visible);
    if (finite) {
      kernels_.weigh(n, s, row.state, s);
    } else {
      for (index_t j = 0; j < n; ++j) {
        s[j] = s[j] == kMinusInf<T> ? T{0} : std::exp(s[j] - row.state.most);
      }
    }
    if (dropped != s) std::copy_n(s, n, dropped);
    if (problem_.prob_slope) {
      const auto apply = [&](const RowFunctor<T>& functor, T* values) {
        functor.apply(functor.object, n, values, b_, row.h, row.i, first);
      };
      std::copy_n(s, n, scratch_.prob_slope);
      apply(problem_.prob_slope, scratch_.prob_slope);
      apply(forward_.functors.prob, dropped);
    }
    if (options.dropout.p > 0) {
      kernels_.drop(n, dropped, options.dropout, b_, row.h, row.i, first);
      kernels_.drop(n, d_s, options.dropout, b_, row.h, row.i, first);
    }
    if (problem_.prob_slope) {
      for (index_t j = 0; j < n; ++j) d_s[j] *= scratch_.prob_slope[j];
    }
    if (makes_deltas_) {
      T sum = 0;
      for (index_t j = 0; j < n; ++j) sum += s[j] == T{0} ? T{0} : s[j] * d_s[j];
      deltas_[forward_.row_at(b_, row.h, row.i)] += sum;
      return;
    }
    if (finite) {
      gradients_.score_gradient(n, s, scratch_.delta[r], d_s);
    } else {
      for (index_t j = 0; j < n; ++j) {
        d_s[j] = s[j] == T{0} ? T{0} : s[j] * (d_s[j] - scratch_.delta[r]);
      }
    }
    add_biases(row, first, n, d_s);
    if (slope != nullptr) gradients_.multiply(n, d_s, slope);
    if (!finite && slope != nullptr) {
      for (index_t j = 0; j < n; ++j) {
        if (s[j] == T{0}) d_s[j] = T{0};  // 0 times a hidden score's slope, which may be NaN
      }
    }
  }

  /// slope = the derivative of the score functor, or 1.
  void bend(const ScoreRow<T>& scores, T* slope) const {
    if (problem_.score_slope) {
      std::copy_n(scores.s, scores.n, slope);
      ScoreRow<T> row = scores;
      row.s = slope;
      row.apply(problem_.score_slope);
    } else {
      std::fill_n(slope, scores.n, T{1});
    }
  }

  /// What score gradients give the biases.
  void add_biases(const QueryRow<T>& row, index_t first, index_t n, const T* d_s) const {
    const AttentionOptions<T>& options = forward_.options;
    int part = 0;
    for (int at = 0; at < options.mask.num_dense; ++at) {
      const Mask::Dense& dense = options.mask.dense[static_cast<std::size_t>(at)];
      if (dense.kind != Mask::Dense::Kind::add) continue;
      const TensorView4<T>& d_bias = problem_.call.d_bias[static_cast<std::size_t>(part++)];
      if (!d_bias) continue;
      const auto index = [&](int axis, index_t x) { return d_bias.extent(axis) == 1 ? 0 : x; };
      const index_t step = d_bias.extent(3) == 1 ? 0 : d_bias.stride(3);
      T* to = d_bias.at_index({index(0, b_), index(1, row.h), index(2, row.i), index(3, first)});
      if (step == 0) {
        T sum = 0;
        for (index_t j = 0; j < n; ++j) sum += d_s[j];
        *to += sum;
      } else {
        for (index_t j = 0; j < n; ++j) to[j * step] += d_s[j];
      }
    }
    if (share_.head_sums == nullptr) return;
    T* sums = share_.head_sums + (b_ * forward_.num_heads() + row.h) * share_.head_stride;
    const index_t position = forward_.position(b_, row.i);
    if (problem_.call.d_alibi_slopes) {
      T sum = 0;
      for (index_t j = 0; j < n; ++j) {
        const index_t away = position - first - j;
        sum -= d_s[j] * static_cast<T>(away < 0 ? -away : away);
      }
      sums[0] += sum;
    }
    if (problem_.call.d_relative_bias) {
      const index_t most = options.relative_bias.extent(1) / 2;
      for (index_t j = 0; j < n; ++j) {
        sums[1 + most + std::clamp(first + j - position, -most, most)] += d_s[j];
      }
    }
  }

  /// The products pair by pair, where something is not finite: pairs of weight 0 give nothing, else
  /// 0 times a hidden NaN would leak.
  void add_visible(index_t count, KeyRange seen) const {
    const index_t d = forward_.head_dim(), dv = forward_.head_dim_v(),
                  stride = scratch_.score_stride;
    for (index_t r = 0; r < count; ++r) {
      for (index_t j = seen.begin - first_key_; j < seen.end - first_key_; ++j) {
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
    const index_t dv = forward_.head_dim_v(), q_len = forward_.lengths(b_).q_len;
    const KeyRange all = forward_.unpadded_keys(b_), own = both(keys, all);
    if (own.begin >= own.end) return;
    T* sum = scratch_.d_v;
    std::fill_n(sum, dv, T{0});
    for (index_t r = 0; r < num_rows_; ++r) {
      const index_t h = kv_head_ * forward_.group + r / q_len, i = r % q_len;
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
  BackwardShare<T> share_;
  T* deltas_;  ///< of all rows: see AttentionProblem::row_at()
  index_t b_, kv_head_, num_rows_;
  index_t first_key_ = 0;  ///< of the block
  bool keys_are_finite_ = true;
  bool makes_deltas_ = false;  ///< of this pass only the deltas are wanted
};

}  // namespace detail

ATTN_NAMESPACE_END
