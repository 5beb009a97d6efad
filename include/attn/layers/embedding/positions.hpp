// sinusoidal_positions, and position counts in packed sequences.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cmath>
#include <utility>

#include "attn/core/tensor.hpp"

ATTN_NAMESPACE_BEGIN

/// table (length, dim): sin(p / base^(j / dim)) for even columns j, the cos of the same angle in
/// column j + 1. Angles are computed in double. Source: "Attention Is All You Need" (2017), section
/// 3.5.
template <TensorLike Out>
void sinusoidal_positions(Out&& out, double base = 10000) {
  using T = scalar_t<Out>;
  ATTN_ASSERT_AXES(Out, 2, "sinusoidal_positions: out", "(length, dim)");
  ATTN_ASSERT_WRITABLE(Out, "sinusoidal_positions: out");
  const auto table = detail::view_as<T, 2>(out);
  const index_t length = table.extent(0), dim = table.extent(1);
  for (index_t j = 0; j < dim; ++j) {
    const double frequency =
        std::pow(base, -static_cast<double>(j - j % 2) / static_cast<double>(dim));
    for (index_t p = 0; p < length; ++p) {
      const double angle = static_cast<double>(p) * frequency;
      table(p, j) = static_cast<T>(j % 2 == 0 ? std::sin(angle) : std::cos(angle));
    }
  }
}

/// Returns the table as a new tensor.
template <class T>
Tensor2<T> sinusoidal_positions(index_t length, index_t dim, double base = 10000) {
  auto table = Tensor2<T>::uninitialized({length, dim});
  sinusoidal_positions(table, base);
  return table;
}

namespace detail {

/// ids = first, first + 1, ..; with packed sequences that begin at `starts`, counted from the last
/// start at or before each token, where token i is number first + i of the packed tokens.
inline void count_positions(index_t first, index_t n, TensorView1<const index_t> starts,
                            index_t* ids) {
  index_t sequence = 0;
  for (index_t i = 0; i < n; ++i) {
    ids[i] = first + i;
    if (starts.size() == 0) continue;
    while (sequence + 1 < starts.extent(0) && starts(sequence + 1) <= ids[i]) ++sequence;
    ids[i] -= std::clamp(starts(sequence), index_t{0}, ids[i]);
  }
}

/// Positions of RoBERTa-style models: count_positions() of the tokens that are not padding_id;
/// padding has position -1. Source: transformers, create_position_ids_from_input_ids().
template <class Id>
void count_unpadded_positions(index_t first, const TensorView1<const Id>& tokens,
                              index_t padding_id, TensorView1<const index_t> starts, index_t* ids) {
  const index_t n = tokens.extent(0);
  count_positions(first, n, starts, ids);
  index_t padding = 0;  // before this token, in its sequence
  for (index_t i = 0; i < n; ++i) {
    if (ids[i] == 0) padding = 0;
    ids[i] -= padding;
    if (std::cmp_equal(tokens(i), padding_id)) {
      ids[i] = -1;
      ++padding;
    }
  }
}

/// Positions of the queries of packed sequences; the last query of each is aligned with its last
/// key. `q_starts` and `k_starts` increase and have the same length.
inline void count_query_positions(TensorView1<const index_t> q_starts,
                                  TensorView1<const index_t> k_starts, index_t* ids) {
  for (index_t b = 0; b + 1 < q_starts.extent(0); ++b) {
    const index_t keys = k_starts(b + 1) - k_starts(b);
    for (index_t i = q_starts(b); i < q_starts(b + 1); ++i) ids[i] = keys - (q_starts(b + 1) - i);
  }
}

}  // namespace detail

ATTN_NAMESPACE_END
