// ScoreGradients: from scores and d_p to weights and d_s, between backward's products.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attn/attention/backward/task.hpp"
#include "attn/attention/tasks/prefetch_stream.hpp"
#include "attn/attention/tasks/row_modifiers.hpp"

ATTN_NAMESPACE_BEGIN

namespace detail {

template <class T>
class ScoreGradients {
 public:
  explicit ScoreGradients(const BackwardTask<T>& task)
      : task_(task), forward_(task.problem.forward) {}

  /// Prefetches a later row's dense masks, by prefetch_masks(), and its part of d_bias. A bias of
  /// (1, 1, 1024, 1024) and its gradient are 8 MB, which every head reads again.
  ATTN_INLINE void prefetch(const QueryRow<T>& later, KeyRange keys, bool only_deltas) const {
    prefetch_masks(forward_, task_.b, later, keys);
    if (only_deltas) return;  // d_bias is not written in that pass
    for (const TensorView4<T>& d_bias : task_.problem.call.d_bias) {
      if (!d_bias || d_bias.extent(2) == 1 || d_bias.extent(3) == 1 || d_bias.stride(3) != 1) {
        continue;
      }
      const T* row = d_bias.at_index({d_bias.extent(0) == 1 ? 0 : task_.b,
                                      d_bias.extent(1) == 1 ? 0 : later.h, later.i, keys.begin});
      prefetch_bytes<1>(row, (keys.end - keys.begin) * index_t{sizeof(T)});
    }
  }

  /// Computes row r for `columns` of the block of keys: turns scores and d_p into weights, weights
  /// after dropout and d_s, and adds d_s to the gradients of biases. `chunks`: as in mask_row(), of
  /// the block. finite: all inputs of the block are finite. only_deltas: only adds the sum of p d_p
  /// to the row's delta.
  void make_row(const QueryRow<T>& row, index_t r, KeyRange columns, const KeyChunks& chunks,
                bool finite, bool only_deltas) const {
    const index_t first_key = chunks.first_key;
    const index_t begin = columns.begin, end = columns.end, at = r * task_.scratch.score_stride;
    const index_t from = std::clamp(row.keys.begin - first_key, begin, end);
    const index_t to = std::clamp(row.keys.end - first_key, from, end), n = to - from;
    T *s = task_.scratch.weights + at, *d_s = task_.scratch.d_s + at,
      *dropped = task_.scratch.dropped + at;
    const auto clear = [&](T* x) {
      std::fill(x + begin, x + from, T{0});
      std::fill(x + to, x + end, T{0});
    };
    clear(s);
    clear(d_s);
    if (dropped != s) clear(dropped);
    s += from, d_s += from, dropped += from;
    if (n == 0) return;
    const index_t first = first_key + from,
                  first_position = forward_.lengths(task_.b).first_key + first;
    const ScoreRow<T> scores{.b = task_.b,
                             .h = row.h,
                             .i = row.i,
                             .first_key = first,
                             .first_position = first_position,
                             .n = n,
                             .s = s};
    find_weights(scores, row.state, chunks, finite);
    if (dropped != s) std::copy_n(s, n, dropped);
    change_weights(scores, dropped, d_s);
    if (only_deltas) {
      T sum = 0;
      for (index_t j = 0; j < n; ++j) sum += s[j] == T{0} ? T{0} : s[j] * d_s[j];
      task_.deltas[task_.row_at(row.h, row.i)] += sum;
      return;
    }
    if (finite) {
      task_.gradients.score_gradient(n, s, task_.scratch.delta[r], d_s);
    } else {
      for (index_t j = 0; j < n; ++j) {
        d_s[j] = s[j] == T{0} ? T{0} : s[j] * (d_s[j] - task_.scratch.delta[r]);
      }
    }
    add_biases(scores, d_s);
    if (task_.partial.head_sums != nullptr) add_head_sums(scores, d_s);
    if (task_.scratch.score_derivative != nullptr) {
      task_.gradients.multiply(n, d_s, task_.scratch.score_derivative);
    }
  }

