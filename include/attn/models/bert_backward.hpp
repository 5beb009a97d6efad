// Backward of Bert.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attn/layers/embedding/input_embedding_backward.hpp"
#include "attn/layers/layer_stack_backward.hpp"
#include "attn/models/bert.hpp"

ATTN_NAMESPACE_BEGIN

template <class T>
struct BertSaved {
  InputEmbeddingSaved<T> embeddings;
  LinearSaved<T> projection;
  EncoderSaved<T> encoder;
  DropoutStep dropout;

  index_t bytes() const { return embeddings.bytes() + projection.bytes() + encoder.bytes(); }
};

/// Bert::forward() that saves activations: ids (batch, seq) to hidden states (batch, seq,
/// hidden_size), without the pooler. Throws ShapeError or ValueError.
template <class T, TensorLike Ids, class... Functors>
  requires(std::integral<scalar_t<Ids>> && (detail::is_functor<Functors> && ...))
void forward(const Bert<T>& model, const Ids& ids, Output3<T> out, BertSaved<T>& saved,
             const AttentionOptions<Accumulator<T>>& options = {}, const BertCall& call = {},
             const Functors&... functors) {
  const auto iv = const_view(ids);
  const Shape<3> shape{iv.extent(0), iv.extent(1), model.hidden_size()};
  check_shape("Bert", "out", shape, out.shape());
  Scratch<T> memory(options.execution.scratch(), size_of(shape));
  const TensorView3<T> hidden(memory.data(), shape);
  const TensorView3<T> embedded =
      model.projects()
          ? saved.projection.x.make({shape[0], shape[1], model.projection.in_features()})
          : hidden;
  saved.embeddings.dropout = saved.encoder.dropout = saved.dropout;
  saved.embeddings.dropout.layer = detail::kSourceEmbedding;
  forward(model.embeddings, ids, embedded, saved.embeddings,
          {.position_ids = call.position_ids,
           .cu_seqlens = options.cu_seqlens_q,
           .token_type_ids = call.token_type_ids,
           .execution = options.execution});
  if (model.projects()) {
    forward(model.projection, embedded, hidden, saved.projection, {}, options.execution);
  }
  forward(model.encoder, hidden, out, saved.encoder, detail::with_token_positions(options),
          call.position_ids, functors...);
}

/// d_out (batch, seq, hidden_size); adds the gradients of all parameters but the pooler's to
/// `gradients`. Pass the options, call and functors of forward.
template <class T, class... Functors>
void backward(const Bert<T>& model, Input3<T> d_out, BertSaved<T>& saved,
              Bert<Accumulator<T>>& gradients, const AttentionOptions<Accumulator<T>>& options = {},
              const BertCall& call = {}, const Functors&... functors) {
  const Execution& execution = options.execution;
  Scratch<T> memory(execution.scratch(), d_out.size());
  TensorView3<T> d(memory.data(), d_out.shape());
  backward(model.encoder, d_out, saved.encoder, d, gradients.encoder,
           detail::with_token_positions(options), call.position_ids, functors...);
  Scratch<T> narrow(execution.scratch(), saved.projection.x.view().size());
  if (model.projects()) {
    const TensorView3<T> d_embedded(narrow.data(), saved.projection.x.view().shape());
    backward(model.projection, d, saved.projection, d_embedded, gradients.projection, {},
             execution);
    d = d_embedded;
  }
  backward(model.embeddings, d, saved.embeddings, gradients.embeddings, execution);
}

ATTN_NAMESPACE_END
