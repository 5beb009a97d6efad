// Backward of Seq2SeqTransformer.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attn/layers/embedding/input_embedding_backward.hpp"
#include "attn/layers/layer_stack_backward.hpp"
#include "attn/models/seq2seq_transformer.hpp"

ATTN_NAMESPACE_BEGIN

template <class T>
struct Seq2SeqSaved {
  InputEmbeddingSaved<T> src_embedding, tgt_embedding;
  TransformerSaved<T> transformer;
  LinearSaved<T> generator;
  Saved<bool, 2> src_padding, tgt_padding;
  DropoutStep dropout;

  index_t bytes() const {
    return src_embedding.bytes() + tgt_embedding.bytes() + transformer.bytes() + generator.bytes() +
           src_padding.bytes() + tgt_padding.bytes();
  }
};

namespace detail {

/// The masks of a call, from the padding in `saved`.
template <class T>
TransformerCall<T> seq2seq_call(const Seq2SeqOptions& options, const Seq2SeqSaved<T>& saved,
                                const Execution& execution) {
  TransformerCall<T> call;
  call.tgt.mask = causal();
  if (options.pad_id) {
    call.src.mask = key_padding_mask(saved.src_padding.view());
    call.memory.mask = call.src.mask;
  }
  if (options.tgt_pad_id()) {
    call.tgt.mask = causal() & key_padding_mask(saved.tgt_padding.view());
  }
  call.src.masked_row = call.tgt.masked_row = call.memory.masked_row = options.masked_row;
  call.execution = execution;
  return call;
}

}  // namespace detail

/// Seq2SeqTransformer::forward() that saves activations: src (batch, src_len) and tgt (batch,
/// tgt_len) to logits (batch, tgt_len, tgt_vocab_size). Throws ShapeError or ValueError.
template <class T, TensorLike Src, TensorLike Tgt>
  requires(std::integral<scalar_t<Src>> && std::integral<scalar_t<Tgt>>)
void forward(const Seq2SeqTransformer<T>& model, const Src& src, const Tgt& tgt,
             Output3<Accumulator<T>> logits, Seq2SeqSaved<T>& saved,
             const Execution& execution = {}) {
  const Seq2SeqOptions& options = model.options();
  const auto sv = const_view(src);
  const auto tv = const_view(tgt);
  const index_t dim = options.transformer.layer.d_model;
  const Shape<3> src_shape{sv.extent(0), sv.extent(1), dim},
      tgt_shape{tv.extent(0), tv.extent(1), dim};
  check_shape("Seq2SeqTransformer", "logits",
              Shape<3>{tgt_shape[0], tgt_shape[1], options.tgt_vocab_size}, logits.shape());
  if (options.pad_id) {
    find_padding(src, *options.pad_id, saved.src_padding.make(sv.shape()));
  }
  if (options.tgt_pad_id()) {
    find_padding(tgt, *options.pad_id, saved.tgt_padding.make(tv.shape()));
  }
  Scratch<T> memory(execution.scratch(), size_of(src_shape) + size_of(tgt_shape));
  const TensorView3<T> source(memory.data(), src_shape),
      target(memory.data() + source.size(), tgt_shape);
  saved.src_embedding.dropout = saved.tgt_embedding.dropout = saved.transformer.dropout =
      saved.dropout;
  saved.src_embedding.dropout.layer = detail::kSourceEmbedding;
  saved.tgt_embedding.dropout.layer = detail::kTargetEmbedding;
  forward(model.src_embedding, src, source, saved.src_embedding, {.execution = execution});
  forward(model.tgt_embedding, tgt, target, saved.tgt_embedding, {.execution = execution});
  const TensorView3<T> hidden = saved.generator.x.make(tgt_shape);
  forward(model.transformer, source, target, hidden, saved.transformer,
          detail::seq2seq_call(options, saved, execution));
  const Accumulator<T> output_scale = static_cast<Accumulator<T>>(options.output_scale);
  if (output_scale != 1) scale(hidden, output_scale, hidden);
  forward(model.generator, hidden, model.tgt_embedding.words.weight.view(), logits, saved.generator,
          execution);
}

/// d_logits (batch, tgt_len, tgt_vocab_size); adds the gradients of all parameters to `gradients`.
template <class T>
void backward(const Seq2SeqTransformer<T>& model, Input3<Accumulator<T>> d_logits,
              Seq2SeqSaved<T>& saved, Seq2SeqTransformer<Accumulator<T>>& gradients,
              const Execution& execution = {}) {
  const Shape<3> src_shape = saved.transformer.memory.view().shape(),
                 tgt_shape = saved.generator.x.view().shape();
  Scratch<T> memory(execution.scratch(), size_of(src_shape) + size_of(tgt_shape));
  const TensorView3<T> d_src(memory.data(), src_shape),
      d_tgt(memory.data() + d_src.size(), tgt_shape);
  backward(model.generator, d_logits, model.tgt_embedding.words.weight.view(), saved.generator,
           d_tgt, gradients.generator, gradients.tgt_embedding.words.weight.view(), execution);
  const Accumulator<T> output_scale = static_cast<Accumulator<T>>(model.options().output_scale);
  if (output_scale != 1) scale(d_tgt, output_scale, d_tgt);
  backward(model.transformer, d_tgt, saved.transformer, d_src, d_tgt, gradients.transformer,
           detail::seq2seq_call(model.options(), saved, execution));
  backward(model.src_embedding, d_src, saved.src_embedding, gradients.src_embedding, execution);
  backward(model.tgt_embedding, d_tgt, saved.tgt_embedding, gradients.tgt_embedding, execution);
}

ATTN_NAMESPACE_END
