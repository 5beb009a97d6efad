// embedding: rows of a table by index.
#pragma once

#include <utility>

#include "attn/core/tensor.hpp"

ATTN_NAMESPACE_BEGIN

/// out(.., :) = table(ids(..), :). Shapes: table (num_embeddings, dim), ids (..) of any integer type, out
/// (.., dim). Throws ShapeError, and ValueError for an id outside the table, before anything is written.
template <TensorLike Table, TensorLike Ids, TensorLike Out>
  requires std::integral<scalar_t<Ids>>
void embedding(const Table& table, const Ids& ids, Out&& out) {
  using T = scalar_t<Table>;
  const TensorView2<const T> rows = const_view(table);
  const auto iv = const_view(ids);
  const TensorView<T, rank_v<Ids> + 1> ov = view_of(out);
  Shape<rank_v<Ids> + 1> expected{};
  std::copy(iv.shape().begin(), iv.shape().end(), expected.begin());
  expected.back() = rows.extent(1);
  check_shape("embedding", "out", expected, ov.shape());
  // Runs f(index of the id) over all ids.
  const auto each = [&](auto f) {
    Shape<rank_v<Ids>> index{};
    for (index_t n = iv.size(); n > 0; --n) {
      f(index);
      for (std::size_t a = index.size(); a-- > 0;) {
        if (++index[a] < iv.shape()[a]) break;
        index[a] = 0;
      }
    }
  };
  each([&](const auto& index) {
    const auto id = *iv.at_index(index);
    if (!std::in_range<index_t>(id) || static_cast<index_t>(id) < 0 ||
        static_cast<index_t>(id) >= rows.extent(0)) {
      throw ValueError(message("embedding", "ids" + to_string(index),
                               "lie in 0 .. " + std::to_string(rows.extent(0) - 1),
                               std::to_string(id)));
    }
  });
  each([&](const auto& index) {
    Shape<rank_v<Ids> + 1> at{};
    std::copy(index.begin(), index.end(), at.begin());
    T* to = ov.at_index(at);
    const index_t id = static_cast<index_t>(*iv.at_index(index));
    for (index_t x = 0; x < rows.extent(1); ++x) to[x * ov.stride(rank_v<Ids>)] = rows(id, x);
  });
}

template <TensorLike Table, TensorLike Ids>
  requires std::integral<scalar_t<Ids>>
auto embedding(const Table& table, const Ids& ids) {
  const auto iv = const_view(ids);
  Shape<rank_v<Ids> + 1> shape{};
  std::copy(iv.shape().begin(), iv.shape().end(), shape.begin());
  shape.back() = const_view(table).extent(1);
  auto out = Tensor<scalar_t<Table>, rank_v<Ids> + 1>::uninitialized(shape);
  embedding(table, ids, out);
  return out;
}

ATTN_NAMESPACE_END
