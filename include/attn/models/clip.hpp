// Clip: images and texts as vectors, which are near each other if their contents agree.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <optional>
#include <utility>

#include "attn/core/arithmetic.hpp"
#include "attn/layers/embedding/input_embedding.hpp"
#include "attn/models/attention_pooling.hpp"
#include "attn/models/vit.hpp"

ATTN_NAMESPACE_BEGIN

/// How a Clip makes vectors of hidden states.
enum class ClipForm {
  /// CLIP's: that of the class token, normed and projected, and that of the last token of a text
  /// whose tokens see only those before them.
  clip,
  /// SigLIP's: attention pools those of the patches, and a text, whose tokens see all others, has
  /// that of its last token, padding included. Similarities have a bias.
  siglip,
};

struct ClipOptions {
  ClipForm form = ClipForm::clip;  ///< how hidden states become vectors
  /// Layers of images; with ClipForm::clip the class token has a norm of its own after them.
  VitOptions vision = {.patch_bias = false, .embedding_norm = true, .norm = false};
  InputEmbeddingOptions text_embedding = {};  ///< words and learned positions
  TransformerStackOptions text = {};          ///< layers of the text
  /// Features of both vectors; with ClipForm::siglip those of the layers of images.
  index_t projection_dim = 512;
  /// A text's vector is computed from its first token with this id, or from token 0 if it has none;
  /// by default, from the token with the largest id. ClipForm::siglip does not use it.
  std::optional<index_t> end_id = {};
};

/// Images (batch, num_channels, height, width) and ids (batch, seq) of any integer type to vectors
/// (batch, projection_dim) of length 1, and their similarities. Sources: Radford et al., "Learning
/// transferable visual models from natural language supervision" (2021), section 2; Zhai et al.,
/// "Sigmoid Loss for Language Image Pre-Training" (2023), section 3.
template <class T>
class Clip {
 public:
  Clip() = default;
  /// Throws ValueError for options out of range.
  explicit Clip(const ClipOptions& options)
      : vision(checked(options).vision),
        text_embedding(options.text_embedding),
        text(options.text),
        text_projection(options.text_embedding.d_model, options.projection_dim,
                        options.form == ClipForm::siglip),
        logit_scale({1}),
        options_(options) {
    const VitOptions& v = options.vision;
    if (options.form == ClipForm::siglip) {
      vision_head = AttentionPooling<T>({.d_model = v.hidden_size,
                                         .nhead = v.num_attention_heads,
                                         .dim_feedforward = v.intermediate_size,
                                         .activation = v.hidden_act,
                                         .layer_norm_eps = v.layer_norm_eps});
      logit_bias = Tensor1<T>({1});
    } else {
      vision_norm = LayerNorm<T>(v.hidden_size, v.layer_norm_eps);
      visual_projection = Linear<T>(v.hidden_size, options.projection_dim, false);
    }
  }

  const ClipOptions& options() const { return options_; }

  /// Vectors (batch, projection_dim) of images. Throws ShapeError or ValueError.
  template <TensorLike Images>
  Tensor2<T> embed_images(const Images& images, const Execution& execution = {}) const {
    ATTN_ASSERT_INPUT(Images, T, 4, "Clip: images", "(batch, channels, height, width)",
                      "the model");
    const Tensor3<T> hidden = vision(detail::view_as<const T, 4>(images), {.execution = execution});
    if (is_siglip()) return unit_vectors(vision_head(hidden, execution));
    auto pooled = Tensor2<T>::uninitialized({hidden.extent(0), hidden.extent(2)});
    vision_norm.forward(hidden.view().select(1, 0), pooled, execution);
    return unit_vectors(visual_projection(pooled, Activation::none, execution));
  }

  /// Vectors (batch, projection_dim) of texts. With ClipForm::clip tokens after the end of a text
  /// have no effect; with ClipForm::siglip pad all texts to text_embedding.max_positions tokens, as
  /// in training. Throws ShapeError or ValueError.
  template <TensorLike Ids>
  Tensor2<T> embed_texts(const Ids& ids, const Execution& execution = {}) const {
    ATTN_ASSERT_IDS(Ids, "Clip: ids");
    const auto iv = detail::view_as<const detail::id_t<Ids>, 2>(ids);
    const index_t batch = iv.extent(0), seq = iv.extent(1);
    if (seq < 1) throw_shape("Clip", "ids", "have at least one token", iv.shape());
    Tensor3<T> hidden = text_embedding(iv, {.execution = execution});
    text.forward(hidden, hidden, {.mask = is_siglip() ? Mask() : causal(), .execution = execution});
    auto pooled = Tensor2<T>::uninitialized({batch, hidden.extent(2)});
    for (index_t b = 0; b < batch; ++b) {
      const index_t end = is_siglip() ? seq - 1 : end_of(iv.select(0, b));
      copy(hidden.view().select(0, b).slice(0, end, end + 1), pooled.view().slice(0, b, b + 1));
    }
    return unit_vectors(text_projection(pooled, Activation::none, execution));
  }

