// sinusoidal_positions, and position counts in packed sequences.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cmath>
#include <utility>

#include "attn/core/tensor.hpp"

ATTN_NAMESPACE_BEGIN

/// Order of the columns of sinusoidal positions, and their frequencies.
enum class SinusoidalForm {
  interleaved,  ///< sin and cos in turns
  halves,       ///< columns of sin, then columns of cos (Marian)
  /// As halves, with frequencies base^(-j / (dim / 2 - 1)): the last one is 1 / base (M2M100,
  /// Whisper; from tensor2tensor). A last odd column is 0.
  halves_to_base,
};

/// table (length, dim): sin(p / base^(j / dim)) for even columns j, the cos of the same angle in
/// column j + 1, or as `form` says. Angles are computed in double. Throws ValueError for
/// halves_to_base with fewer than 4 columns. Source: "Attention Is All You Need" (2017), section
/// 3.5.
template <TensorLike Out>
void sinusoidal_positions(Out&& out, double base = 10000,
                          SinusoidalForm form = SinusoidalForm::interleaved) {
  using T = scalar_t<Out>;
  ATTN_ASSERT_AXES(Out, 2, "sinusoidal_positions: out", "(length, dim)");
  ATTN_ASSERT_WRITABLE(Out, "sinusoidal_positions: out");
  const auto table = detail::view_as<T, 2>(out);
  const index_t length = table.extent(0), dim = table.extent(1);
  const bool to_base = form == SinusoidalForm::halves_to_base;
  if (to_base && dim < 4) {
    throw ValueError(message("sinusoidal_positions", "dim", "be at least 4 for halves_to_base",
                             std::to_string(dim)));
  }
  const index_t pairs = dim / 2, sines = to_base ? pairs : dim - pairs;
  const double steps = to_base ? static_cast<double>(pairs - 1) : static_cast<double>(dim) / 2;
  for (index_t j = 0; j < dim; ++j) {
    const bool interleaved = form == SinusoidalForm::interleaved;
    const bool is_sine = interleaved ? j % 2 == 0 : j < sines;
    const index_t pair = interleaved ? j / 2 : is_sine ? j : j - sines;
    const double frequency = std::pow(base, -static_cast<double>(pair) / steps);
    for (index_t p = 0; p < length; ++p) {
      const double angle = static_cast<double>(p) * frequency;
      table(p, j) = static_cast<T>(is_sine ? std::sin(angle) : std::cos(angle));
      if (to_base && pair == pairs) table(p, j) = T{};
    }
  }
}

/// Returns the table as a new tensor.
template <class T>
Tensor2<T> sinusoidal_positions(index_t length, index_t dim, double base = 10000,
                                SinusoidalForm form = SinusoidalForm::interleaved) {
  auto table = Tensor2<T>::uninitialized({length, dim});
  sinusoidal_positions(table, base, form);
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
