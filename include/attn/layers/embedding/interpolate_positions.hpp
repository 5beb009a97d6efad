// interpolate_positions: a grid of position embeddings in another size.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include "attn/core/tensor.hpp"

ATTN_NAMESPACE_BEGIN

/// PyTorch's bicubic interpolation, with align_corners = false.
enum class Bicubic {
  plain,        ///< each new point from 4 x 4 points around it; edge values repeat
  antialiased,  ///< a point of a smaller grid from all points that it covers
};

namespace detail {

/// The cubic convolution kernel of parameter a: Keys, "Cubic convolution interpolation" (1981).
inline double cubic_kernel(double x, double a) {
  x = std::abs(x);
  if (x < 1) return ((a + 2) * x - (a + 3)) * x * x + 1;
  return x < 2 ? ((x - 5) * x + 8) * x * a - 4 * a : 0;
}

/// Returns (to, from): row i holds the weights of the old places for new place i.
inline Tensor2<double> bicubic_weights(index_t from, index_t to, Bicubic kind) {
  Tensor2<double> weights({to, from});
  const double step = static_cast<double>(from) / static_cast<double>(to);
  const bool antialiased = kind == Bicubic::antialiased;
  const double width = antialiased ? (std::max)(step, 1.0) : 1, a = antialiased ? -0.5 : -0.75;
  for (index_t i = 0; i < to; ++i) {
    const double centre = (static_cast<double>(i) + 0.5) * step - 0.5;
    const auto reach = static_cast<index_t>(std::ceil(2 * width));
    const auto middle = static_cast<index_t>(std::floor(centre));
    double sum = 0;
    for (index_t j = middle - reach; j <= middle + reach + 1; ++j) {
      if (antialiased && (j < 0 || j >= from)) continue;
      const double weight = cubic_kernel((static_cast<double>(j) - centre) / width, a);
      weights(i, std::clamp(j, index_t{0}, from - 1)) += weight;
      sum += weight;
    }
    for (index_t j = 0; j < from; ++j) weights(i, j) /= sum;
  }
  return weights;
}

}  // namespace detail

/// Interpolates position embeddings of a grid (rows, columns, dim) to a grid (new_rows,
/// new_columns, dim) over the same image. Throws ShapeError if either grid is empty.
template <TensorLike Grid>
Tensor3<scalar_t<Grid>> interpolate_positions(const Grid& grid, index_t new_rows,
                                              index_t new_columns, Bicubic kind) {
  using T = scalar_t<Grid>;
  ATTN_ASSERT_AXES(Grid, 3, "interpolate_positions: grid", "(rows, columns, dim)");
  const auto x = detail::view_as<const T, 3>(grid);
  const index_t rows = x.extent(0), columns = x.extent(1), dim = x.extent(2);
  if (rows < 1 || columns < 1 || new_rows < 1 || new_columns < 1) {
    throw_shape("interpolate_positions", "grid",
                "have places, as the " + std::to_string(new_rows) + " x " +
                    std::to_string(new_columns) + " of the result",
                x.shape());
  }
  const Tensor2<double> down = detail::bicubic_weights(rows, new_rows, kind),
                        across = detail::bicubic_weights(columns, new_columns, kind);
  Tensor3<double> wide({rows, new_columns, dim});
  for (index_t r = 0; r < rows; ++r) {
    for (index_t j = 0; j < new_columns; ++j) {
      for (index_t c = 0; c < columns; ++c) {
        if (across(j, c) == 0) continue;
        for (index_t d = 0; d < dim; ++d) {
          wide(r, j, d) += across(j, c) * static_cast<double>(x(r, c, d));
        }
      }
    }
  }
  auto result = Tensor3<T>::uninitialized({new_rows, new_columns, dim});
  std::vector<double> sum(static_cast<std::size_t>(dim));
  for (index_t i = 0; i < new_rows; ++i) {
    for (index_t j = 0; j < new_columns; ++j) {
      std::fill(sum.begin(), sum.end(), 0.0);
      for (index_t r = 0; r < rows; ++r) {
        if (down(i, r) == 0) continue;
        for (index_t d = 0; d < dim; ++d) {
          sum[static_cast<std::size_t>(d)] += down(i, r) * wide(r, j, d);
        }
      }
      for (index_t d = 0; d < dim; ++d) {
        result(i, j, d) = static_cast<T>(sum[static_cast<std::size_t>(d)]);
      }
    }
  }
  return result;
}

ATTN_NAMESPACE_END
