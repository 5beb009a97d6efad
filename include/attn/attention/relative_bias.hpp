// Biases by the distance of query and key: T5's in buckets, ALiBi's slopes.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <bit>
#include <cmath>
#include <string>
#include <type_traits>

#include "attn/core/element.hpp"
#include "attn/core/tensor.hpp"

ATTN_NAMESPACE_BEGIN

/// The slopes (num_heads) of ALiBi, for AttentionOptions::alibi_slopes: 2^(-8 (h + 1) / num_heads)
/// if num_heads is a power of two; otherwise those of the next lower power, then every second of
/// the power above. Throws ValueError unless num_heads is positive. Source: Press, Smith, Lewis,
/// "Train Short, Test Long" (2021), and its published code.
template <class T>
Tensor1<T> alibi_slopes(index_t num_heads) {
  if (num_heads < 1) {
    throw ValueError(
        message("alibi_slopes", "num_heads", "be positive", std::to_string(num_heads)));
  }
  const auto whole =
      static_cast<index_t>(std::bit_floor(static_cast<std::make_unsigned_t<index_t>>(num_heads)));
  Tensor1<T> slopes({num_heads});
  for (index_t h = 0; h < num_heads; ++h) {
    const double step = 8 / static_cast<double>(h < whole ? whole : 2 * whole);
    const index_t n = h < whole ? h + 1 : 2 * (h - whole) + 1;
    slopes(h) = static_cast<T>(std::exp2(-step * static_cast<double>(n)));
  }
  return slopes;
}

namespace detail {

/// The bucket of distance n among `count`: the first half of the buckets hold one distance each,
/// the others grow logarithmically up to max_distance. Computed in float, as in T5's training code.
inline index_t t5_bucket(index_t n, index_t count, index_t max_distance) {
  const index_t exact = count / 2;
  if (n < exact) return n;
  const float share =
      std::log(static_cast<float>(n) / static_cast<float>(exact)) /
      static_cast<float>(std::log(static_cast<double>(max_distance) / static_cast<double>(exact)));
  return (std::min)(exact + static_cast<index_t>(share * static_cast<float>(count - exact)),
                    count - 1);
}

/// Calls f(column, bucket) for each distance of t5_relative_bias().
template <class F>
void for_t5_buckets(index_t num_buckets, bool bidirectional, index_t max_distance, F f) {
  const index_t count = bidirectional ? num_buckets / 2 : num_buckets;
  for (index_t distance = -max_distance; distance <= max_distance; ++distance) {
    const bool behind = distance > 0;
    const index_t steps = behind ? (bidirectional ? distance : 0) : -distance;
    f(max_distance + distance,
      t5_bucket(steps, count, max_distance) + (behind && bidirectional ? count : 0));
  }
}

inline void check_t5_buckets(index_t num_buckets, bool bidirectional, index_t max_distance) {
  const index_t count = bidirectional ? num_buckets / 2 : num_buckets;
  if (count < 2) {
    throw ValueError(message("t5_relative_bias", "num_buckets",
                             bidirectional ? "be at least 4" : "be at least 2",
                             std::to_string(num_buckets)));
  }
  if (max_distance > count / 2 && max_distance <= index_t{1} << 30) return;
  throw ValueError(message("t5_relative_bias", "max_distance",
                           "exceed " + std::to_string(count / 2) + " and be at most 2^30",
                           std::to_string(max_distance)));
}

}  // namespace detail

/// Fills bias (num_heads, 2 max_distance + 1) with the bias of every distance key - query from
/// -max_distance to max_distance, from relative_attention_bias.weight (num_buckets, num_heads);
/// further distances share the last bucket. 16-bit weights give a float bias. bidirectional: as in
/// encoders, half of the buckets are for keys after the query; otherwise those keys share the
/// bucket of distance 0. Throws ShapeError, and ValueError unless each direction has at least 2
/// buckets and max_distance exceeds half of them. Source: Raffel et al., "Exploring the Limits of
/// Transfer Learning" (2020), section 2.1.
template <TensorLike X, TensorLike Out>
void t5_relative_bias(const X& weight, bool bidirectional, Out&& bias) {
  using T = scalar_t<X>;
  ATTN_ASSERT_AXES(X, 2, "t5_relative_bias: weight", "(num_buckets, num_heads)");
  ATTN_ASSERT_FLOATING(X, "t5_relative_bias: weight");
  ATTN_ASSERT_OUTPUT(Out, Accumulator<T>, 2, "t5_relative_bias: bias",
                     "(num_heads, 2 max_distance + 1)", "weight");
  const auto table = detail::view_as<const T, 2>(weight);
  const auto to = detail::view_as<Accumulator<T>, 2>(bias);
  const index_t max_distance = to.extent(1) / 2;
  detail::check_t5_buckets(table.extent(0), bidirectional, max_distance);
  check_shape("t5_relative_bias", "bias", "(num_heads, 2 max_distance + 1)",
              Shape<2>{table.extent(1), 2 * max_distance + 1}, to.shape());
  detail::for_t5_buckets(table.extent(0), bidirectional, max_distance,
                         [&](index_t column, index_t bucket) {
                           for (index_t h = 0; h < table.extent(1); ++h)
                             to(h, column) = table(bucket, h);
                         });
}

/// Returns the bias as a new tensor.
template <TensorLike X>
Tensor2<Accumulator<scalar_t<X>>> t5_relative_bias(const X& weight, bool bidirectional,
                                                   index_t max_distance = 128) {
  ATTN_ASSERT_AXES(X, 2, "t5_relative_bias: weight", "(num_buckets, num_heads)");
  const auto table = detail::view_as<const scalar_t<X>, 2>(weight);
  detail::check_t5_buckets(table.extent(0), bidirectional, max_distance);
  Tensor2<Accumulator<scalar_t<X>>> bias({table.extent(1), 2 * max_distance + 1});
  t5_relative_bias(table, bidirectional, bias);
  return bias;
}

/// d_weight (num_buckets, num_heads) += the gradient of the weight, from d_bias (num_heads, 2
/// max_distance + 1). Throws for the reasons of t5_relative_bias().
template <TensorLike Bias, TensorLike Out>
void t5_relative_bias_backward(const Bias& d_bias, bool bidirectional, Out&& d_weight) {
  using T = scalar_t<Bias>;
  ATTN_ASSERT_AXES(Bias, 2, "t5_relative_bias_backward: d_bias", "(num_heads, 2 max_distance + 1)");
  ATTN_ASSERT_OUTPUT(Out, T, 2, "t5_relative_bias_backward: d_weight", "(num_buckets, num_heads)",
                     "d_bias");
  const auto from = detail::view_as<const T, 2>(d_bias);
  const auto table = detail::view_as<T, 2>(d_weight);
  const index_t max_distance = from.extent(1) / 2;
  detail::check_t5_buckets(table.extent(0), bidirectional, max_distance);
  check_shape("t5_relative_bias_backward", "d_bias", "(num_heads, 2 max_distance + 1)",
              Shape<2>{table.extent(1), 2 * max_distance + 1}, from.shape());
  detail::for_t5_buckets(table.extent(0), bidirectional, max_distance,
                         [&](index_t column, index_t bucket) {
                           for (index_t h = 0; h < table.extent(1); ++h)
                             table(bucket, h) += from(h, column);
                         });
}

ATTN_NAMESPACE_END
