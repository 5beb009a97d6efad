// Seq2SeqTransformer: an encoder-decoder from token ids to logits.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attn/core/arithmetic.hpp"
#include "attn/layers/embedding/input_embedding.hpp"
#include "attn/layers/embedding/output_projection.hpp"
#include "attn/layers/embedding/padding.hpp"
#include "attn/layers/transformer.hpp"

ATTN_NAMESPACE_BEGIN

struct Seq2SeqOptions {
  index_t src_vocab_size = 0;                   ///< source ids are below it
  index_t tgt_vocab_size = 0;                   ///< target ids are below it
  TransformerOptions transformer = {};          ///< both stacks
  Positions positions = Positions::sinusoidal;  ///< position embedding
  index_t max_positions = 512;                  ///< of sinusoidal and learned positions
  SinusoidalForm sinusoidal_form = SinusoidalForm::interleaved;  ///< of sinusoidal positions
  index_t position_offset = 0;  ///< rows of the position table before position 0 (BART: 2)
  bool skip_padding = false;    ///< padding has no position: see InputEmbeddingOptions
  bool scale_embedding = true;  ///< multiply embeddings by sqrt(d_model)
  bool embedding_norm = false;  ///< norm before the first layer of each stack
  bool tied = false;  ///< compute logits with the target's embedding instead of a separate weight
  bool output_bias = false;  ///< bias of the logits
  double output_scale = 1;   ///< factor of the decoder's output: 1 / sqrt(d_model) in tied T5
  std::optional<index_t> pad_id = {};  ///< padding id; padding tokens are masked out
  /// False: pad_id is an ordinary target token, as T5's start token.
  bool pad_target = true;
  MaskedRow masked_row = MaskedRow::zero;  ///< output of fully masked queries

  InputEmbeddingOptions embedding_options(index_t vocab_size) const {
    const TransformerLayerOptions& layer = transformer.layer;
    return {.vocab_size = vocab_size,
            .d_model = layer.d_model,
            .positions = positions,
            .max_positions = max_positions,
            .sinusoidal_form = sinusoidal_form,
            .position_offset = position_offset,
            .skip_padding = skip_padding,
            .scale = scale_embedding,
            .norm = embedding_norm,
            .layer_norm_eps = layer.layer_norm_eps,
            .dropout = layer.dropout};
  }
  std::optional<index_t> tgt_pad_id() const { return pad_target ? pad_id : std::nullopt; }
};

/// src (batch, src_len) and tgt (batch, tgt_len) of any integer type to logits (batch, tgt_len,
/// tgt_vocab_size). A target token sees itself and those before it; padding is masked out. Source:
/// "Attention Is All You Need" (2017).
template <class T>
class Seq2SeqTransformer {
 public:
  Seq2SeqTransformer() = default;
  explicit Seq2SeqTransformer(const Seq2SeqOptions& options)
      : src_embedding(options.embedding_options(options.src_vocab_size)),
        tgt_embedding(options.embedding_options(options.tgt_vocab_size)),
        transformer(options.transformer),
        generator(options.transformer.layer.d_model, options.tgt_vocab_size, options.tied,
                  options.output_bias),
        options_(options) {
    if (!std::isfinite(options.output_scale)) {
      throw ValueError(message("Seq2SeqTransformer", "output_scale", "be finite",
                               to_string(options.output_scale)));
    }
  }

  const Seq2SeqOptions& options() const { return options_; }

  template <TensorLike Src, TensorLike Tgt>
  Tensor3<Accumulator<T>> operator()(const Src& src, const Tgt& tgt,
                                     const Execution& execution = {}) const {
    ATTN_ASSERT_IDS(Src, "Seq2SeqTransformer: src");
    ATTN_ASSERT_IDS(Tgt, "Seq2SeqTransformer: tgt");
    const auto sv = detail::view_as<const detail::id_t<Src>, 2>(src);
    const auto tv = detail::view_as<const detail::id_t<Tgt>, 2>(tgt);
    auto out = Tensor3<Accumulator<T>>::uninitialized(
        {tv.extent(0), tv.extent(1), options_.tgt_vocab_size});
    forward(sv, tv, out, execution);
    return out;
  }

  /// Throws ShapeError or ValueError.
  template <TensorLike Src, TensorLike Tgt, TensorLike Out>
  void forward(const Src& src, const Tgt& tgt, Out&& out, const Execution& execution = {}) const {
    ATTN_ASSERT_IDS(Src, "Seq2SeqTransformer: src");
    ATTN_ASSERT_IDS(Tgt, "Seq2SeqTransformer: tgt");
    ATTN_ASSERT_OUTPUT(Out, Accumulator<T>, 3, "Seq2SeqTransformer: out",
                       "(batch, tgt_len, tgt_vocab_size)",
                       "logits, which are float where the model has 16 bits");
    const auto sv = detail::view_as<const detail::id_t<Src>, 2>(src);
    const auto tv = detail::view_as<const detail::id_t<Tgt>, 2>(tgt);
    const Shape<3> shape{sv.extent(0), sv.extent(1), options_.transformer.layer.d_model};
    Scratch<T> scratch(execution.scratch(), size_of(shape));
    const TensorView3<T> memory(scratch.data(), shape);
    encode(sv, memory, execution);
    decode(tv, memory, sv, detail::view_as<Accumulator<T>, 3>(out), {}, execution);
  }

