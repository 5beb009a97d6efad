// Backward of Gpt.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attn/layers/embedding/input_embedding_backward.hpp"
#include "attn/layers/layer_stack_backward.hpp"
#include "attn/models/gpt.hpp"

ATTN_NAMESPACE_BEGIN

template <class T>
struct GptSaved {
  InputEmbeddingSaved<T> embedding;
  EncoderSaved<T> blocks;
  LinearSaved<T> lm_head;
  Saved<T, 3> embedded;             ///< used only if there are no layers
  Saved<Accumulator<T>, 3> logits;  ///< used only with logit_softcap
  DropoutStep dropout;

  index_t bytes() const {
    return embedding.bytes() + blocks.bytes() + lm_head.bytes() + embedded.bytes() + logits.bytes();
  }
};

namespace detail {

/// Backward and tangent of cap_logits(), whose result is y: d_out = scale (1 - (y / softcap)^2)
/// d_logits. Without softcap y is not read.
template <class T>
void uncap_gradient(const GptOptions& options, const TensorView3<const T>& d_logits,
                    const TensorView3<const T>& y, const TensorView3<T>& d_out,
                    const Execution& execution) {
  const T scale = static_cast<T>(options.logit_scale), cap = static_cast<T>(options.logit_softcap);
  const index_t seq = d_out.extent(1);
  for_rows(execution.threads(), d_out.extent(0) * seq, d_out.extent(2), [&](index_t row) {
    const index_t b = row / seq, i = row % seq;
    for (index_t x = 0; x < d_out.extent(2); ++x) {
      const T share = cap > 0 ? y(b, i, x) / cap : T{0};
      d_out(b, i, x) = scale * (1 - share * share) * d_logits(b, i, x);
    }
  });
}

}  // namespace detail

/// Gpt::forward() that saves activations: ids (batch, seq) to logits (batch, seq, vocab_size).
/// causal() is added to options.mask. Throws ShapeError or ValueError.
template <class T, TensorLike Ids, class... Functors>
  requires(std::integral<scalar_t<Ids>> && (detail::is_functor<Functors> && ...))
void forward(const Gpt<T>& model, const Ids& ids, Output3<Accumulator<T>> logits,
             GptSaved<T>& saved, AttentionOptions<Accumulator<T>> options = {},
             TensorView2<const index_t> position_ids = {}, const Functors&... functors) {
  const auto iv = const_view(ids);
  const Shape<3> shape{iv.extent(0), iv.extent(1), model.embedding.options().d_model};
  check_shape("Gpt", "logits", Shape<3>{shape[0], shape[1], model.vocab_size()}, logits.shape());
  saved.embedding.dropout = saved.blocks.dropout = saved.dropout;
  saved.embedding.dropout.layer = detail::kSourceEmbedding;
  saved.blocks.resize(model.blocks.num_layers());
  const TensorView3<T> embedded =
      (model.blocks.layers.empty() ? saved.embedded : saved.blocks.input(model.blocks, 0))
          .make(shape);
  forward(model.embedding, ids, embedded, saved.embedding,
          {.position_ids = position_ids,
           .cu_seqlens = options.cu_seqlens_q,
           .execution = options.execution});
  options.mask = options.mask & causal();
  const TensorView3<T> hidden = saved.lm_head.x.make(shape);
  forward(model.blocks, embedded, hidden, saved.blocks, options, position_ids, functors...);
  forward(model.lm_head, hidden, model.embedding.words.weight.view(), logits, saved.lm_head,
          options.execution);
  detail::cap_logits(model.options(), logits, options.execution);
  if (model.options().logit_softcap > 0) copy(logits, saved.logits.make(logits.shape()));
}

/// d_logits (batch, seq, vocab_size), of type Accumulator<T> like the logits; adds the gradients of
/// all parameters to `gradients`, for a tied table from both uses.
template <class T, class... Functors>
void backward(const Gpt<T>& model, Input3<Accumulator<T>> d_logits, GptSaved<T>& saved,
              Gpt<Accumulator<T>>& gradients, AttentionOptions<Accumulator<T>> options = {},
              TensorView2<const index_t> position_ids = {}, const Functors&... functors) {
  const Execution execution = options.execution;
  const Shape<3> shape{d_logits.extent(0), d_logits.extent(1), model.embedding.options().d_model};
  Scratch<T> memory(execution.scratch(), size_of(shape));
  const TensorView3<T> d(memory.data(), shape);
  const bool changed = model.options().logit_scale != 1 || model.options().logit_softcap > 0;
  using Logit = Accumulator<T>;
  Scratch<Logit> uncapped(execution.scratch(), changed ? d_logits.size() : 0);
  if (changed) {
    const TensorView3<Logit> d_uncapped(uncapped.data(), d_logits.shape());
    detail::uncap_gradient<Logit>(model.options(), d_logits, saved.logits.view(), d_uncapped,
                                  execution);
    d_logits = d_uncapped;
  }
  backward(model.lm_head, d_logits, model.embedding.words.weight.view(), saved.lm_head, d,
           gradients.lm_head, gradients.embedding.words.weight.view(), execution);
  options.mask = options.mask & causal();
  backward(model.blocks, d, saved.blocks, d, gradients.blocks, options, position_ids, functors...);
  backward(model.embedding, d, saved.embedding, gradients.embedding, execution);
}

ATTN_NAMESPACE_END
