// Backward attention: splits a call into tasks and adds their gradients in a fixed order.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attn/attention/backward/backend.hpp"
#include "attn/attention/backward/loop.hpp"

ATTN_NAMESPACE_BEGIN

namespace detail {

template <class T>
class Backward {
 public:
  Backward(const RowKernels<T>& kernels, const GradientKernels<T>& gradients,
           const BackwardProblem<T>& problem, const Executor& executor, Workspace& workspace)
      : kernels_(kernels),
        gradients_(gradients),
        problem_(problem),
        forward_(problem.forward),
        threads_(threads_for(executor, work())),
        heads_{problem.kv_heads.begin * forward_.heads_per_kv_head,
               problem.kv_heads.end * forward_.heads_per_kv_head},
        first_row_(heads_.begin * forward_.scores[2]),
        rows_((heads_.end - heads_.begin) * forward_.scores[2]),
        kv_splits_(BackwardTiling(forward_.scores[3]).kv_splits),
        head_stride_(problem.head_sums()),
        scratch_elements_(BackwardScratch<T>(nullptr, problem, block_kv()).elements),
        memory_(workspace, scratch_elements_ * worker_count(threads_)),
        deltas_(workspace, rows_),
        split_d_q_(workspace, (kv_splits_ - 1) * rows_ * forward_.score_dim()),
        head_sums_(workspace, kv_splits_ * forward_.batch() * forward_.num_heads() * head_stride_) {
  }

  void run() {
    make_deltas();
    if (problem_.prob_derivative) add_to_deltas();
    std::fill_n(head_sums_.data(), head_sums_.size(), T{0});
    // Work that adds to the same element of a bias's gradient is joined into one task, so that
    // additions are ordered and race-free.
    bool joins_heads = false, joins_splits = false;
    for (const TensorView4<T>& d_bias : problem_.call.d_bias) {
      if (!d_bias) continue;
      joins_heads = joins_heads || d_bias.extent(0) < forward_.batch() ||
                    d_bias.extent(1) < forward_.num_heads();
      joins_splits = joins_splits || d_bias.extent(3) < forward_.scores[3];
    }
    // Tasks on lists of gathered keys are joined, too, because lists may share keys.
    joins_splits = joins_splits || forward_.gathered;
    const index_t kv_heads = forward_.num_kv_heads();
    const index_t heads = problem_.kv_heads.end - problem_.kv_heads.begin;
    const index_t joined = joins_heads         ? heads
                           : forward_.gathered ? forward_.gathered.positions.extent(2)
                                               : 1;
    const index_t head_tasks = joins_heads ? 1 : heads / (std::max)(joined, index_t{1}),
                  split_tasks = joins_splits ? 1 : kv_splits_;
    threads_.run(head_tasks * split_tasks, [&](index_t task, int worker) {
      const BackwardScratch<T> scratch(memory_.data() + worker * scratch_elements_, problem_,
                                       block_kv());
      const index_t first = problem_.kv_heads.begin + task / split_tasks * joined;
      const index_t split = task % split_tasks;
      if (forward_.gathered) clear_gradients(forward_.gathered.row(first));
      for (index_t n = first; n < first + joined; ++n) {
        for (index_t p = joins_splits ? 0 : split; p < (joins_splits ? kv_splits_ : split + 1);
             ++p) {
          run_split(n / kv_heads, n % kv_heads, p, scratch);
        }
      }
    });
    add_partial_gradients();
  }

 private:
  index_t work() const {
    index_t products = 0;
    for (index_t b = 0; b < forward_.batch(); ++b) {
      const SequenceLengths lengths = forward_.lengths(b);
      products += lengths.q_len * lengths.kv_len;
    }
    return products * forward_.num_heads() * (3 * forward_.score_dim() + 2 * forward_.head_dim_v());
  }

  static index_t block_kv() { return BackwardTiling(1).block_kv; }

  /// Sets d_k and d_v of all keys of a key/value head to 0; lists of gathered keys add to them.
  void clear_gradients(const GatheredKeys::Row& of) const {
    for (index_t j = 0; j < problem_.d_k.extent(2); ++j) {
      std::fill_n(problem_.d_k.at_index({of.b, of.kv_head, j, 0}), forward_.head_dim(), T{0});
      std::fill_n(problem_.d_v.at_index({of.b, of.kv_head, j, 0}), forward_.head_dim_v(), T{0});
    }
  }

  void add_to_deltas() {
    const index_t kv_heads = forward_.num_kv_heads();
    const KeyRange heads = problem_.kv_heads;
    threads_.run(heads.end - heads.begin, [&](index_t head, int worker) {
      const index_t n = heads.begin + head;
      const BackwardScratch<T> scratch(memory_.data() + worker * scratch_elements_, problem_,
                                       block_kv());
      const BackwardTiling tiling(forward_.lengths(n / kv_heads).kv_len);
      BackwardLoop<T>(task(tiling, scratch, {}, n / kv_heads, n % kv_heads)).add_to_deltas();
    });
  }

  void run_split(index_t b, index_t kv_head, index_t split, const BackwardScratch<T>& scratch) {
    const BackwardTiling tiling(forward_.lengths(b).kv_len);
    if (split >= tiling.kv_splits) return;
    const PartialGradients<T> partial{
        split == 0 ? nullptr : split_d_q(split),
        head_stride_ == 0
            ? nullptr
            : head_sums_.data() + split * forward_.batch() * forward_.num_heads() * head_stride_};
    BackwardLoop<T>(task(tiling, scratch, partial, b, kv_head)).run(split);
  }

