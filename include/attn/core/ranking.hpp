// argmax, top_k: the largest elements along the last axis.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <vector>

#include "attn/core/tensor.hpp"

ATTN_NAMESPACE_BEGIN

namespace detail {

template <class T>
index_t checked_argmax(std::string_view function, const TensorView<const T, 1>& row) {
  if (row.extent(0) == 0) throw ShapeError(message(function, "the last axis", "not be empty", "0"));
  index_t best = 0;
  T largest = row(0);
  for (index_t i = 0; i < row.extent(0); ++i) {
    const T x = row(i);
    if (x <= largest) continue;  // true for most elements; false for a NaN
    if (x != x) {
      throw ValueError(message(function, "element " + std::to_string(i), "be a number", "nan"));
    }
    largest = x;
    best = i;
  }
  return best;
}

}  // namespace detail

/// Returns the index of the largest element of each row of the last axis, the first one if several
/// are equal: an index_t for one row, otherwise a tensor of the leading axes. Throws ValueError for
/// a NaN, ShapeError for empty rows.
template <TensorLike X>
auto argmax(const X& x) {
  const auto view = const_view(x);
  constexpr int kRank = rank_v<X>;
  if constexpr (kRank == 1) {
    return detail::checked_argmax("argmax", view);
  } else {
    Shape<kRank - 1> shape{};
    std::copy_n(view.shape().begin(), kRank - 1, shape.begin());
    Tensor<index_t, kRank - 1> result(shape);
    for (index_t i = 0; i < view.extent(0) && result.size() > 0; ++i) {
      if constexpr (kRank == 2) {
        result(i) = argmax(view.select(0, i));
      } else {
        copy(argmax(view.select(0, i)), result.select(0, i));
      }
    }
    return result;
  }
}

/// The result of top_k(): both (.., k), largest first.
template <class T, int Rank>
struct TopK {
  Tensor<T, Rank> values;
  Tensor<index_t, Rank> indices;  ///< along the last axis
};

namespace detail {

template <class T, int Rank>
void top_k_rows(const TensorView<const T, Rank>& x, const TensorView<T, Rank>& values,
                const TensorView<index_t, Rank>& indices, std::vector<index_t>& order) {
  if constexpr (Rank > 1) {
    for (index_t i = 0; i < x.extent(0); ++i) {
      top_k_rows<T, Rank - 1>(x.select(0, i), values.select(0, i), indices.select(0, i), order);
    }
  } else {
    checked_argmax("top_k", x);  // for its errors: a NaN cannot be ordered
    for (index_t i = 0; i < x.extent(0); ++i) order[static_cast<std::size_t>(i)] = i;
    std::partial_sort(order.begin(), order.begin() + values.extent(0), order.end(),
                      [&](index_t a, index_t b) { return x(a) != x(b) ? x(a) > x(b) : a < b; });
    for (index_t i = 0; i < values.extent(0); ++i) {
      indices(i) = order[static_cast<std::size_t>(i)];
      values(i) = x(indices(i));
    }
  }
}

}  // namespace detail

/// Returns the k largest elements of each row of the last axis, largest first; of equal elements
/// the first one comes first. Throws ValueError unless k is 0 to the extent, and for a NaN.
template <TensorLike X>
TopK<scalar_t<X>, rank_v<X>> top_k(const X& x, index_t k) {
  using T = scalar_t<X>;
  constexpr int kRank = rank_v<X>;
  const TensorView<const T, kRank> view = const_view(x);
  const index_t extent = view.extent(kRank - 1);
  if (k < 0 || k > extent) {
    throw ValueError(message("top_k", "k", "be 0 to the last extent, " + std::to_string(extent),
                             std::to_string(k)));
  }
  Shape<kRank> shape = view.shape();
  shape.back() = k;
  TopK<T, kRank> result{Tensor<T, kRank>(shape), Tensor<index_t, kRank>(shape)};
  std::vector<index_t> order(static_cast<std::size_t>(extent));
  if (result.values.size() > 0) {
    detail::top_k_rows<T, kRank>(view, result.values.view(), result.indices.view(), order);
  }
  return result;
}

ATTN_NAMESPACE_END
