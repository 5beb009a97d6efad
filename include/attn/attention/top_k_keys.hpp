// top_k_keys: the keys with the largest index scores, for AttentionOptions::gather.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <limits>
#include <vector>

#include "attn/core/tensor.hpp"
#include "attn/exec/execution.hpp"
#include "attn/exec/row_ranges.hpp"

ATTN_NAMESPACE_BEGIN

namespace detail {

/// The positions of the k largest scores of a row, in increasing order, then -1.
template <class T>
void choose_keys(const TensorView<const T, 1>& scores, index_t first_key, index_t k, index_t* to) {
  std::vector<index_t> order;
  for (index_t j = 0; j < scores.extent(0); ++j) {
    const T score = scores(j);
    if (score != score) {
      throw ValueError(message("top_k_keys", "every score", "be a number",
                               join({"nan for key ", to_string(j)})));
    }
    // Integers have no infinity.
    if (!std::numeric_limits<T>::has_infinity || score > -std::numeric_limits<T>::infinity()) {
      order.push_back(j);
    }
  }
  const auto count = (std::min)(static_cast<std::size_t>(k), order.size());
  const auto end = order.begin() + static_cast<std::ptrdiff_t>(count);
  std::nth_element(order.begin(), end, order.end(), [&](index_t a, index_t b) {
    return scores(a) != scores(b) ? scores(a) > scores(b) : a < b;
  });
  std::sort(order.begin(), end);
  std::fill_n(to, k, index_t{-1});
  std::transform(order.begin(), end, to, [&](index_t j) { return first_key + j; });
}

}  // namespace detail

/// Returns the positions of the k keys with the largest scores; of equal scores, the first. Shapes:
/// scores (batch, num_kv_heads or 1, blocks of queries, kv_len), result (batch, num_kv_heads or 1,
/// blocks, k), increasing along each row. Scores of -inf are never chosen; -1 pads rows with fewer
/// than k keys. first_key: the position of the first key, as in AttentionOptions. Throws ValueError
/// for a NaN, a first_key outside 0 .. 2^60, and unless k is 0 to kv_len.
template <TensorLike X>
Tensor4<index_t> top_k_keys(const X& scores, index_t k, index_t first_key = 0,
                            const Execution& execution = {}) {
  static_assert(rank_v<X> == 4, "top_k_keys: scores must have 4 axes");
  const auto view = const_view(scores);
  const index_t batch = view.extent(0), heads = view.extent(1), blocks = view.extent(2),
                kv_len = view.extent(3);
  if (k < 0 || k > kv_len) {
    throw ValueError(message("top_k_keys", "k",
                             detail::join({"be 0 to kv_len, ", to_string(kv_len)}), to_string(k)));
  }
  if (first_key < 0 || first_key > index_t{1} << 60) {
    throw ValueError(message("top_k_keys", "first_key", "lie in 0 .. 2^60", to_string(first_key)));
  }
  Tensor4<index_t> keys({batch, heads, blocks, k});
  detail::for_rows(execution.threads(), batch * heads * blocks, kv_len, [&](index_t row) {
    detail::choose_keys<scalar_t<X>>(view.select(0, row / blocks / heads)
                                         .select(0, row / blocks % heads)
                                         .select(0, row % blocks),
                                     first_key, k, keys.data() + row * k);
  });
  return keys;
}

ATTN_NAMESPACE_END
