// Where tokens stand: the table of sinusoidal_positions, and counting through packed sequences.
#pragma once

#include <algorithm>
#include <cmath>

#include "attn/core/tensor.hpp"

ATTN_NAMESPACE_BEGIN

/// table (length, dim): sin(p / base^(j / dim)) for even columns j, cos of the same angle in the column after it. Angles
/// are computed in double. Source: "Attention Is All You Need" (2017), section 3.5.
template <TensorLike Out>
void sinusoidal_positions(Out&& out, double base = 10000) {
  using T = scalar_t<Out>;
  const TensorView2<T> table = view_of(out);
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

/// The same into a new tensor.
template <class T>
Tensor2<T> sinusoidal_positions(index_t length, index_t dim, double base = 10000) {
  auto table = Tensor2<T>::uninitialized({length, dim});
  sinusoidal_positions(table, base);
  return table;
}

namespace detail {

/// ids = first, first + 1, ..; or from 0 again at each of `starts`, those of packed sequences.
inline void count_positions(index_t first, index_t n, TensorView1<const index_t> starts,
                            index_t* ids) {
  index_t sequence = 0;
  for (index_t i = 0; i < n; ++i) {
    if (starts.size() == 0) {
      ids[i] = first + i;
      continue;
    }
    while (sequence + 1 < starts.extent(0) && starts(sequence + 1) <= i) ++sequence;
    ids[i] = std::max(i - starts(sequence), index_t{0});
  }
}

}  // namespace detail

ATTN_NAMESPACE_END
