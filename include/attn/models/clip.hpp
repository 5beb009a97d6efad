// Clip: images and texts as vectors, which are near each other if their contents agree.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <optional>
#include <utility>

#include "attn/core/arithmetic.hpp"
#include "attn/layers/embedding/input_embedding.hpp"
#include "attn/models/vit.hpp"

ATTN_NAMESPACE_BEGIN

struct ClipOptions {
  /// Layers of images; the class token has a norm of its own after them.
  VitOptions vision = {.patch_bias = false, .embedding_norm = true, .norm = false};
  InputEmbeddingOptions text_embedding = {};  ///< words and learned positions
  TransformerStackOptions text = {};          ///< layers of the text
  index_t projection_dim = 512;               ///< features of both vectors
  /// A text's vector is computed from its first token with this id, or from token 0 if it has none;
  /// by default, from the token with the largest id.
  std::optional<index_t> end_id = {};
};

/// Images (batch, num_channels, height, width) and ids (batch, seq) of any integer type to vectors
/// (batch, projection_dim) of length 1, and their similarities. The layers of the text are causal.
/// Source: Radford et al., "Learning transferable visual models from natural language supervision"
/// (2021), section 2.
template <class T>
class Clip {
 public:
  Clip() = default;
  /// Throws ValueError for options out of range.
  explicit Clip(const ClipOptions& options)
      : vision(options.vision),
        vision_norm(options.vision.hidden_size, options.vision.layer_norm_eps),
        visual_projection(options.vision.hidden_size, options.projection_dim, false),
        text_embedding(options.text_embedding),
        text(options.text),
        text_projection(options.text_embedding.d_model, options.projection_dim, false),
        logit_scale({1}),
        options_(options) {}

  const ClipOptions& options() const { return options_; }

  /// Vectors (batch, projection_dim) of images. Throws ShapeError or ValueError.
  template <TensorLike Images>
  Tensor2<T> embed_images(const Images& images, const Execution& execution = {}) const {
    ATTN_ASSERT_INPUT(Images, T, 4, "Clip: images", "(batch, channels, height, width)",
                      "the model");
    const Tensor3<T> hidden = vision(detail::view_as<const T, 4>(images), {.execution = execution});
    auto pooled = Tensor2<T>::uninitialized({hidden.extent(0), hidden.extent(2)});
    vision_norm.forward(hidden.view().select(1, 0), pooled, execution);
    return unit_vectors(pooled, visual_projection, execution);
  }

  /// Vectors (batch, projection_dim) of texts; tokens after the end of a text have no effect.
  /// Throws ShapeError or ValueError.
  template <TensorLike Ids>
  Tensor2<T> embed_texts(const Ids& ids, const Execution& execution = {}) const {
    ATTN_ASSERT_IDS(Ids, "Clip: ids");
    const auto iv = detail::view_as<const detail::id_t<Ids>, 2>(ids);
    const index_t batch = iv.extent(0), seq = iv.extent(1);
    if (seq < 1) throw_shape("Clip", "ids", "have at least one token", iv.shape());
    Tensor3<T> hidden = text_embedding(iv, {.execution = execution});
    text.forward(hidden, hidden, {.mask = causal(), .execution = execution});
    auto pooled = Tensor2<T>::uninitialized({batch, hidden.extent(2)});
    for (index_t b = 0; b < batch; ++b) {
      index_t end = 0;
      for (index_t i = 0; i < seq; ++i) {
        if (options_.end_id ? std::cmp_equal(iv(b, i), *options_.end_id) : iv(b, i) > iv(b, end)) {
          end = i;
          if (options_.end_id) break;
        }
      }
      copy(hidden.view().select(0, b).slice(0, end, end + 1), pooled.view().slice(0, b, b + 1));
    }
    return unit_vectors(pooled, text_projection, execution);
  }

  /// Logits (images, texts) of vectors (images, projection_dim) and (texts, projection_dim): their
  /// dot products times exp(logit_scale). The softmax of a row gives the probability of each text.
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
    return logits;
  }

  /// See Linear::pack().
  void pack() {
    vision.pack();
    visual_projection.pack();
    text.pack();
    text_projection.pack();
  }

  void visit_parameters(const ParameterVisitor<T>& f) { visit(*this, f); }
  void visit_parameters(const ParameterVisitor<const T>& f) const { visit(*this, f); }

  Vit<T> vision;
  LayerNorm<T> vision_norm;  ///< of the class token
  Linear<T> visual_projection;
  InputEmbedding<T> text_embedding;
  Encoder<T> text;
  Linear<T> text_projection;
  Tensor1<T> logit_scale;  ///< (1): the logarithm of the factor of similarities

 private:
  static Tensor2<T> unit_vectors(const Tensor2<T>& pooled, const Linear<T>& projection,
                                 const Execution& execution) {
    auto result = Tensor2<T>::uninitialized({pooled.extent(0), projection.out_features()});
    projection.forward(pooled, result, Activation::none, {}, execution);
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
    self.vision_norm.visit_parameters(f.under("vision_norm."));
    self.visual_projection.visit_parameters(f.under("visual_projection."));
    self.text_embedding.visit_parameters(f.under("text_embedding."));
    self.text.visit_parameters(f.under("text."));
    self.text_projection.visit_parameters(f.under("text_projection."));
    f("logit_scale", self.logit_scale.view());
  }

  ClipOptions options_;
};

ATTN_NAMESPACE_END
