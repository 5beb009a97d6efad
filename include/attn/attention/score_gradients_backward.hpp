// ScoreGradients: between backward's products, from scores and d_p to weights and d_s.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attn/attention/prefetch_stream.hpp"
#include "attn/attention/row_modifiers.hpp"
#include "attn/attention/tiling_backward.hpp"

ATTN_NAMESPACE_BEGIN

namespace detail {

/// Where a task leaves what other tasks add to as well.
template <class T>
struct BackwardShare {
  /// (batch, num_heads, q_len, score_dim) of this part of the keys: d_q, then d_qv; nullptr: the
  /// call's own.
  T* d_q;
  /// (batch, num_heads, BackwardProblem::head_sums()): d_alibi_slope, d_relative_bias, then score
  /// parameters; nullptr where none is wanted.
  T* head_sums;
};

template <class T>
class ScoreGradients {
 public:
  /// `deltas` of all rows: see AttentionProblem::row_at().
  ScoreGradients(const BackwardProblem<T>& problem, const RowKernels<T>& kernels,
                 const GradientKernels<T>& gradients, const BackwardScratch<T>& scratch,
                 const BackwardShare<T>& share, T* deltas, index_t b)
      : problem_(problem),
        forward_(problem.forward),
        kernels_(kernels),
        gradients_(gradients),
        scratch_(scratch),
        share_(share),
        deltas_(deltas),
        b_(b) {}

  /// Brings nearer what a later row reads of dense masks, and what it adds to of their gradients:
  /// see prefetch_masks(). A bias of (1, 1, 1024, 1024) and its gradient are 8 MB, which every head
  /// passes through.
  ATTN_INLINE void prefetch(const QueryRow<T>& later, KeyRange keys, bool makes_deltas) const {
    prefetch_masks(forward_, b_, later, keys);
    if (makes_deltas) return;  // which adds to none
    for (const TensorView4<T>& d_bias : problem_.call.d_bias) {
      if (!d_bias || d_bias.extent(2) == 1 || d_bias.extent(3) == 1 || d_bias.stride(3) != 1) {
        continue;
      }
      const T* row = d_bias.at_index({d_bias.extent(0) == 1 ? 0 : b_,
                                      d_bias.extent(1) == 1 ? 0 : later.h, later.i, keys.begin});
      prefetch_bytes<1>(row, (keys.end - keys.begin) * index_t{sizeof(T)});
    }
  }