  /// Encodes src (batch, src_len) to memory (batch, src_len, d_model).
  template <TensorLike Src, TensorLike Memory>
  void encode(const Src& src, Memory&& memory, const Execution& execution = {}) const {
    ATTN_ASSERT_IDS(Src, "Seq2SeqTransformer: src");
    ATTN_ASSERT_OUTPUT(Memory, T, 3, "Seq2SeqTransformer: memory", "(batch, src_len, d_model)",
                       "the model");
    const auto from = detail::view_as<const detail::id_t<Src>, 2>(src);
    const auto to = detail::view_as<T, 3>(memory);
    const Padding padding(from, options_.pad_id, execution);
    Scratch<T> scratch(execution.scratch(), to.size());
    const TensorView3<T> embedded(scratch.data(), to.shape());
    src_embedding.forward(from, embedded, {.execution = execution});
    transformer.encoder.forward(
        embedded, to,
        {.mask = padding.mask(), .masked_row = options_.masked_row, .execution = execution});
  }

  /// Allocates caches for `capacity` target tokens and src_len source tokens.
  std::vector<DecoderLayerCache<T>> make_caches(index_t batch, index_t capacity, index_t src_len,
                                                std::optional<DType> element = {}) const {
    return transformer.decoder.make_caches(batch, capacity, src_len, element);
  }

  /// Decodes tgt (batch, n), with memory from encode(src) and src itself, whose padding is masked
  /// out, to logits (batch, n, tgt_vocab_size), or (batch, 1, tgt_vocab_size) for the last token
  /// only. With caches tgt holds the tokens after those in the caches, and `tgt_padding` (batch,
  /// all tokens) marks the padding among all of them; default: none.
  template <TensorLike Tgt, TensorLike Memory, TensorLike Src, TensorLike Out>
  void decode(const Tgt& tgt, const Memory& memory, const Src& src, Out&& out,
              std::span<DecoderLayerCache<T>> caches = {}, const Execution& execution = {},
              TensorView2<const bool> tgt_padding = {}) const {
    ATTN_ASSERT_IDS(Src, "Seq2SeqTransformer: src");
    ATTN_ASSERT_IDS(Tgt, "Seq2SeqTransformer: tgt");
    ATTN_ASSERT_INPUT(Memory, T, 3, "Seq2SeqTransformer: memory", "(batch, src_len, d_model)",
                      "the model");
    ATTN_ASSERT_OUTPUT(Out, Accumulator<T>, 3, "Seq2SeqTransformer: out",
                       "(batch, tgt_len, tgt_vocab_size)",
                       "logits, which are float where the model has 16 bits");
    const auto sv = detail::view_as<const detail::id_t<Src>, 2>(src);
    const auto tv = detail::view_as<const detail::id_t<Tgt>, 2>(tgt);
    const auto encoded = detail::view_as<const T, 3>(memory);
    const auto ov = detail::view_as<Accumulator<T>, 3>(out);
    const index_t batch = tv.extent(0), seq = tv.extent(1);
    const index_t rows = ov.extent(1) == 1 ? (std::min)(seq, index_t{1}) : seq;
    check_shape("Seq2SeqTransformer", "out", Shape<3>{batch, rows, options_.tgt_vocab_size},
                ov.shape());
    const Padding src_padding(sv, options_.pad_id, execution);
    const Padding found(tv, caches.empty() ? options_.tgt_pad_id() : std::nullopt, execution);
    const Mask tgt_mask = tgt_padding ? key_padding_mask(tgt_padding) : found.mask();
    const index_t dim = options_.transformer.layer.d_model;
    Scratch<T> scratch(execution.scratch(), batch * seq * dim);
    const TensorView3<T> hidden(scratch.data(), {batch, seq, dim});
    tgt_embedding.forward(
        tv, hidden,
        {.first_position = caches.empty() ? 0 : caches[0].self.length(), .execution = execution});
    detail::CacheGuard guard(caches);
    transformer.decoder.forward(
        hidden, encoded, hidden,
        {.mask = causal() & tgt_mask, .masked_row = options_.masked_row, .execution = execution},
        {.memory = {.mask = src_padding.mask(), .masked_row = options_.masked_row}}, caches);
    const TensorView3<T> last = hidden.slice(1, seq - rows, seq);
    if (options_.output_scale != 1)
      scale(last, static_cast<Accumulator<T>>(options_.output_scale), last);
    generator.forward(last, tgt_embedding.words, ov, execution);
    guard.commit();
  }

  /// See Linear::pack().
  void pack(MatmulPrecision precision = MatmulPrecision::highest) {
    transformer.pack(precision);
    generator.pack(tgt_embedding.words, precision);
  }

  void visit_parameters(const ParameterVisitor<T>& f) { visit(*this, f); }
  void visit_parameters(const ParameterVisitor<const T>& f) const { visit(*this, f); }

  InputEmbedding<T> src_embedding, tgt_embedding;
  Transformer<T> transformer;
  OutputProjection<T> generator;

 private:
  /// The padding mask of a call, valid while this object exists.
  class Padding {
   public:
    template <TensorLike Ids>
    Padding(const Ids& ids, std::optional<index_t> pad_id, const Execution& execution)
        : memory_(execution.scratch(), pad_id ? const_view(ids).size() : 0),
          hidden_(memory_.data(), const_view(ids).shape()) {
      if (pad_id) find_padding(ids, *pad_id, hidden_);
    }
    Mask mask() const { return hidden_ ? key_padding_mask(hidden_) : Mask{}; }

   private:
    Scratch<bool> memory_;
    TensorView2<bool> hidden_;
  };

  template <class Self, class Visitor>
  static void visit(Self& self, const Visitor& f) {
    self.src_embedding.visit_parameters(f.under("src_embedding."));
    self.tgt_embedding.visit_parameters(f.under("tgt_embedding."));
    self.transformer.visit_parameters(f.under("transformer."));
    self.generator.visit_parameters(f.under("generator."));
  }

  Seq2SeqOptions options_;
};

ATTN_NAMESPACE_END
