// embedding, Embedding: rows of a table by index.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <utility>

#include "attn/core/tensor.hpp"
#include "attn/layers/module/compressed_weight.hpp"
#include "attn/layers/module/parameter_version.hpp"
#include "attn/layers/module/parameter_visitor.hpp"

ATTN_NAMESPACE_BEGIN

namespace detail {

/// Calls f(index of the id) for all ids.
template <class Ids, int Rank, class F>
void each_id(const TensorView<Ids, Rank>& ids, F f) {
  Shape<Rank> index{};
  for (index_t n = ids.size(); n > 0; --n) {
    f(index);
    for (std::size_t a = index.size(); a-- > 0;) {
      if (++index[a] < ids.shape()[a]) break;
      index[a] = 0;
    }
  }
}

/// Throws ValueError for an id outside first .. count - 1.
template <class Ids, int Rank>
void check_ids(std::string_view function, std::string_view argument,
               const TensorView<Ids, Rank>& ids, index_t count, index_t first = 0) {
  each_id(ids, [&](const auto& index) {
    const auto id = *ids.at_index(index);
    if (std::in_range<index_t>(id) && static_cast<index_t>(id) >= first &&
        static_cast<index_t>(id) < count) {
      return;
    }
    throw ValueError(message(function, std::string(argument) + to_string(index),
                             "lie in " + std::to_string(first) + " .. " + std::to_string(count - 1),
                             std::to_string(id)));
  });
}

}  // namespace detail

/// out(.., :) = table(ids(..), :). Shapes: table (num_embeddings, dim), ids (..) of any integer
/// type, out (.., dim). Throws ShapeError, and ValueError for an id outside the table, before
/// anything is written.
template <TensorLike Table, TensorLike Ids, TensorLike Out>
void embedding(const Table& table, const Ids& ids, Out&& out) {
  using T = scalar_t<Table>;
  ATTN_ASSERT_AXES(Table, 2, "embedding: table", "(num_embeddings, embedding_dim)");
  ATTN_ASSERT_INTEGERS(Ids, "embedding: ids");
  static_assert(rank_v<Out> == rank_v<Ids> + 1, "embedding: out must have one axis more than ids");
  ATTN_ASSERT_ELEMENTS(Out, T, "embedding: out", "table");
  ATTN_ASSERT_WRITABLE(Out, "embedding: out");
  const auto rows = detail::view_as<const T, 2>(table);
  const auto iv = detail::view_as<const detail::id_t<Ids>, rank_v<Ids>>(ids);
  const auto ov = detail::view_as<T, rank_v<Ids> + 1>(out);
  Shape<rank_v<Ids> + 1> expected{};
  std::copy(iv.shape().begin(), iv.shape().end(), expected.begin());
  expected.back() = rows.extent(1);
  check_shape("embedding", "out", expected, ov.shape());
  detail::check_ids("embedding", "ids", iv, rows.extent(0));
  detail::each_id(iv, [&](const auto& index) {
    Shape<rank_v<Ids> + 1> at{};
    std::copy(index.begin(), index.end(), at.begin());
    T* to = ov.at_index(at);
    const index_t id = static_cast<index_t>(*iv.at_index(index));
    for (index_t x = 0; x < rows.extent(1); ++x) to[x * ov.stride(rank_v<Ids>)] = rows(id, x);
  });
}

/// Returns the result as a new tensor.
template <TensorLike Table, TensorLike Ids>
auto embedding(const Table& table, const Ids& ids) {
  using T = scalar_t<Table>;
  ATTN_ASSERT_AXES(Table, 2, "embedding: table", "(num_embeddings, embedding_dim)");
  ATTN_ASSERT_INTEGERS(Ids, "embedding: ids");
  const auto rows = detail::view_as<const T, 2>(table);
  const auto iv = detail::view_as<const detail::id_t<Ids>, rank_v<Ids>>(ids);
  Shape<rank_v<Ids> + 1> shape{};
  std::copy(iv.shape().begin(), iv.shape().end(), shape.begin());
  shape.back() = rows.extent(1);
  auto out = Tensor<T, rank_v<Ids> + 1>::uninitialized(shape);
  embedding(rows, iv, out);
  return out;
}

/// PyTorch's nn.Embedding: the table is the parameter `weight` (num_embeddings, embedding_dim),
/// zero until loaded.
template <class T>
class Embedding {
 public:
  Embedding() = default;
  /// Throws ValueError for a table without rows.
  Embedding(index_t num_embeddings, index_t embedding_dim)
      : weight(Tensor2<T>::zero_pages({num_embeddings, embedding_dim})) {
    if (num_embeddings < 1) {
      throw ValueError(
          message("Embedding", "num_embeddings", "be at least 1", std::to_string(num_embeddings)));
    }
  }

  template <TensorLike Ids>
  auto operator()(const Ids& ids) const {
    if (compressed_) detail::throw_compressed("Embedding");
    return embedding(weight, ids);
  }

  template <TensorLike Ids, TensorLike Out>
  void forward(const Ids& ids, Out&& out) const {
    if (compressed_) detail::throw_compressed("Embedding");
    embedding(weight, ids, out);
  }

  index_t num_embeddings() const {
    return compressed_ ? compressed_.parts()[0]->shape()[0] : weight.extent(0);
  }
  /// The compressed form of the table, or nullptr; InputEmbedding and tied projections accept both
  /// forms.
  const CompressedWeight<Accumulator<T>>* compressed() const {
    return compressed_ ? compressed_.parts()[0].get() : nullptr;
  }

  /// The table as an operand of linear_parts(); empty if there is none.
  auto compressed_parts() const { return compressed_.parts(); }

  /// Marks packed copies of `weight` as stale after, or before, it is written. See Linear::touch().
  void touch() { version_.touch(); }
  const detail::ParameterVersion& version() const { return version_; }

  void visit_parameters(const ParameterVisitor<T>& f) {
    touch();
    visit(*this, f);
  }
  void visit_parameters(const ParameterVisitor<const T>& f) const { visit(*this, f); }

  Tensor2<T> weight;  ///< (num_embeddings, embedding_dim); empty if compressed

 private:
  template <class Self, class Visited>
  static void visit(Self& self, const ParameterVisitor<Visited>& f) {
    if (!f.takes_slot(static_cast<bool>(self.compressed_))) {
      if (self.compressed_) detail::throw_compressed("Embedding");
      return f.visit("weight", self.weight);
    }
    WeightSlot<Visited> slot;
    if (self.compressed_) {
      slot.form = self.compressed_.parts()[0];
      slot.shape = slot.form->shape();
      slot.bytes = slot.form->bytes();
    } else {
      slot.dense = self.weight.view();
      slot.shape = slot.dense.shape();
      slot.bytes = slot.dense.size() * index_t{sizeof(T)};
    }
    if constexpr (!std::is_const_v<Self>) {
      slot.compress = [&self, shape = slot.shape](auto form) {
        if (self.compressed_.set(0, 1, shape, std::move(form))) self.weight = {};
      };
    }
    f("weight", slot);
  }

  detail::ParameterVersion version_;
  detail::CompressedParts<Accumulator<T>> compressed_;
};

ATTN_NAMESPACE_END
