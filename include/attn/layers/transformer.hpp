// Transformer: encoder and decoder, PyTorch's nn.Transformer.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attn/layers/decoder.hpp"
#include "attn/layers/encoder.hpp"

ATTN_NAMESPACE_BEGIN

/// PyTorch's nn.Transformer options; `layer` contains those of its layers.
struct TransformerOptions {
  TransformerLayerOptions layer = {.d_model = 512, .nhead = 8};  ///< layers of both stacks
  index_t num_encoder_layers = 6;                                ///< encoder layers
  index_t num_decoder_layers = 6;                                ///< decoder layers
  bool norm = true;                                              ///< final norm of both stacks
  index_t relative_buckets = 0;  ///< of each stack's self-attention: see TransformerStackOptions
  index_t relative_max_distance = 128;  ///< larger distances share the last bucket

  TransformerStackOptions encoder_options() const {
    return {.num_layers = num_encoder_layers,
            .layer = layer,
            .norm = norm,
            .relative_buckets = relative_buckets,
            .relative_max_distance = relative_max_distance};
  }
  TransformerStackOptions decoder_options() const {
    TransformerStackOptions options = encoder_options();
    options.num_layers = num_decoder_layers;
    options.relative_bidirectional = false;
    return options;
  }
};

/// The options of each attention in one forward call.
template <class T>
struct TransformerCall {
  AttentionOptions<Accumulator<T>> src = {};  ///< encoder self-attention
  AttentionOptions<Accumulator<T>> tgt = {};  ///< decoder self-attention: .mask = causal()
  AttentionOptions<Accumulator<T>> memory =
      {};                    ///< of the decoder's attention to the encoder's result
  Execution execution = {};  ///< of the whole call; replaces that of src, tgt and memory

  ATTN_REFUSE_OTHER_ELEMENTS(TransformerCall)
};

/// src (batch, src_len, d_model) and tgt (batch, tgt_len, d_model) to the shape of tgt.
/// Source: "Attention Is All You Need" (2017), section 3.
template <class T>
class Transformer {
 public:
  Transformer() = default;
  explicit Transformer(const TransformerOptions& options)
      : encoder(options.encoder_options()), decoder(options.decoder_options()) {}

  template <TensorLike Src, TensorLike Tgt>
  Tensor3<T> operator()(const Src& src, const Tgt& tgt, const TransformerCall<T>& call = {}) const {
    ATTN_ASSERT_INPUT(Src, T, 3, "Transformer: src", "(batch, src_len, d_model)", "the layer");
    ATTN_ASSERT_INPUT(Tgt, T, 3, "Transformer: tgt", "(batch, tgt_len, d_model)", "the layer");
    const auto from = detail::view_as<const T, 3>(src), in = detail::view_as<const T, 3>(tgt);
    auto out = Tensor3<T>::uninitialized(in.shape());
    forward(from, in, out, call);
    return out;
  }

  /// Writes to `out`, which may be tgt. Throws ShapeError or ValueError.
  template <TensorLike Src, TensorLike Tgt, TensorLike Out>
  void forward(const Src& src, const Tgt& tgt, Out&& out, TransformerCall<T> call = {}) const {
    ATTN_ASSERT_INPUT(Src, T, 3, "Transformer: src", "(batch, src_len, d_model)", "the layer");
    ATTN_ASSERT_INPUT(Tgt, T, 3, "Transformer: tgt", "(batch, tgt_len, d_model)", "the layer");
    ATTN_ASSERT_OUTPUT(Out, T, 3, "Transformer: out", "(batch, tgt_len, d_model)", "the layer");
    const auto from = detail::view_as<const T, 3>(src);
    Scratch<T> scratch(call.execution.scratch(), from.size());
    const TensorView3<T> memory(scratch.data(), from.shape());
    call.src.execution = call.tgt.execution = call.execution;
    encoder.forward(from, memory, call.src);
    decoder.forward(detail::view_as<const T, 3>(tgt), memory, detail::view_as<T, 3>(out), call.tgt,
                    {.memory = call.memory});
  }

  /// See Linear::pack().
  void pack(MatmulPrecision precision = MatmulPrecision::highest) {
    encoder.pack(precision);
    decoder.pack(precision);
  }

  /// encoder., decoder.
  void visit_parameters(const ParameterVisitor<T>& f) {
    encoder.visit_parameters(f.under("encoder."));
    decoder.visit_parameters(f.under("decoder."));
  }
  void visit_parameters(const ParameterVisitor<const T>& f) const {
    encoder.visit_parameters(f.under("encoder."));
    decoder.visit_parameters(f.under("decoder."));
  }

  Encoder<T> encoder;
  Decoder<T> decoder;
};

ATTN_NAMESPACE_END
