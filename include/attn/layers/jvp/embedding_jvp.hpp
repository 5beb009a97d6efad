// Tangents (JVP) of embedding, rotary_embedding, InputEmbedding and OutputProjection.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attn/layers/attention/rotary.hpp"
#include "attn/layers/embedding/input_embedding_backward.hpp"
#include "attn/layers/jvp/linear_jvp.hpp"

ATTN_NAMESPACE_BEGIN

/// The tangent of embedding(table, ids), which is linear in the table: d_out = rows `ids` of
/// d_table. Shapes and errors as in embedding().
template <TensorLike DTable, TensorLike Ids, TensorLike DOut>
void embedding_jvp(const DTable& d_table, const Ids& ids, DOut&& d_out) {
  embedding(d_table, ids, d_out);
}

/// The tangent of rotary_embedding(x, cos, sin, position_ids), which is linear in x: d_x rotated.
/// Shapes and errors as in rotary_embedding(); d_out may be d_x.
template <TensorLike DX, TensorLike Cos, TensorLike Sin, TensorLike Ids, TensorLike DOut>
void rotary_embedding_jvp(const DX& d_x, const Cos& cos, const Sin& sin, const Ids& position_ids,
                          DOut&& d_out, RotaryPairs pairs = RotaryPairs::halves,
                          const Execution& execution = {}) {
  rotary_embedding(d_x, cos, sin, position_ids, d_out, pairs, execution);
}

/// ids (batch, seq), out and d_out (batch, seq, d_model). d_out follows from the tangents of the
/// tables and the norm; sinusoidal positions are constant. Throws ShapeError or ValueError.
template <class T, TensorLike Ids>
  requires std::integral<scalar_t<Ids>>
void jvp(const InputEmbedding<T>& layer, const std::type_identity_t<InputEmbedding<T>>& tangents,
         const Ids& ids, Output3<T> out, Output3<T> d_out, const InputEmbeddingCall& call = {}) {
  static_assert(std::same_as<T, Accumulator<T>>, "jvp: a layer must be of float or double");
  check_shape("InputEmbedding", "d_out", out.shape(), d_out.shape());
  const index_t seq = out.extent(1), dim = out.extent(2);
  const auto table_of = [&](std::string_view name, const Embedding<T>& table,
                            const Embedding<T>& tangent) {
    const TensorView2<const T> view = tangent.weight;
    if (view) check_shape("InputEmbedding", name, table.weight.shape(), view.shape());
    return view;
  };
  const auto words = table_of("tangents.words", layer.words, tangents.words);
  const auto types = table_of("tangents.token_types", layer.token_types, tangents.token_types);
  const auto positions = layer.options().positions == Positions::learned
                             ? table_of("tangents.positions", layer.positions, tangents.positions)
                             : TensorView2<const T>();
  if (layer.options().norm) {
    detail::check_norm_jvp<T, 3>("InputEmbedding", out.shape(), d_out, d_out, layer.norm.weight,
                                 tangents.norm.weight, tangents.norm.bias);
  }
  InputEmbeddingSaved<T> saved;
  detail::forward_without_dropout(layer, ids, out, saved, call);
  const TensorView2<const index_t> word_ids = saved.ids.view(), type_ids = saved.token_types.view(),
                                   position_ids = saved.positions.view();
  const T scale = layer.options().template word_factor<T>();
  detail::for_rows(call.execution.threads(), out.extent(0) * seq, dim, [&](index_t row) {
    const index_t b = row / seq, i = row % seq;
    for (index_t x = 0; x < dim; ++x) {
      T sum = words ? scale * words(word_ids(b, i), x) : T{0};
      if (positions) sum += positions(position_ids(b, i), x);
      if (types) sum += types(type_ids(b, i), x);
      d_out(b, i, x) = sum;
    }
  });
  if (!layer.options().norm) return;
  layer_norm_jvp(saved.norm.x.view(), d_out, layer.norm.weight, tangents.norm.weight,
                 tangents.norm.bias, layer.norm.eps, d_out, call.execution);
}

/// x and d_x (batch, seq, d_model), out and d_out (batch, seq, vocab_size); table and d_table
/// (vocab_size, d_model), the weight of the embedding and its tangent, or empty, are used if the
/// projection is tied. Throws ShapeError.
template <class T>
void jvp(const OutputProjection<T>& layer,
         const std::type_identity_t<OutputProjection<T>>& tangents, Input3<T> x, Input3<T> d_x,
         std::type_identity_t<TensorView2<const T>> table,
         std::type_identity_t<TensorView2<const T>> d_table, Output3<T> out, Output3<T> d_out,
         const Execution& execution = {}) {
  if (!layer.tied()) {
    return jvp(layer.linear(), tangents.linear(), x, d_x, out, d_out, execution);
  }
  static_assert(std::same_as<T, Accumulator<T>>, "jvp: a layer must be of float or double");
  if (!table) detail::throw_compressed("OutputProjection");
  linear(x, table, layer.linear().bias.view(), out, Activation::none, {}, execution);
  linear_jvp(x, d_x, table, d_table, tangents.linear().bias.view(), d_out, {}, execution);
}

ATTN_NAMESPACE_END