  /// Of row r of the block, against keys [first_key + columns.begin, first_key + columns.end): from
  /// scores and d_p to weights, dropped weights and score gradients, and what these give biases.
  /// `all_visible`: to the mask functor. `makes_deltas`: nothing but the row's delta is wanted.
  void make_row(const QueryRow<T>& row, index_t r, index_t first_key, KeyRange columns,
                bool all_visible, bool finite, bool makes_deltas) const {
    const index_t begin = columns.begin, end = columns.end, at = r * scratch_.score_stride;
    const index_t from = std::clamp(row.keys.begin - first_key, begin, end);
    const index_t to = std::clamp(row.keys.end - first_key, from, end), n = to - from;
    T *s = scratch_.weights + at, *d_s = scratch_.d_s + at, *dropped = scratch_.dropped + at;
    const auto clear = [&](T* x) {
      std::fill(x + begin, x + from, T{0});
      std::fill(x + to, x + end, T{0});
    };
    clear(s);
    clear(d_s);
    if (dropped != s) clear(dropped);
    s += from, d_s += from, dropped += from;
    if (n == 0) return;
    const index_t first = first_key + from, number = forward_.lengths(b_).first_key + first;
    const ScoreRow<T> scores{b_, row.h, row.i, first, number, n, s};
    find_weights(scores, row.state, all_visible, finite);
    if (dropped != s) std::copy_n(s, n, dropped);
    change_weights(scores, dropped, d_s);
    if (makes_deltas) {
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
    add_biases(scores, d_s);
    if (share_.head_sums != nullptr) add_head_sums(scores, d_s);
    if (scratch_.slope != nullptr) gradients_.multiply(n, d_s, scratch_.slope);
  }

 private:
  /// From scores to weights, and what the derivatives of score functor and softcap are at them.
  void find_weights(const ScoreRow<T>& scores, const RowState<T>& state, bool all_visible,
                    bool finite) const {
    const index_t n = scores.n;
    T* s = scores.s;
    if (scratch_.slope != nullptr) {
      if (problem_.score_slope) {
        apply_to_copy(scores, problem_.score_slope, scratch_.slope);
      } else {
        std::fill_n(scratch_.slope, n, T{1});
      }
    }
    for (std::size_t k = 0; k < kMaxScoreParameters; ++k) {
      if (!problem_.parameter_slopes[k]) continue;
      apply_to_copy(scores, problem_.parameter_slopes[k], scratch_.parameter_slopes[k]);
    }
    cap_row(forward_, kernels_, scores);
    if (forward_.options.softcap > 0) {
      const T cap = static_cast<T>(forward_.options.softcap);
      gradients_.softcap_slope(n, s, cap, scratch_.slope);
      for (T* slope : scratch_.parameter_slopes) {
        if (slope != nullptr) gradients_.softcap_slope(n, s, cap, slope);
      }
    }
    mask_row(forward_, kernels_, scores, all_visible);
    if (finite) {
      kernels_.final_weights(n, s, state, s);
    } else {
      for (index_t j = 0; j < n; ++j) {
        s[j] = s[j] == kMinusInf<T> ? T{0} : std::exp(s[j] - state.row_max);
      }
    }
  }

  /// `dropped`, which are weights, through prob functor and dropout, and d_p back through them.
  void change_weights(const ScoreRow<T>& weights, T* dropped, T* d_p) const {
    const auto& [b, h, i, first_key, number, n, s] = weights;
    if (problem_.prob_slope) {
      apply_to_copy(weights, problem_.prob_slope, scratch_.prob_slope);
      apply_to_copy(weights, forward_.functors.prob, dropped);
    }
    if (const Dropout& dropout = forward_.options.dropout; dropout.p > 0) {
      kernels_.apply_dropout(n, dropped, dropout, b, h, i, number);
      kernels_.apply_dropout(n, d_p, dropout, b, h, i, number);
    }
    if (problem_.prob_slope) {
      for (index_t j = 0; j < n; ++j) d_p[j] *= scratch_.prob_slope[j];
    }
  }

  void apply_to_copy(const ScoreRow<T>& of, const RowFunctor<T>& functor, T* to) const {
    std::copy_n(of.s, of.n, to);
    ScoreRow<T> row = of;
    row.s = to;
    row.apply(functor);
  }

  /// What score gradients give additive masks.
  void add_biases(const ScoreRow<T>& row, const T* d_s) const {
    const AttentionOptions<T>& options = forward_.options;
    int part = 0;
    for (int at = 0; at < options.mask.num_dense; ++at) {
      const Mask::Dense& dense = options.mask.dense[static_cast<std::size_t>(at)];
      if (dense.kind != Mask::Dense::Kind::add) continue;
      const TensorView4<T>& d_bias = problem_.call.d_bias[static_cast<std::size_t>(part++)];
      if (!d_bias) continue;
      const auto index = [&](int axis, index_t x) { return d_bias.extent(axis) == 1 ? 0 : x; };
      const index_t step = d_bias.extent(3) == 1 ? 0 : d_bias.stride(3);
      T* to = d_bias.at_index(
          {index(0, b_), index(1, row.h), index(2, row.i), index(3, row.first_key)});
      if (step == 0) {
        T sum = 0;
        for (index_t j = 0; j < row.n; ++j) sum += d_s[j];
        *to += sum;
      } else if (step == 1) {
        gradients_.add_scaled(row.n, T{1}, d_s, to);
      } else {
        for (index_t j = 0; j < row.n; ++j) to[j * step] += d_s[j];
      }
    }
  }

  /// What they give numbers of which each head has its own.
  void add_head_sums(const ScoreRow<T>& row, const T* d_s) const {
    T* sums = share_.head_sums + (b_ * forward_.num_heads() + row.h) * problem_.head_sums();
    const index_t position = forward_.position(b_, row.i);
    if (problem_.wants_slopes()) {
      T sum = 0;
      for (index_t j = 0; j < row.n; ++j) {
        const index_t away = position - row.number - j;
        sum -= d_s[j] * static_cast<T>(away < 0 ? -away : away);
      }
      sums[0] += sum;
    }
    if (problem_.call.d_relative_bias) {
      const index_t max_distance = forward_.options.relative_bias.extent(1) / 2;
      for (index_t j = 0; j < row.n; ++j) {
        sums[1 + max_distance +
             std::clamp(row.number + j - position, -max_distance, max_distance)] += d_s[j];
      }
    }
    for (std::size_t k = 0; k < kMaxScoreParameters; ++k) {
      if (scratch_.parameter_slopes[k] == nullptr) continue;
      sums[problem_.parameter_sum(k)] +=
          gradients_.dot_where(row.n, d_s, scratch_.parameter_slopes[k]);
    }
  }

  const BackwardProblem<T>& problem_;
  const AttentionProblem<T>& forward_;
  const RowKernels<T>& kernels_;
  const GradientKernels<T>& gradients_;
  const BackwardScratch<T>& scratch_;
  BackwardShare<T> share_;
  T* deltas_;
  index_t b_;
};

}  // namespace detail

ATTN_NAMESPACE_END
