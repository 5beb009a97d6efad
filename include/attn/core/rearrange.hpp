// concatenate, gather_rows: joins tensors along an axis, selects rows by index.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <vector>

#include "attn/core/tensor.hpp"

ATTN_NAMESPACE_BEGIN

namespace detail {

template <class T, int Rank>
Tensor<T, Rank> concatenated(int axis, std::span<const TensorView<const T, Rank>> parts) {
  axis = axis_of("concatenate", Rank, axis);
  if (parts.empty()) throw ValueError(message("concatenate", "the parts", "be at least 1", "none"));
  const auto along = static_cast<std::size_t>(axis);
  Shape<Rank> shape = parts[0].shape();
  shape[along] = 0;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    Shape<Rank> expected = shape;
    expected[along] = parts[i].extent(axis);
    check_shape("concatenate", "part " + std::to_string(i), expected, parts[i].shape());
    shape[along] += parts[i].extent(axis);
  }
  auto result = Tensor<T, Rank>::uninitialized(shape);
  index_t at = 0;
  for (const auto& part : parts) {
    copy(part, result.view().slice(axis, at, at + part.extent(axis)));
    at += part.extent(axis);
  }
  return result;
}

}  // namespace detail

/// Concatenates tensors along an axis; negative axes count from the last: `concatenate(1, past,
/// present)`. Throws ShapeError if another extent differs, ValueError for an axis out of range.
template <TensorLike First, TensorLike... Others>
Tensor<scalar_t<First>, rank_v<First>> concatenate(int axis, const First& first,
                                                   const Others&... others) {
  using T = scalar_t<First>;
  constexpr int kRank = rank_v<First>;
  constexpr bool has_ranks = ((rank_v<Others> == kRank) && ...);
  constexpr bool is_one_type = (std::same_as<scalar_t<Others>, T> && ...);
  static_assert(has_ranks, "concatenate: all tensors must have as many axes");
  static_assert(is_one_type, "concatenate: all tensors must have one element type");
  if constexpr (has_ranks && is_one_type) {
    const std::array<TensorView<const T, kRank>, 1 + sizeof...(Others)> parts{
        const_view(first), const_view(others)...};
    return detail::concatenated<T, kRank>(axis, parts);
  } else {
    return {};
  }
}

/// Takes a range of tensors, such as a vector. Also throws ValueError for an empty range.
template <class Parts>
  requires(!TensorLike<Parts> && TensorLike<typename Parts::value_type>)
auto concatenate(int axis, const Parts& parts) {
  using X = typename Parts::value_type;
  std::vector<TensorView<const scalar_t<X>, rank_v<X>>> views;
  for (const auto& part : parts) views.push_back(const_view(part));
  return detail::concatenated<scalar_t<X>, rank_v<X>>(axis, views);
}

/// Deleted: the axis comes first.
template <TensorLike First, class... Others>
void concatenate(const First&, const Others&...) {
  static_assert(!std::same_as<First, First>,
                "concatenate: the axis comes first, then the tensors: concatenate(0, a, b)");
}

/// out(i, ..) = x(rows(i), ..): gathers rows by index; indices may repeat. Shapes: x (n, ..), rows
/// (m), out (m, ..). Throws ShapeError, or ValueError for an index outside of 0 .. n - 1, before
/// anything is written.
template <TensorLike X, TensorLike Rows, TensorLike Out>
void gather_rows(const X& x, const Rows& rows, Out&& out) {
  using T = scalar_t<X>;
  constexpr int kRank = rank_v<X>;
  ATTN_ASSERT_AXES(Rows, 1, "gather_rows: rows", "(m)");
  ATTN_ASSERT_INTEGERS(Rows, "gather_rows: rows");
  ATTN_ASSERT_OUTPUT_LIKE(Out, X, "gather_rows: out", "x");
  const TensorView<const T, kRank> from = const_view(x);
  const auto numbers = detail::view_as<const detail::id_t<Rows>, 1>(rows);
  const auto to = detail::view_as<T, kRank>(out);
  Shape<kRank> expected = from.shape();
  expected[0] = numbers.extent(0);
  check_shape("gather_rows", "out", expected, to.shape());
  for (index_t i = 0; i < numbers.extent(0); ++i) {
    if (std::cmp_greater_equal(numbers(i), 0) && std::cmp_less(numbers(i), from.extent(0)))
      continue;
    throw ValueError(message("gather_rows", "rows(" + std::to_string(i) + ")",
                             "be 0 to " + std::to_string(from.extent(0) - 1),
                             std::to_string(numbers(i))));
  }
  for (index_t i = 0; i < numbers.extent(0); ++i) {
    const auto row = static_cast<index_t>(numbers(i));
    copy(from.slice(0, row, row + 1), to.slice(0, i, i + 1));
  }
}

/// Returns the result as a new tensor.
template <TensorLike X, TensorLike Rows>
Tensor<scalar_t<X>, rank_v<X>> gather_rows(const X& x, const Rows& rows) {
  ATTN_ASSERT_AXES(Rows, 1, "gather_rows: rows", "(m)");
  ATTN_ASSERT_INTEGERS(Rows, "gather_rows: rows");
  const auto numbers = detail::view_as<const detail::id_t<Rows>, 1>(rows);
  Shape<rank_v<X>> shape = const_view(x).shape();
  shape[0] = numbers.extent(0);
  auto out = Tensor<scalar_t<X>, rank_v<X>>::uninitialized(shape);
  gather_rows(x, numbers, out);
  return out;
}

ATTN_NAMESPACE_END