  BackwardTask<T> task(const BackwardTiling& tiling, const BackwardScratch<T>& scratch,
                       const PartialGradients<T>& partial, index_t b, index_t kv_head) {
    return {.problem = problem_,
            .kernels = kernels_,
            .gradients = gradients_,
            .tiling = tiling,
            .scratch = scratch,
            .partial = partial,
            .deltas = deltas_.data(),
            .first_row = first_row_,
            .b = b,
            .kv_head = kv_head};
  }

  /// deltas_ = D - d_lse of each row, with D = d_out . out.
  void make_deltas() {
    const index_t heads = forward_.num_heads(), dv = forward_.head_dim_v();
    for_rows(threads_, heads_.end - heads_.begin, forward_.scores[2] * dv, [&](index_t row) {
      const index_t n = heads_.begin + row, b = n / heads, h = n % heads;
      for (index_t i = 0; i < forward_.lengths(b).q_len; ++i) {
        const T* d_out = problem_.query_row(problem_.d_out, b, h, i);
        // With a prob functor D is the sum of p d_p instead, which add_to_deltas() computes.
        T delta = problem_.prob_derivative
                      ? T{0}
                      : gradients_.dot(dv, d_out, static_cast<const T*>(forward_.output(b, h, i)));
        if (problem_.call.d_lse) delta -= problem_.of_query(problem_.call.d_lse, b, h, i);
        // Fully masked rows have gradient 0, whatever their d_lse is.
        if (problem_.of_query(problem_.lse, b, h, i) == kMinusInf<T>) delta = T{0};
        deltas_.data()[row_at(b, h, i)] = delta;
      }
    });
  }

  /// Adds up the partial gradients of the tasks, in the order of splits, batch rows and queries.
  void add_partial_gradients() {
    const index_t heads = forward_.num_heads(), d = forward_.head_dim(), dim = forward_.score_dim();
    if (kv_splits_ > 1) {
      for_rows(threads_, heads_.end - heads_.begin, forward_.scores[2] * dim, [&](index_t row) {
        const index_t n = heads_.begin + row, b = n / heads, h = n % heads;
        const SequenceLengths lengths = forward_.lengths(b);
        for (index_t split = 1; split < BackwardTiling(lengths.kv_len).kv_splits; ++split) {
          const T* from = split_d_q(split) + row_at(b, h, 0) * dim;
          for (index_t i = 0; i < lengths.q_len; ++i, from += dim) {
            gradients_.add_scaled(d, T{1}, from, problem_.query_row(problem_.d_q, b, h, i));
            if (!problem_.call.d_qv) continue;
            gradients_.add_scaled(dim - d, T{1}, from + d,
                                  problem_.query_row(problem_.call.d_qv, b, h, i));
          }
        }
      });
    }
    const AttentionBackwardCall<T>& call = problem_.call;
    for (index_t h = 0; h < heads; ++h) {
      for (index_t n = 0; n < kv_splits_ * forward_.batch() && head_stride_ > 0; ++n) {
        const T* sums = head_sums_.data() + (n * heads + h) * head_stride_;
        if (call.d_alibi_slopes) call.d_alibi_slopes(h) += sums[0];
        if (call.d_batch_alibi_slopes) {
          call.d_batch_alibi_slopes(n % forward_.batch(), h) += sums[0];
        }
        for (index_t x = 0; call.d_relative_bias && x < call.d_relative_bias.extent(1); ++x) {
          call.d_relative_bias(h, x) += sums[1 + x];
        }
        for (std::size_t k = 0; k < kMaxScoreParameters; ++k) {
          const TensorView1<T>& to = call.d_score_parameters[k];
          if (to) to(to.extent(0) == 1 ? 0 : h) += sums[problem_.parameter_sum(k)];
        }
      }
    }
    for (index_t head = 0; head < call.d_sinks.extent(0); ++head) add_sink_gradient(head);
  }

  void add_sink_gradient(index_t head) {
    T sum = 0;
    for (index_t b = 0; b < forward_.batch(); ++b) {
      const index_t h = forward_.gathered ? head - forward_.gathered.head(b, 0) : head;
      if (h < 0 || h >= forward_.num_heads()) continue;  // of another key/value head
      for (index_t i = 0; i < forward_.lengths(b).q_len; ++i) {
        const T lse = problem_.of_query(problem_.lse, b, h, i);
        if (lse == kMinusInf<T>) continue;
        sum -= std::exp(forward_.sink(b, h) - lse) * deltas_.data()[row_at(b, h, i)];
      }
    }
    problem_.call.d_sinks(head) += sum;
  }

  /// Index of a query among the rows of heads_: in deltas_ and split_d_q().
  index_t row_at(index_t b, index_t h, index_t i) const {
    return forward_.row_at(b, h, i) - first_row_;
  }
  /// Partial d_q of a split after the first.
  T* split_d_q(index_t split) {
    return split_d_q_.data() + (split - 1) * rows_ * forward_.score_dim();
  }

  const RowKernels<T>& kernels_;
  const GradientKernels<T>& gradients_;
  const BackwardProblem<T>& problem_;
  const AttentionProblem<T>& forward_;
  const Executor& threads_;
  KeyRange heads_;  ///< query heads of problem_.kv_heads, b * num_heads + h
  index_t first_row_, rows_, kv_splits_, head_stride_, scratch_elements_;
  Scratch<T> memory_, deltas_, split_d_q_, head_sums_;
};

}  // namespace detail

ATTN_NAMESPACE_END

#define ATTN_KERNEL_TEXT "attn/attention/backward/driver.inc.hpp"
#include "attn/simd/foreach_isa.hpp"
