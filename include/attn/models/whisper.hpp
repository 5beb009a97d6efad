// Whisper: an encoder-decoder from the spectrogram of speech to logits of text.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attn/layers/embedding/frames.hpp"
#include "attn/layers/embedding/input_embedding.hpp"
#include "attn/layers/embedding/log_mel_spectrogram.hpp"
#include "attn/layers/embedding/output_projection.hpp"
#include "attn/layers/transformer.hpp"

ATTN_NAMESPACE_BEGIN

struct WhisperOptions {
  index_t vocab_size = 0;               ///< target ids are below it
  index_t num_mel_bins = 80;            ///< frequency bands of the features
  TransformerOptions transformer = {};  ///< both stacks
  index_t max_source_positions = 1500;  ///< positions of the encoder, each of two frames
  index_t max_target_positions = 448;   ///< positions of the decoder
  bool tied = true;  ///< compute logits with the target's embedding instead of a separate weight

  InputEmbeddingOptions embedding_options() const {
    return {.vocab_size = vocab_size,
            .d_model = transformer.layer.d_model,
            .positions = Positions::learned,
            .max_positions = max_target_positions,
            .dropout = transformer.layer.dropout};
  }
  /// Positions of the encoder for a number of frames.
  static index_t source_len(index_t num_features) { return (num_features - 1) / 2 + 1; }
};

/// Features (batch, num_mel_bins, frames) of log_mel_spectrogram() and target ids (batch, tgt_len)
/// of any integer type to logits (batch, tgt_len, vocab_size). Two convolutions over time, the
/// second of stride 2, come before the encoder; the decoder is causal. Source: Radford et al.,
/// "Robust speech recognition via large-scale weak supervision" (2022), section 2.2.
template <class T>
class Whisper {
 public:
  Whisper() = default;
  /// Throws ValueError for options out of range.
  explicit Whisper(const WhisperOptions& options)
      : conv1(checked(options).num_mel_bins * kKernel, options.transformer.layer.d_model),
        conv2(options.transformer.layer.d_model * kKernel, options.transformer.layer.d_model),
        positions({options.max_source_positions, options.transformer.layer.d_model}),
        tgt_embedding(options.embedding_options()),
        transformer(options.transformer),
        generator(options.transformer.layer.d_model, options.vocab_size, options.tied, false),
        options_(options) {}

  const WhisperOptions& options() const { return options_; }

  template <TensorLike Features, TensorLike Tgt>
  Tensor3<Accumulator<T>> operator()(const Features& features, const Tgt& tgt,
                                     const Execution& execution = {}) const {
    ATTN_ASSERT_IDS(Tgt, "Whisper: tgt");
    const auto tv = detail::view_as<const detail::id_t<Tgt>, 2>(tgt);
    auto out =
        Tensor3<Accumulator<T>>::uninitialized({tv.extent(0), tv.extent(1), options_.vocab_size});
    decode(tv, encode(features, execution), out, {}, execution);
    return out;
  }

  /// Encodes features (batch, num_mel_bins, frames) to memory (batch, source_len(frames), d_model).
  /// Throws ShapeError for other features, or more frames than positions.
  template <TensorLike Features>
  Tensor3<T> encode(const Features& features, const Execution& execution = {}) const {
    ATTN_ASSERT_INPUT(Features, T, 3, "Whisper: features", "(batch, num_mel_bins, frames)",
                      "the model");
    const auto x = detail::view_as<const T, 3>(features);
    const index_t batch = x.extent(0), frames = x.extent(2),
                  dim = options_.transformer.layer.d_model;
    if (x.extent(1) != options_.num_mel_bins || frames < 1 ||
        WhisperOptions::source_len(frames) > options_.max_source_positions) {
      throw_shape("Whisper", "features",
                  "have shape (batch, num_mel_bins, frames) with " +
                      std::to_string(options_.num_mel_bins) + " bins and 1 .. " +
                      std::to_string(2 * options_.max_source_positions) + " frames",
                  x.shape());
    }
    auto result = Tensor3<T>::uninitialized({batch, WhisperOptions::source_len(frames), dim});
    Scratch<T> scratch(execution.scratch(), frames * dim);
    const TensorView3<T> hidden(scratch.data(), {1, frames, dim});
    for (index_t b = 0; b < batch; ++b) {
      conv1.forward(extract_frames(x.slice(0, b, b + 1), kKernel, 1), hidden, Activation::gelu, {},
                    execution);
      const Tensor3<T> windows = extract_frames(hidden.transpose(1, 2), kKernel, 2);
      // Adds positions while the product is stored.
      conv2.forward(windows.view().select(0, 0), result.view().select(0, b), Activation::gelu,
                    positions.view().slice(0, 0, result.extent(1)), execution);
    }
    transformer.encoder.forward(result, result, {.execution = execution});
    return result;
  }

