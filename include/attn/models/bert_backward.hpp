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
  EncoderSaved<T> encoder;
  DropoutStep dropout;

  index_t bytes() const { return embeddings.bytes() + encoder.bytes(); }
};

/// Bert::forward() that saves activations: ids (batch, seq) to hidden states (batch, seq,
/// hidden_size), without the pooler. Throws ShapeError or ValueError.
template <class T, TensorLike Ids, class... Functors>
  requires(std::integral<scalar_t<Ids>> && (detail::is_functor<Functors> && ...))
void forward(const Bert<T>& model, const Ids& ids, Output3<T> out, BertSaved<T>& saved,
             const AttentionOptions<Accumulator<T>>& options = {}, const BertCall& call = {},
             const Functors&... functors) {
  Scratch<T> memory(options.execution.scratch(), out.size());
  const TensorView3<T> embedded(memory.data(), out.shape());
  saved.embeddings.dropout = saved.encoder.dropout = saved.dropout;
  saved.embeddings.dropout.layer = detail::kSourceEmbedding;
  forward(model.embeddings, ids, embedded, saved.embeddings,
          {.position_ids = call.position_ids,
           .cu_seqlens = options.cu_seqlens_q,
           .token_type_ids = call.token_type_ids,
           .execution = options.execution});
  forward(model.encoder, embedded, out, saved.encoder, options, {}, functors...);
}

/// d_out (batch, seq, hidden_size); adds the gradients of all parameters but the pooler's to
/// `gradients`.
template <class T, class... Functors>
void backward(const Bert<T>& model, Input3<T> d_out, BertSaved<T>& saved,
              Bert<Accumulator<T>>& gradients, const AttentionOptions<Accumulator<T>>& options = {},
              const Functors&... functors) {
  Scratch<T> memory(options.execution.scratch(), d_out.size());
  const TensorView3<T> d(memory.data(), d_out.shape());
  backward(model.encoder, d_out, saved.encoder, d, gradients.encoder, options, {}, functors...);
  backward(model.embeddings, d, saved.embeddings, gradients.embeddings, options.execution);
}

ATTN_NAMESPACE_END
