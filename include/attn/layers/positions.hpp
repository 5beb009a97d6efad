// sinusoidal_positions: the table that tells a Transformer where its tokens stand.
#pragma once

#include <cmath>

#include "attn/core/tensor.hpp"

ATTN_NAMESPACE_BEGIN

/// (length, dim): sin(p / base^(j / dim)) for even columns j, cos of the same angle in the column after it. Angles are
/// computed in double. Source: "Attention Is All You Need" (2017), section 3.5.
template <class T>
Tensor2<T> sinusoidal_positions(index_t length, index_t dim, double base = 10000) {
  Tensor2<T> table({length, dim});
  for (index_t j = 0; j < dim; ++j) {
    const double frequency =
        std::pow(base, -static_cast<double>(j - j % 2) / static_cast<double>(dim));
    for (index_t p = 0; p < length; ++p) {
      const double angle = static_cast<double>(p) * frequency;
      table(p, j) = static_cast<T>(j % 2 == 0 ? std::sin(angle) : std::cos(angle));
    }
  }
  return table;
}

ATTN_NAMESPACE_END
