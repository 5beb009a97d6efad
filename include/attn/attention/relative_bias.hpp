// t5_relative_bias(): T5's learned buckets of distances as AttentionOptions::relative_bias.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>

#include "attn/core/tensor.hpp"

ATTN_NAMESPACE_BEGIN

namespace detail {

/// The bucket of `n` steps among `count`: one each for the first half, then wider ones, by
/// logarithm, up to `most`. In float, as the models were trained.
inline index_t t5_bucket(index_t n, index_t count, index_t most) {
  const index_t exact = count / 2;
  if (n < exact) return n;
  const float share =
      std::log(static_cast<float>(n) / static_cast<float>(exact)) /
      static_cast<float>(std::log(static_cast<double>(most) / static_cast<double>(exact)));
  return (std::min)(exact + static_cast<index_t>(share * static_cast<float>(count - exact)),
                    count - 1);
}

}  // namespace detail

/// (num_heads, 2 max_distance + 1) from relative_attention_bias.weight (num_buckets, num_heads):
/// the bias of every distance key - query from -max_distance to max_distance; further ones share
/// the last bucket. bidirectional: as in encoders, half of the buckets for keys behind the query;
/// otherwise those share the bucket of distance 0. Throws ValueError unless a direction has at
/// least 2 buckets, and max_distance exceeds half of them.
/// Source: Raffel et al., "Exploring the Limits of Transfer Learning" (2020), section 2.1.
template <TensorLike X>
Tensor2<scalar_t<X>> t5_relative_bias(const X& weight, bool bidirectional,
                                      index_t max_distance = 128) {
  const auto table = const_view(weight);
  static_assert(rank_v<X> == 2, "weight has the axes (num_buckets, num_heads)");
  const index_t count = bidirectional ? table.extent(0) / 2 : table.extent(0);
  if (count < 2) {
    throw ValueError(message("t5_relative_bias", "num_buckets",
                             bidirectional ? "be at least 4" : "be at least 2",
                             std::to_string(table.extent(0))));
  }
  if (max_distance <= count / 2) {
    throw ValueError(message("t5_relative_bias", "max_distance",
                             "exceed " + std::to_string(count / 2), std::to_string(max_distance)));
  }
  Tensor2<scalar_t<X>> bias({table.extent(1), 2 * max_distance + 1});
  for (index_t distance = -max_distance; distance <= max_distance; ++distance) {
    const bool behind = distance > 0;
    const index_t steps = behind ? (bidirectional ? distance : 0) : -distance;
    const index_t bucket =
        detail::t5_bucket(steps, count, max_distance) + (behind && bidirectional ? count : 0);
    for (index_t h = 0; h < table.extent(1); ++h) {
      bias(h, max_distance + distance) = table(bucket, h);
    }
  }
  return bias;
}

ATTN_NAMESPACE_END
