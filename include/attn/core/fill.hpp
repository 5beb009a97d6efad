// fill_normal, fill_uniform: random tensors from a seed.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <cstdint>
#include <numbers>

#include "attn/core/element.hpp"
#include "attn/core/random.hpp"
#include "attn/core/tensor.hpp"

ATTN_NAMESPACE_BEGIN

struct NormalOptions {
  double mean = 0;         ///< mean of the distribution
  double std = 1;          ///< standard deviation, at least 0
  std::uint64_t seed = 0;  ///< seed of the random numbers
};

struct UniformOptions {
  double low = 0;          ///< smallest number
  double high = 1;         ///< upper bound, exclusive before rounding
  std::uint64_t seed = 0;  ///< seed of the random numbers
};

namespace detail {

/// Uniform and normal random numbers; the standard distributions are not specified to the bit.
class RandomNumbers {
 public:
  explicit RandomNumbers(std::uint64_t seed) : engine_(seed) {}
  /// [0, 1)
  double uniform() { return static_cast<double>(engine_() >> 11) * 0x1p-53; }
  /// The Box-Muller transform.
  double normal() {
    const double radius = std::sqrt(-2 * std::log(1 - uniform()));
    return radius * std::cos(2 * std::numbers::pi * uniform());
  }

 private:
  MersenneTwister engine_;
};

/// Visits elements in order, last axis fastest, whatever the strides.
template <class T, int Rank, class Draw>
void fill_each(const TensorView<T, Rank>& x, Draw& draw) {
  for (index_t i = 0; i < x.extent(0); ++i) {
    if constexpr (Rank == 1) {
      x(i) = static_cast<T>(draw());
    } else {
      fill_each(x.select(0, i), draw);
    }
  }
}

template <class X, class Draw>
void fill_with(X&& x, Draw draw) {
  ATTN_ASSERT_FLOATING(X, "fill_normal, fill_uniform: x");
  ATTN_ASSERT_WRITABLE(X, "fill_normal, fill_uniform: x");
  if constexpr (!std::is_const_v<typename view_t<X>::element_type>) {
    const auto view = view_of(x);
    if (view.size() > 0) fill_each(view, draw);
  }
}

}  // namespace detail

/// Fills x with normal random numbers: the same for the same seed and shape, whatever the strides
/// and, up to rounding, the element type. Throws ValueError unless mean and std are finite and std
/// >= 0.
template <TensorLike X>
void fill_normal(X&& x, const NormalOptions& options = {}) {
  if (!(options.std >= 0) || !std::isfinite(options.std) || !std::isfinite(options.mean)) {
    throw ValueError(message("fill_normal", "mean and std", "be finite, std at least 0",
                             to_string(options.mean) + " and " + to_string(options.std)));
  }
  detail::RandomNumbers numbers(options.seed);
  detail::fill_with(x, [&] { return options.mean + options.std * numbers.normal(); });
}

/// Fills x with uniform random numbers; otherwise like fill_normal(). Throws ValueError unless
/// low <= high and high - low is finite.
template <TensorLike X>
void fill_uniform(X&& x, const UniformOptions& options = {}) {
  if (!(options.low <= options.high) || !std::isfinite(options.high - options.low)) {
    throw ValueError(message("fill_uniform", "low and high", "be finite and in order",
                             to_string(options.low) + " and " + to_string(options.high)));
  }
  detail::RandomNumbers numbers(options.seed);
  detail::fill_with(x,
                    [&] { return options.low + (options.high - options.low) * numbers.uniform(); });
}

ATTN_NAMESPACE_END
