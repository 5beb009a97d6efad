// Gradients as a whole: their norm, clipping, and the first that is not finite.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cmath>
#include <span>

#include "attn/exec/execution.hpp"
#include "attn/train/parameters.hpp"
#include "attn/train/update.hpp"

ATTN_NAMESPACE_BEGIN

namespace detail {

/// Sum of squares in double, in eight chains, so that its order is fixed and its speed that of
/// memory.
template <class T>
double sum_of_squares(const T* x, index_t n) {
  double sums[8] = {};
  index_t i = 0;
  for (; i + 8 <= n; i += 8) {
    for (index_t c = 0; c < 8; ++c) {
      sums[c] += static_cast<double>(x[i + c]) * static_cast<double>(x[i + c]);
    }
  }
  for (; i < n; ++i) sums[i % 8] += static_cast<double>(x[i]) * static_cast<double>(x[i]);
  return ((sums[0] + sums[1]) + (sums[2] + sums[3])) + ((sums[4] + sums[5]) + (sums[6] + sums[7]));
}

/// f(chunk, gradient, n) of chunks of a parameter's gradient, on threads where there is work for
/// them.
template <class T, class F>
void for_gradient_chunks(const TrainedParameter<T>& p, const Execution& execution, F f) {
  threads_for(execution.threads(), 4 * p.size)
      .run((p.size + kUpdateChunk - 1) / kUpdateChunk, [&](index_t chunk, int) {
        const index_t begin = chunk * kUpdateChunk;
        f(chunk, p.gradient + begin, (std::min)(kUpdateChunk, p.size - begin));
      });
}

}  // namespace detail

/// The Euclidean norm of all gradients as one vector: sums of chunks, added in their order, so that
/// it has the same bits on any number of threads.
template <class T>
double gradient_norm(const std::vector<TrainedParameter<T>>& parameters,
                     const Execution& execution = {}) {
  index_t most = 0;
  for (const TrainedParameter<T>& p : parameters) most = (std::max)(most, p.size);
  Scratch<double> sums(execution.scratch(),
                       (most + detail::kUpdateChunk - 1) / detail::kUpdateChunk);
  double sum = 0;
  for (const TrainedParameter<T>& p : parameters) {
    detail::for_gradient_chunks(p, execution, [&](index_t chunk, const T* gradient, index_t n) {
      sums.data()[chunk] = detail::sum_of_squares(gradient, n);
    });
    for (index_t begin = 0; begin < p.size; begin += detail::kUpdateChunk) {
      sum += sums.data()[begin / detail::kUpdateChunk];
    }
  }
  return std::sqrt(sum);
}

/// Scales all gradients by min(1, most / (norm + 1e-6)), and returns their norm before;
/// torch.nn.utils.clip_grad_norm_. A norm that is not finite changes nothing. Source: Pascanu,
/// Mikolov, Bengio (2013), algorithm 1.
template <class T>
double clip_gradient_norm(const std::vector<TrainedParameter<T>>& parameters, double most,
                          const Execution& execution = {}) {
  const double norm = gradient_norm(parameters, execution);
  const T scale = static_cast<T>(most / (norm + 1e-6));
  if (!(scale < T{1}) || !std::isfinite(norm)) return norm;
  for (const TrainedParameter<T>& p : parameters) {
    detail::for_gradient_chunks(p, execution, [&](index_t, T* gradient, index_t n) {
      for (index_t i = 0; i < n; ++i) gradient[i] *= scale;
    });
  }
  return norm;
}

/// Clamps each element to -most .. most; a NaN stays one.
template <class T>
void clip_gradient_values(const std::vector<TrainedParameter<T>>& parameters, double most) {
  const T bound = static_cast<T>(most);
  for (const TrainedParameter<T>& p : parameters) {
    for (index_t i = 0; i < p.size; ++i) p.gradient[i] = std::clamp(p.gradient[i], -bound, bound);
  }
}

/// Throws ValueError that names the first parameter with a gradient that is not finite. To be
/// called before a step, which would carry it into the parameters.
template <class T>
void check_gradients(const std::vector<TrainedParameter<T>>& parameters) {
  for (const TrainedParameter<T>& p : parameters) {
    for (index_t i = 0; i < p.size; ++i) {
      if (std::isfinite(p.gradient[i])) continue;
      throw ValueError(message(
          "check_gradients", "the gradient of " + p.name, "be finite",
          std::to_string(static_cast<double>(p.gradient[i])) + " at element " + std::to_string(i)));
    }
  }
}

/// Sets all gradients to 0: what backward adds to in the next step.
template <class T>
void clear_gradients(const std::vector<TrainedParameter<T>>& parameters,
                     const Execution& execution = {}) {
  for (const TrainedParameter<T>& p : parameters) {
    detail::for_gradient_chunks(
        p, execution, [](index_t, T* gradient, index_t n) { std::fill_n(gradient, n, T{0}); });
  }
}

ATTN_NAMESPACE_END