  /// Allocates caches for `capacity` target tokens and `source_len` positions of the encoder.
  std::vector<DecoderLayerCache<T>> make_caches(index_t batch, index_t capacity, index_t source_len,
                                                std::optional<DType> element = {}) const {
    return transformer.decoder.make_caches(batch, capacity, source_len, element);
  }

  /// Decodes tgt (batch, n), with memory from encode(), to logits (batch, n, vocab_size), or
  /// (batch, 1, vocab_size) for the last token only. With caches tgt holds the tokens after those
  /// in the caches. Throws ShapeError or ValueError.
  template <TensorLike Tgt, TensorLike Memory, TensorLike Out>
  void decode(const Tgt& tgt, const Memory& memory, Out&& out,
              std::span<DecoderLayerCache<T>> caches = {}, const Execution& execution = {}) const {
    ATTN_ASSERT_IDS(Tgt, "Whisper: tgt");
    ATTN_ASSERT_INPUT(Memory, T, 3, "Whisper: memory", "(batch, source_len, d_model)", "the model");
    ATTN_ASSERT_OUTPUT(Out, Accumulator<T>, 3, "Whisper: out", "(batch, tgt_len, vocab_size)",
                       "logits, which are float where the model has 16 bits");
    const auto tv = detail::view_as<const detail::id_t<Tgt>, 2>(tgt);
    const auto encoded = detail::view_as<const T, 3>(memory);
    const auto ov = detail::view_as<Accumulator<T>, 3>(out);
    const index_t batch = tv.extent(0), seq = tv.extent(1);
    const index_t rows = ov.extent(1) == 1 ? (std::min)(seq, index_t{1}) : seq;
    check_shape("Whisper", "out", Shape<3>{batch, rows, options_.vocab_size}, ov.shape());
    const index_t dim = options_.transformer.layer.d_model;
    Scratch<T> scratch(execution.scratch(), batch * seq * dim);
    const TensorView3<T> hidden(scratch.data(), {batch, seq, dim});
    tgt_embedding.forward(
        tv, hidden,
        {.first_position = caches.empty() ? 0 : caches[0].self.length(), .execution = execution});
    detail::CacheGuard guard(caches);
    transformer.decoder.forward(hidden, encoded, hidden, {.mask = causal(), .execution = execution},
                                {}, caches);
    generator.forward(hidden.slice(1, seq - rows, seq), tgt_embedding.words, ov, execution);
    guard.commit();
  }

  /// See Linear::pack().
  void pack(MatmulPrecision precision = MatmulPrecision::highest) {
    conv1.pack(precision);
    conv2.pack(precision);
    transformer.pack(precision);
    generator.pack(tgt_embedding.words, precision);
  }

  void visit_parameters(const ParameterVisitor<T>& f) { visit(*this, f); }
  void visit_parameters(const ParameterVisitor<const T>& f) const { visit(*this, f); }

  Linear<T> conv1, conv2;  ///< of 3 consecutive frames, channel by channel: see extract_frames()
  Tensor2<T> positions;    ///< (max_source_positions, d_model), of the encoder
  InputEmbedding<T> tgt_embedding;
  Transformer<T> transformer;
  OutputProjection<T> generator;

 private:
  static constexpr index_t kKernel = 3;

  static const WhisperOptions& checked(const WhisperOptions& o) {
    constexpr index_t kMost = index_t{1} << 24;
    const auto check = [](std::string_view argument, index_t found) {
      if (found >= 1 && found <= kMost) return;
      throw ValueError(message("Whisper", argument, "lie in 1 .. 2^24", std::to_string(found)));
    };
    check("num_mel_bins", o.num_mel_bins);
    check("d_model", o.transformer.layer.d_model);
    check("max_source_positions", o.max_source_positions);
    return o;
  }

  template <class Self, class Visitor>
  static void visit(Self& self, const Visitor& f) {
    self.conv1.visit_parameters(f.under("conv1."));
    self.conv2.visit_parameters(f.under("conv2."));
    f("positions", self.positions.view());
    self.tgt_embedding.visit_parameters(f.under("tgt_embedding."));
    self.transformer.visit_parameters(f.under("transformer."));
    self.generator.visit_parameters(f.under("generator."));
  }

  WhisperOptions options_;
};

ATTN_NAMESPACE_END
