// Backward of InputEmbedding and OutputProjection.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attn/layers/embedding/embedding_backward.hpp"
#include "attn/layers/embedding/input_embedding.hpp"
#include "attn/layers/embedding/output_projection.hpp"
#include "attn/layers/linear_backward.hpp"
#include "attn/layers/module/dropout.hpp"
#include "attn/layers/norm_backward.hpp"

ATTN_NAMESPACE_BEGIN

template <class T>
struct InputEmbeddingSaved {
  Saved<index_t, 2> ids, positions, token_types;  ///< (batch, seq), rows of the tables
  NormSaved<T> norm;                              ///< where the embedding has one
  DropoutStep dropout;

  index_t bytes() const {
    return ids.bytes() + positions.bytes() + token_types.bytes() + norm.bytes();
  }
};

namespace detail {

/// InputEmbedding::forward() that saves activations, without dropout.
template <class T, TensorLike Ids>
void forward_without_dropout(const InputEmbedding<T>& layer, const Ids& ids,
                             const TensorView3<T>& out, InputEmbeddingSaved<T>& saved,
                             const InputEmbeddingCall& call) {
  if (layer.words.compressed() != nullptr) throw_compressed("InputEmbedding");
  layer.forward(ids, out, call);
  const auto iv = const_view(ids);
  const index_t batch = iv.extent(0), seq = iv.extent(1), dim = out.extent(2);
  const TensorView2<index_t> kept = saved.ids.make({batch, seq}),
                             positions = saved.positions.make({batch, seq}),
                             types = saved.token_types.make({batch, seq});
  for (index_t b = 0; b < batch; ++b) {
    if (!call.position_ids) {
      layer.count_positions(TensorView2<const scalar_t<Ids>>(iv).select(0, b), call,
                            positions.data() + b * seq);
    }
    for (index_t i = 0; i < seq; ++i) {
      kept(b, i) = static_cast<index_t>(iv(b, i));
      if (call.position_ids) positions(b, i) = call.position_ids(b, i);
      positions(b, i) += layer.options().position_offset;
      types(b, i) = call.token_type_ids ? call.token_type_ids(b, i) : 0;
    }
  }
  if (!layer.options().norm) return;
  // Recomputes the sum before the norm, which forward did not save.
  using Acc = Accumulator<T>;
  const Acc scale = layer.options().template word_factor<Acc>();
  const TensorView3<T> sum = saved.norm.x.make({batch, seq, dim});
  for (index_t b = 0; b < batch; ++b) {
    for (index_t i = 0; i < seq; ++i) {
      for (index_t x = 0; x < dim; ++x) {
        Acc value = scale * layer.words.weight(kept(b, i), x);
        if (layer.positions.weight) value += layer.positions.weight(positions(b, i), x);
        if (layer.token_types.weight) value += layer.token_types.weight(types(b, i), x);
        sum(b, i, x) = static_cast<T>(value);
      }
    }
  }
}

/// backward() of forward_without_dropout().
template <class T>
void backward_without_dropout(const InputEmbedding<T>& layer, Input3<T> d_out,
                              const InputEmbeddingSaved<T>& saved,
                              InputEmbedding<Accumulator<T>>& gradients,
                              const Execution& execution) {
  using Acc = Accumulator<T>;
  Scratch<T> memory(execution.scratch(), layer.options().norm ? d_out.size() : 0);
  if (layer.options().norm) {
    const TensorView3<T> d_sum(memory.data(), d_out.shape());
    backward(static_cast<const Norm<T>&>(layer.norm), d_out, saved.norm, d_sum, gradients.norm, {},
             execution);
    d_out = d_sum;
  }
  const auto add = [&](Embedding<Acc>& table, const TensorView2<const index_t>& ids, Acc scale) {
    if (!table.weight) return;
    add_to_rows<T>(d_out, table.weight.view(), scale, execution, ids);
  };
  add(gradients.words, saved.ids.view(), layer.options().template word_factor<Acc>());
  if (layer.options().positions == Positions::learned) {
    add(gradients.positions, saved.positions.view(), Acc{1});
  }
  add(gradients.token_types, saved.token_types.view(), Acc{1});
}

}  // namespace detail

/// InputEmbedding::forward() that saves activations: ids (batch, seq), out (batch, seq, d_model).
/// Throws ShapeError or ValueError.
template <class T, TensorLike Ids>
  requires std::integral<scalar_t<Ids>>
void forward(const InputEmbedding<T>& layer, const Ids& ids, Output3<T> out,
             InputEmbeddingSaved<T>& saved, const InputEmbeddingCall& call = {}) {
  detail::forward_without_dropout(layer, ids, out, saved, call);
  const detail::DropoutPlace place{
      .p = layer.options().dropout, .at = saved.dropout, .place = detail::kAfterEmbedding};
  if (place) detail::apply_dropout<T>(place, out, out, {}, call.execution);
}

/// d_out (batch, seq, d_model); adds the gradients of the tables and of the norm to `gradients`.
/// Sinusoidal positions have none.
template <class T>
void backward(const InputEmbedding<T>& layer, Input3<T> d_out, const InputEmbeddingSaved<T>& saved,
              InputEmbedding<Accumulator<T>>& gradients, const Execution& execution = {}) {
  const detail::DropoutPlace place{
      .p = layer.options().dropout, .at = saved.dropout, .place = detail::kAfterEmbedding};
  Scratch<T> memory(execution.scratch(), place ? d_out.size() : 0);
  if (place) {
    const TensorView3<T> d_dropped(memory.data(), d_out.shape());
    detail::apply_dropout<T>(place, d_out, d_dropped, {}, execution);
    d_out = d_dropped;
  }
  detail::backward_without_dropout(layer, d_out, saved, gradients, execution);
}

/// OutputProjection::forward() that saves activations: x (batch, seq, d_model), out (batch, seq,
/// vocab_size).
template <class T>
void forward(const OutputProjection<T>& layer, Input3<T> x,
             std::type_identity_t<TensorView2<const T>> table, Output3<Accumulator<T>> out,
             LinearSaved<T>& saved, const Execution& execution = {}) {
  const Linear<T>& own = layer.linear();
  if (!layer.tied() && !own.weight) detail::throw_compressed("OutputProjection");
  linear(saved.x.keep(x), layer.tied() ? table : own.weight.view(), own.bias.view(), out,
         Activation::none, {}, execution);
}

/// Computes d_x (batch, seq, d_model). If tied, the gradient of the weight is added to d_table
/// (vocab_size, d_model), the gradient of the embedding; that of a bias to `gradients`.
template <class T>
void backward(const OutputProjection<T>& layer, Input3<Accumulator<T>> d_out,
              std::type_identity_t<TensorView2<const T>> table, const LinearSaved<T>& saved,
              Output3<T> d_x, OutputProjection<Accumulator<T>>& gradients,
              std::type_identity_t<TensorView2<Accumulator<T>>> d_table,
              const Execution& execution = {}) {
  constexpr bool rounds = !std::same_as<T, Accumulator<T>>;
  Scratch<T> memory(execution.scratch(), rounds ? d_out.size() : 0);
  TensorView3<const T> d;
  if constexpr (rounds) {
    const TensorView3<T> rounded(memory.data(), d_out.shape());
    convert(d_out, rounded, execution);
    d = rounded;
  } else {
    d = d_out;
  }
  if (!layer.tied()) {
    return backward(layer.linear(), d, saved, d_x, gradients.linear(), {}, execution);
  }
  linear_backward(d, saved.x.view(), table, d_x, d_table, gradients.linear().bias.view(), {},
                  execution);
}

ATTN_NAMESPACE_END