  /// Logits (images, texts) of vectors (images, projection_dim) and (texts, projection_dim): their
  /// dot products times exp(logit_scale), plus logit_bias. With ClipForm::clip the softmax of a row
  /// gives the probability of each text, with ClipForm::siglip the sigmoid of each logit.
  template <TensorLike Images, TensorLike Texts>
  Tensor2<Accumulator<T>> similarities(const Images& images, const Texts& texts,
                                       const Execution& execution = {}) const {
    ATTN_ASSERT_INPUT(Images, T, 2, "Clip: images", "(images, projection_dim)", "the model");
    ATTN_ASSERT_INPUT(Texts, T, 2, "Clip: texts", "(texts, projection_dim)", "the model");
    using Acc = Accumulator<T>;
    const auto x = detail::view_as<const T, 2>(images), y = detail::view_as<const T, 2>(texts);
    auto logits = Tensor2<Acc>::uninitialized({x.extent(0), y.extent(0)});
    linear(x, y, TensorView1<const T>{}, logits, Activation::none, {}, execution);
    scale(logits, std::exp(static_cast<Acc>(logit_scale(0))), logits);
    if (is_siglip()) {
      for (Acc& logit : logits.elements()) logit += static_cast<Acc>(logit_bias(0));
    }
    return logits;
  }

  /// See Linear::pack().
  void pack(MatmulPrecision precision = MatmulPrecision::highest) {
    vision.pack(precision);
    if (is_siglip()) {
      vision_head.pack(precision);
    } else {
      visual_projection.pack(precision);
    }
    text.pack(precision);
    text_projection.pack(precision);
  }

  void visit_parameters(const ParameterVisitor<T>& f) { visit(*this, f); }
  void visit_parameters(const ParameterVisitor<const T>& f) const { visit(*this, f); }

  Vit<T> vision;
  LayerNorm<T> vision_norm;         ///< of the class token, with ClipForm::clip alone
  Linear<T> visual_projection;      ///< with ClipForm::clip alone
  AttentionPooling<T> vision_head;  ///< with ClipForm::siglip alone
  InputEmbedding<T> text_embedding;
  Encoder<T> text;
  Linear<T> text_projection;
  Tensor1<T> logit_scale;  ///< (1): the logarithm of the factor of similarities
  Tensor1<T> logit_bias;   ///< (1), with ClipForm::siglip alone

 private:
  static const ClipOptions& checked(const ClipOptions& o) {
    const bool is_siglip = o.form == ClipForm::siglip;
    if (o.vision.class_token == is_siglip) {
      throw ValueError(message("Clip", "vision.class_token",
                               is_siglip ? "be false with ClipForm::siglip" : "be true",
                               is_siglip ? "true" : "false"));
    }
    if (is_siglip && o.projection_dim != o.vision.hidden_size) {
      throw ValueError(message("Clip", "projection_dim",
                               "be vision.hidden_size = " + std::to_string(o.vision.hidden_size) +
                                   " with ClipForm::siglip",
                               std::to_string(o.projection_dim)));
    }
    return o;
  }

  bool is_siglip() const { return options_.form == ClipForm::siglip; }

  /// The index of the token that ends a text, given as ids (seq).
  template <class Id>
  index_t end_of(const TensorView1<const Id>& ids) const {
    index_t end = 0;
    for (index_t i = 0; i < ids.extent(0); ++i) {
      if (options_.end_id ? std::cmp_equal(ids(i), *options_.end_id) : ids(i) > ids(end)) {
        end = i;
        if (options_.end_id) break;
      }
    }
    return end;
  }

  static Tensor2<T> unit_vectors(Tensor2<T> result) {
    for (index_t b = 0; b < result.extent(0); ++b) {
      double sum = 0;
      for (index_t d = 0; d < result.extent(1); ++d) {
        sum += static_cast<double>(result(b, d)) * static_cast<double>(result(b, d));
      }
      for (index_t d = 0; d < result.extent(1); ++d) {
        result(b, d) = static_cast<T>(static_cast<double>(result(b, d)) / std::sqrt(sum));
      }
    }
    return result;
  }

  template <class Self, class Visitor>
  static void visit(Self& self, const Visitor& f) {
    self.vision.visit_parameters(f.under("vision."));
    if (self.is_siglip()) {
      self.vision_head.visit_parameters(f.under("vision_head."));
    } else {
      self.vision_norm.visit_parameters(f.under("vision_norm."));
      self.visual_projection.visit_parameters(f.under("visual_projection."));
    }
    self.text_embedding.visit_parameters(f.under("text_embedding."));
    self.text.visit_parameters(f.under("text."));
    self.text_projection.visit_parameters(f.under("text_projection."));
    f("logit_scale", self.logit_scale.view());
    if (self.is_siglip()) f("logit_bias", self.logit_bias.view());
  }

  ClipOptions options_;
};

ATTN_NAMESPACE_END
