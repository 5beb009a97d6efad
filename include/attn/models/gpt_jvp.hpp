// Tangent (JVP) of Gpt.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attn/layers/jvp/embedding_jvp.hpp"
#include "attn/layers/jvp/encoder_jvp.hpp"
#include "attn/models/gpt_backward.hpp"

ATTN_NAMESPACE_BEGIN

/// Computes logits (batch, seq, vocab_size) of ids (batch, seq), and their tangent d_logits.
/// `tangents` holds the tangents of the parameters: a model with the same options, which
/// gradients_of(model) makes with zeros. For a tied table the embedding's tangent counts. causal()
/// is added to options.mask. Throws ShapeError, and ValueError for layers with latent attention, a
/// short convolution, the gated delta rule or experts, and for compressed weights.
template <class T, TensorLike Ids, class... Functors>
  requires(std::integral<scalar_t<Ids>> && (detail::is_functor<Functors> && ...))
void jvp(const Gpt<T>& model, const std::type_identity_t<Gpt<T>>& tangents, const Ids& ids,
         Output3<T> logits, Output3<T> d_logits, AttentionOptions<Accumulator<T>> options = {},
         TensorView2<const index_t> position_ids = {}, const Functors&... functors) {
  const auto iv = const_view(ids);
  const Execution execution = options.execution;
  const Shape<3> shape{iv.extent(0), iv.extent(1), model.embedding.options().d_model};
  check_shape("Gpt", "logits", Shape<3>{shape[0], shape[1], model.vocab_size()}, logits.shape());
  check_shape("Gpt", "d_logits", logits.shape(), d_logits.shape());
  const detail::DualScratch<T> memory(shape, execution);
  const auto [hidden, d_hidden] = memory.view();
  jvp(model.embedding, tangents.embedding, ids, hidden, d_hidden,
      {.position_ids = position_ids, .cu_seqlens = options.cu_seqlens_q, .execution = execution});
  options.mask = options.mask & causal();
  jvp(model.blocks, tangents.blocks, hidden, d_hidden, hidden, d_hidden, options, position_ids,
      functors...);
  jvp(model.lm_head, tangents.lm_head, hidden, d_hidden, model.embedding.words.weight.view(),
      tangents.embedding.words.weight.view(), logits, d_logits, execution);
  if (model.options().logit_scale == 1 && model.options().logit_softcap == 0) return;
  detail::cap_logits(model.options(), logits, execution);
  detail::uncap_gradient<T>(model.options(), d_logits, logits, d_logits, execution);
}

ATTN_NAMESPACE_END
