// Gradient norm, clipping, and check for non-finite gradients.
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

/// Number of chunks into which kernels cut `size` elements.
inline index_t update_chunks(index_t size) { return (size + kUpdateChunk - 1) / kUpdateChunk; }

}  // namespace detail

/// The Euclidean norm of all gradients as one vector. Chunks are summed, and their sums added in
/// order: the same bits on any number of threads. In double, so that squares of floats do not
/// overflow: for float gradients the norm is finite if and only if all of them are.
template <class T>
double gradient_norm(const std::vector<TrainedParameter<T>>& parameters,
                     const Execution& execution = {}) {
  index_t max_size = 0;
  for (const TrainedParameter<T>& p : parameters) max_size = (std::max)(max_size, p.size);
  Scratch<double> sums(execution.scratch(), detail::update_chunks(max_size));
  double sum = 0;
  for (const TrainedParameter<T>& p : parameters) {
    detail::backend<family::Optimizers, T>(execution).square_sums(
        {.n = p.size, .x = p.gradient, .sums = sums.data()}, execution);
    for (index_t chunk = 0; chunk < detail::update_chunks(p.size); ++chunk) {
      sum += sums.data()[chunk];
    }
  }
  return std::sqrt(sum);
}

namespace detail {

inline void check_clip(std::string_view function, std::string_view name, double bound) {
  if (bound >= 0) return;
  throw ValueError(message(function, name, "be at least 0", std::to_string(bound)));
}

}  // namespace detail

/// The factor that scales gradients of this norm to a norm of at most max_norm: min(1, max_norm /
/// (norm + 1e-6)); 1 for a norm that is not finite. For an optimizer's step(), which scales
/// gradients as it reads them. Throws ValueError unless max_norm >= 0. Source: Pascanu, Mikolov,
/// Bengio, "On the difficulty of training recurrent neural networks" (2013), algorithm 1.
inline double clip_factor(double norm, double max_norm) {
  detail::check_clip("clip_factor", "max_norm", max_norm);
  return std::isfinite(norm) ? (std::min)(1.0, max_norm / (norm + 1e-6)) : 1.0;
}

/// Scales all gradients by clip_factor() and returns their previous norm;
/// torch.nn.utils.clip_grad_norm_. A norm that is not finite changes nothing. Throws ValueError
/// unless max_norm >= 0.
template <class T>
double clip_gradient_norm(const std::vector<TrainedParameter<T>>& parameters, double max_norm,
                          const Execution& execution = {}) {
  detail::check_clip("clip_gradient_norm", "max_norm", max_norm);
  const double norm = gradient_norm(parameters, execution);
  const T factor = static_cast<T>(clip_factor(norm, max_norm));
  if (!(factor < T{1})) return norm;
  const auto& kernels = detail::backend<family::Optimizers, T>(execution);
  for (const TrainedParameter<T>& p : parameters) {
    kernels.scale({.n = p.size, .x = p.gradient, .factor = factor}, execution);
  }
  return norm;
}

/// Clamps each element to -max_value .. max_value; a NaN stays NaN. Throws ValueError unless
/// max_value >= 0.
template <class T>
void clip_gradient_values(const std::vector<TrainedParameter<T>>& parameters, double max_value) {
  detail::check_clip("clip_gradient_values", "max_value", max_value);
  const T bound = static_cast<T>(max_value);
  for (const TrainedParameter<T>& p : parameters) {
    for (index_t i = 0; i < p.size; ++i) p.gradient[i] = std::clamp(p.gradient[i], -bound, bound);
  }
}

/// Throws ValueError that names the parameter if a gradient is not finite. Call it before a step,
/// which would otherwise write NaN to the parameters.
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

/// Sets all gradients to 0, before the next step's backward adds to them.
template <class T>
void clear_gradients(const std::vector<TrainedParameter<T>>& parameters,
                     const Execution& execution = {}) {
  for (const TrainedParameter<T>& p : parameters) {
    detail::threads_for(execution.threads(), 4 * p.size)
        .run(detail::update_chunks(p.size), [&](index_t chunk, int) {
          const index_t begin = chunk * detail::kUpdateChunk;
          std::fill_n(p.gradient + begin, (std::min)(detail::kUpdateChunk, p.size - begin), T{0});
        });
  }
}

ATTN_NAMESPACE_END