 private:
  /// Turns scores into weights and stores the derivatives of score functor and softcap.
  void find_weights(const ScoreRow<T>& scores, const RowState<T>& state, const KeyChunks& chunks,
                    bool finite) const {
    const index_t n = scores.n;
    T* s = scores.s;
    if (task_.scratch.score_derivative != nullptr) {
      if (task_.problem.score_derivative) {
        apply_to_copy(scores, task_.problem.score_derivative, task_.scratch.score_derivative);
      } else {
        std::fill_n(task_.scratch.score_derivative, n, T{1});
      }
    }
    for (std::size_t k = 0; k < kMaxScoreParameters; ++k) {
      if (!task_.problem.parameter_derivatives[k]) continue;
      apply_to_copy(scores, task_.problem.parameter_derivatives[k],
                    task_.scratch.parameter_derivatives[k]);
    }
    cap_row(forward_, task_.kernels, scores);
    if (forward_.options.softcap > 0) {
      const T cap = static_cast<T>(forward_.options.softcap);
      task_.gradients.softcap_derivative(n, s, cap, task_.scratch.score_derivative);
      for (T* derivative : task_.scratch.parameter_derivatives) {
        if (derivative != nullptr) task_.gradients.softcap_derivative(n, s, cap, derivative);
      }
    }
    mask_row(forward_, task_.kernels, scores, chunks);
    if (finite) {
      task_.kernels.final_weights(n, s, state, s);
    } else {
      for (index_t j = 0; j < n; ++j) {
        s[j] = s[j] == kMinusInf<T> ? T{0} : std::exp(s[j] - state.row_max);
      }
    }
  }

  /// Applies prob functor and dropout to `dropped`, a copy of the weights, and their derivatives to
  /// d_p.
  void change_weights(const ScoreRow<T>& weights, T* dropped, T* d_p) const {
    const auto& [b, h, i, first_key, first_position, n, s] = weights;
    if (task_.problem.prob_derivative) {
      apply_to_copy(weights, task_.problem.prob_derivative, task_.scratch.prob_derivative);
      apply_to_copy(weights, forward_.functors.prob, dropped);
    }
    if (const Dropout& dropout = forward_.options.dropout; dropout.p > 0) {
      task_.kernels.apply_dropout(n, dropped, dropout, b, h, i, first_position);
      task_.kernels.apply_dropout(n, d_p, dropout, b, h, i, first_position);
    }
    if (task_.problem.prob_derivative) {
      for (index_t j = 0; j < n; ++j) d_p[j] *= task_.scratch.prob_derivative[j];
    }
  }

  void apply_to_copy(const ScoreRow<T>& of, const RowFunctor<T>& functor, T* to) const {
    std::copy_n(of.s, of.n, to);
    ScoreRow<T> row = of;
    row.s = to;
    row.apply(functor);
  }

  /// d_bias += d_s for each additive mask, summed over broadcast axes.
  void add_biases(const ScoreRow<T>& row, const T* d_s) const {
    const AttentionOptions<T>& options = forward_.options;
    int part = 0;
    for (int at = 0; at < options.mask.num_dense; ++at) {
      const Mask::Dense& dense = options.mask.dense[static_cast<std::size_t>(at)];
      if (dense.kind != Mask::Dense::Kind::add) continue;
      const TensorView4<T>& d_bias = task_.problem.call.d_bias[static_cast<std::size_t>(part++)];
      if (!d_bias) continue;
      const auto index = [&](int axis, index_t x) { return d_bias.extent(axis) == 1 ? 0 : x; };
      const index_t step = d_bias.extent(3) == 1 ? 0 : d_bias.stride(3);
      T* to = d_bias.at_index(
          {index(0, task_.b), index(1, row.h), index(2, row.i), index(3, row.first_key)});
      if (step == 0) {
        T sum = 0;
        for (index_t j = 0; j < row.n; ++j) sum += d_s[j];
        *to += sum;
      } else if (step == 1) {
        task_.gradients.add_scaled(row.n, T{1}, d_s, to);
      } else {
        for (index_t j = 0; j < row.n; ++j) to[j * step] += d_s[j];
      }
    }
  }

  /// Adds d_s to this task's sums for ALiBi slopes, relative bias and score parameters of its head.
  void add_head_sums(const ScoreRow<T>& row, const T* d_s) const {
    T* sums = task_.partial.head_sums +
              (task_.b * forward_.num_heads() + row.h) * task_.problem.head_sums();
    const index_t position = forward_.position(task_.b, row.i);
    if (task_.problem.wants_alibi_slopes()) {
      T sum = 0;
      for (index_t j = 0; j < row.n; ++j) {
        const index_t away = position - row.first_position - j;
        sum -= d_s[j] * static_cast<T>(away < 0 ? -away : away);
      }
      sums[0] += sum;
    }
    if (task_.problem.call.d_relative_bias) {
      const index_t max_distance = forward_.options.relative_bias.extent(1) / 2;
      for (index_t j = 0; j < row.n; ++j) {
        sums[1 + max_distance +
             std::clamp(row.first_position + j - position, -max_distance, max_distance)] += d_s[j];
      }
    }
    for (std::size_t k = 0; k < kMaxScoreParameters; ++k) {
      if (task_.scratch.parameter_derivatives[k] == nullptr) continue;
      sums[task_.problem.parameter_sum(k)] +=
          task_.gradients.dot_where(row.n, d_s, task_.scratch.parameter_derivatives[k]);
    }
  }

  BackwardTask<T> task_;
  const AttentionProblem<T>& forward_;
};

}  // namespace detail

ATTN_NAMESPACE_END
