// hessian_vector_product of Gpt.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attn/layers/hessian/encoder_hessian.hpp"
#include "attn/layers/jvp/embedding_jvp.hpp"
#include "attn/models/gpt_backward.hpp"

ATTN_NAMESPACE_BEGIN

/// Adds H vector to `result`, where H is the Hessian of the loss of Gpt for ids (batch, seq) with
/// respect to the parameters. vector and result are models with the same options;
/// gradients_of(model) makes one that is zero. vector may be the model, result neither. For a tied
/// table the embedding's entry of the vector counts. Returns the loss and its tangent along the
/// vector, which loss() returns.
///
/// loss(logits, d_logits) takes the logits (batch, seq, vocab_size) and their tangent, a DualView
/// of const T; it writes the gradient of the loss and the tangent of this gradient to d_logits, a
/// DualView<T>, for example by cross_entropy_backward_jvp(). causal() is added to options.mask.
/// Dropout is not applied; tensors in the options are constant. Throws ShapeError, and ValueError
/// for what trace() refuses, a norm of the embedding and compressed weights; the result is then
/// unchanged.
template <class T, TensorLike Ids, class Loss, class... Functors>
  requires(std::integral<scalar_t<Ids>> && (detail::is_functor<Functors> && ...))
LossTangent hessian_vector_product(const Gpt<T>& model, const Ids& ids, const Loss& loss,
                                   const std::type_identity_t<Gpt<T>>& vector,
                                   std::type_identity_t<Gpt<T>>& result,
                                   AttentionOptions<Accumulator<T>> options = {},
                                   TensorView2<const index_t> position_ids = {},
                                   const Functors&... functors) {
  const auto iv = const_view(ids);
  const Execution execution = options.execution;
  if (model.embedding.options().norm) {
    throw ValueError(
        message("Gpt", "embedding_norm", "be false: its gradients have no tangent", "true"));
  }
  detail::check_products("InputEmbedding", model.embedding, vector.embedding, result.embedding);
  detail::check_products("OutputProjection", model.lm_head, vector.lm_head, result.lm_head);
  HessianTape<T> tape(execution);
  const Traced<T> embedded =
      tape.make({iv.extent(0), iv.extent(1), model.embedding.options().d_model});
  const InputEmbeddingCall call{
      .position_ids = position_ids, .cu_seqlens = options.cu_seqlens_q, .execution = execution};
  jvp(model.embedding, vector.embedding, ids, embedded.x.value, embedded.x.tangent, call);
  InputEmbeddingSaved<T> saved;
  detail::forward_without_dropout(model.embedding, ids, embedded.x.value, saved, call);
  // The embedding is linear in its tables: its backward is constant.
  tape.record([&] {
    detail::backward_without_dropout(model.embedding, embedded.d.tangent, saved, result.embedding,
                                     execution);
  });
  options.mask = options.mask & causal();
  const Traced<T> hidden = trace(tape, model.blocks, vector.blocks, result.blocks, embedded,
                                 options, position_ids, functors...);
  const Linear<T>&head = model.lm_head.linear(), &of_vector = vector.lm_head.linear();
  Linear<T>& of_result = result.lm_head.linear();
  const bool tied = model.lm_head.tied();
  const auto weight_of = [tied](auto& of, auto& own) {
    return tied ? of.embedding.words.weight.view() : own.weight.view();
  };
  if (!weight_of(model, head)) detail::throw_compressed("Gpt");
  const Traced<T> logits =
      tape.linear(hidden, {weight_of(model, head), weight_of(vector, of_vector)},
                  {head.bias.view(), of_vector.bias.view()}, weight_of(result, of_result),
                  of_result.bias.view());
  // In place: capped logits, of which the gradient becomes that of uncapped ones.
  const GptOptions& o = model.options();
  const bool changes = o.logit_scale != 1 || o.logit_softcap > 0;
  if (changes) {
    detail::cap_logits(o, logits.x.value, execution);
    detail::uncap_gradient<T>(o, logits.x.tangent, logits.x.value, logits.x.tangent, execution);
    tape.record([&] {
      const T scale = static_cast<T>(o.logit_scale), cap = static_cast<T>(o.logit_softcap);
      detail::for_dual_rows(
          execution,
          [&](index_t n, const auto& y, const auto& d) {
            for (index_t i = 0; i < n; ++i) {
              const Dual<T> share = cap > 0 ? y[i] / cap : Dual<T>();
              d.set(i, scale * (1 - share * share) * d[i]);
            }
          },
          logits.x, logits.d);
    });
  }
  const LossTangent value = loss(DualView<const T>(logits.x), logits.d);
  tape.run_backward();
  return value;
}

ATTN_NAMESPACE_END
