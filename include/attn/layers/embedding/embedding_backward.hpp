// Backward of embedding.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attn/kernels/rows/column_sums.hpp"
#include "attn/layers/embedding/embedding.hpp"

ATTN_NAMESPACE_BEGIN

namespace detail {

/// d_table(id(row), :) += scale d_out(row, :) for rows in order. A task takes some columns of all
/// rows, so that ids may repeat: no two tasks write to the same element, and each sum has one
/// order.
template <class T, class Id>
void add_to_rows(const TensorView3<const T>& d_out, const TensorView2<Accumulator<T>>& d_table,
                 Accumulator<T> scale, const Execution& execution, const Id& id) {
  const index_t batch = d_out.extent(0), seq = d_out.extent(1), dim = d_out.extent(2);
  for_column_ranges(execution.threads(), batch * seq, dim, [&](index_t begin, index_t end) {
    for (index_t b = 0; b < batch; ++b) {
      for (index_t i = 0; i < seq; ++i) {
        const T* from = d_out.at_index({b, i, 0});
        Accumulator<T>* to = d_table.at_index({id(b, i), 0});
        for (index_t x = begin; x < end; ++x) {
          to[x * d_table.stride(1)] += scale * from[x * d_out.stride(2)];
        }
      }
    }
  });
}

}  // namespace detail

/// The gradient of embedding(table, ids): d_table(ids(b, i), :) += d_out(b, i, :), in the order of
/// the ids, whatever the number of threads. Shapes: d_out (batch, seq, dim), ids (batch, seq) of
/// any integer type, d_table (num_embeddings, dim), float if d_out has 16 bits. Throws ShapeError,
/// and ValueError for an id outside the table, before anything is written.
template <TensorLike D, TensorLike Ids, TensorLike DTable>
  requires std::integral<scalar_t<Ids>>
void embedding_backward(const D& d_out, const Ids& ids, DTable&& d_table,
                        const Execution& execution = {}) {
  using T = scalar_t<D>;
  const TensorView3<const T> from = const_view(d_out);
  const auto iv = const_view(ids);
  const TensorView2<Accumulator<T>> to = view_of(d_table);
  check_shape("embedding_backward", "d_out", Shape<3>{iv.extent(0), iv.extent(1), to.extent(1)},
              from.shape());
  detail::check_ids("embedding_backward", "ids", iv, to.extent(0));
  detail::add_to_rows<T>(from, to, 1, execution,
                         [&](index_t b, index_t i) { return static_cast<index_t>(iv(b, i)); });
}

ATTN_NAMESPACE_END
