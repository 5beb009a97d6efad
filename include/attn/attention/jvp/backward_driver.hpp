// BackwardJvp: splits a call of backward attention with tangents into tasks.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attn/attention/jvp/backward_loop.hpp"

ATTN_NAMESPACE_BEGIN

namespace detail {

/// A task is a key/value head of a batch row with its queries, so that no two tasks add to the same
/// element.
template <class T>
class BackwardJvp {
 public:
  BackwardJvp(const RowKernels<T>& kernels, const GradientKernels<T>& gradients,
              const BackwardJvpProblem<T>& problem, const Executor& executor, Workspace& workspace)
      : kernels_(kernels),
        gradients_(gradients),
        problem_(problem),
        forward_(problem.value.forward),
        threads_(threads_for(executor, work())),
        scratch_elements_(scratch(problem.value, nullptr).elements),
        score_elements_(BackwardJvpLoop<T>::score_elements(scratch(problem.value, nullptr),
                                                           forward_.options.softcap > 0)),
        rows_(forward_.batch() * forward_.num_heads() * forward_.scores[2]),
        memory_(workspace, elements() * worker_count(threads_)),
        deltas_(workspace, 2 * rows_) {}

  void run() {
    make_deltas();
    const index_t kv_heads = forward_.num_kv_heads();
    threads_.run(forward_.batch() * kv_heads, [&](index_t n, int worker) {
      T* memory = memory_.data() + worker * elements();
      const index_t b = n / kv_heads;
      const BackwardTiling tiling(forward_.lengths(b).kv_len);
      const BackwardScratch<T> of_values = scratch(problem_.value, memory),
                               of_tangents = scratch(problem_.tangent, memory + scratch_elements_);
      const auto task = [&](const BackwardProblem<T>& problem, const BackwardScratch<T>& of_task,
                            T* deltas) {
        return BackwardTask<T>{.problem = problem,
                               .kernels = kernels_,
                               .gradients = gradients_,
                               .tiling = tiling,
                               .scratch = of_task,
                               .deltas = deltas,
                               .first_row = 0,
                               .b = b,
                               .kv_head = n % kv_heads};
      };
      BackwardJvpLoop<T>(task(problem_.value, of_values, deltas_.data()),
                         task(problem_.tangent, of_tangents, deltas_.data() + rows_),
                         memory + 2 * scratch_elements_)
          .run();
    });
  }

 private:
  static BackwardScratch<T> scratch(const BackwardProblem<T>& problem, T* memory) {
    return {memory, problem, BackwardTiling(1).block_kv};
  }
  index_t elements() const { return 2 * scratch_elements_ + score_elements_; }

  index_t work() const {
    index_t products = 0;
    for (index_t b = 0; b < forward_.batch(); ++b) {
      const SequenceLengths lengths = forward_.lengths(b);
      products += lengths.q_len * lengths.kv_len;
    }
    return products * forward_.num_heads() * (9 * forward_.head_dim() + 6 * forward_.head_dim_v());
  }

  /// d_out . out of each row, then the tangents of these.
  void make_deltas() {
    const index_t heads = forward_.num_heads(), dv = forward_.head_dim_v();
    const BackwardProblem<T>&value = problem_.value, &tangent = problem_.tangent;
    for_rows(threads_, forward_.batch() * heads, forward_.scores[2] * dv, [&](index_t row) {
      const index_t b = row / heads, h = row % heads;
      for (index_t i = 0; i < forward_.lengths(b).q_len; ++i) {
        const T *d_out = value.query_row(value.d_out, b, h, i),
                *d_d_out = tangent.query_row(tangent.d_out, b, h, i);
        const T *out = static_cast<const T*>(forward_.output(b, h, i)),
                *d_of_out = static_cast<const T*>(tangent.forward.output(b, h, i));
        const index_t at = forward_.row_at(b, h, i);
        deltas_.data()[at] = gradients_.dot(dv, d_out, out);
        deltas_.data()[rows_ + at] =
            gradients_.dot(dv, d_d_out, out) + gradients_.dot(dv, d_out, d_of_out);
      }
    });
  }

  const RowKernels<T>& kernels_;
  const GradientKernels<T>& gradients_;
  const BackwardJvpProblem<T>& problem_;
  const AttentionProblem<T>& forward_;
  const Executor& threads_;
  index_t scratch_elements_, score_elements_, rows_;
  Scratch<T> memory_, deltas_;
};

}  // namespace detail

ATTN_NAMESPACE_END
