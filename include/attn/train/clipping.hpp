// Gradients as a whole: their norm, clipping, and the first that is not finite.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cmath>
#include <span>

#include "attn/train/parameters.hpp"

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

}  // namespace detail

/// The Euclidean norm of all gradients as one vector.
template <class T>
double gradient_norm(const std::vector<TrainedParameter<T>>& parameters) {
  double sum = 0;
  for (const TrainedParameter<T>& p : parameters) sum += detail::sum_of_squares(p.gradient, p.size);
  return std::sqrt(sum);
}

/// Scales all gradients by min(1, most / (norm + 1e-6)), and returns their norm before;
/// torch.nn.utils.clip_grad_norm_. A norm that is not finite changes nothing. Source: Pascanu,
/// Mikolov, Bengio (2013), algorithm 1.
template <class T>
double clip_gradient_norm(const std::vector<TrainedParameter<T>>& parameters, double most) {
  const double norm = gradient_norm(parameters);
  const T scale = static_cast<T>(most / (norm + 1e-6));
  if (!(scale < T{1}) || !std::isfinite(norm)) return norm;
  for (const TrainedParameter<T>& p : parameters) {
    for (index_t i = 0; i < p.size; ++i) p.gradient[i] *= scale;
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
void clear_gradients(const std::vector<TrainedParameter<T>>& parameters) {
  for (const TrainedParameter<T>& p : parameters) std::fill_n(p.gradient, p.size, T{0});
}

ATTN_NAMESPACE_END
