// Vit: a vision transformer from images to hidden states and class logits.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attn/layers/embedding/patches.hpp"
#include "attn/layers/encoder.hpp"

ATTN_NAMESPACE_BEGIN

/// Options with the names of config.json.
struct VitOptions {
  index_t image_height = 224;        ///< pixels
  index_t image_width = 224;         ///< pixels
  index_t patch_size = 16;           ///< side of a patch in pixels, which divides height and width
  index_t num_channels = 3;          ///< channels of a pixel
  index_t hidden_size = 768;         ///< features of a patch
  index_t num_hidden_layers = 12;    ///< encoder layers
  index_t num_attention_heads = 12;  ///< heads per layer
  index_t intermediate_size = 3072;  ///< hidden features of the feed-forward
  double layer_norm_eps = 1e-12;     ///< epsilon of all norms
  Activation hidden_act = Activation::gelu;  ///< activation of the feed-forward
  bool qkv_bias = true;                      ///< bias of the query, key and value projections
  index_t num_labels = 0;                    ///< classes; 0: no classifier

  index_t num_patches() const { return (image_height / patch_size) * (image_width / patch_size); }
  TransformerStackOptions encoder_options() const {
    return {.num_layers = num_hidden_layers,
            .layer = {.d_model = hidden_size,
                      .nhead = num_attention_heads,
                      .dim_feedforward = intermediate_size,
                      .dropout = 0,
                      .activation = hidden_act,
                      .layer_norm_eps = layer_norm_eps,
                      .norm_first = true,
                      .attention = {.in_proj_bias = qkv_bias, .separate_in_proj = true}},
            .norm = true};
  }
};

/// images (batch, num_channels, image_height, image_width), already preprocessed, to hidden states
/// (batch, 1 + num_patches(), hidden_size): a class token, then the patches row by row. Source:
/// Dosovitskiy et al., "An Image is Worth 16x16 Words" (2021), section 3.1.
template <class T>
class Vit {
 public:
  Vit() = default;
  /// Throws ValueError for options out of range.
  explicit Vit(const VitOptions& options) : options_(checked(options)) {
    const VitOptions& o = options;
    const index_t pixels = o.num_channels * o.patch_size * o.patch_size;
    patch_embedding = Linear<T>(pixels, o.hidden_size);
    cls_token = Tensor3<T>({1, 1, o.hidden_size});
    positions = Tensor3<T>({1, 1 + o.num_patches(), o.hidden_size});
    encoder = Encoder<T>(o.encoder_options());
    if (o.num_labels > 0) classifier = Linear<T>(o.hidden_size, o.num_labels);
  }

  const VitOptions& options() const { return options_; }

  template <TensorLike Images, class... Functors>
  Tensor3<T> operator()(const Images& images, const AttentionOptions<Accumulator<T>>& options = {},
                        const Functors&... functors) const {
    ATTN_ASSERT_INPUT(Images, T, 4, "Vit: images", "(batch, channels, height, width)", "the model");
    const auto from = detail::view_as<const T, 4>(images);
    auto out = Tensor3<T>::uninitialized(
        {from.extent(0), 1 + options_.num_patches(), options_.hidden_size});
    forward(from, out, options, functors...);
    return out;
  }

  /// Writes to `out`. All layers get the options and functors. Throws ShapeError or ValueError.
  template <TensorLike Images, TensorLike Out, class... Functors>
  void forward(const Images& images, Out&& out,
               const AttentionOptions<Accumulator<T>>& options = {},
               const Functors&... functors) const {
    ATTN_ASSERT_INPUT(Images, T, 4, "Vit: images", "(batch, channels, height, width)", "the model");
    ATTN_ASSERT_OUTPUT(Out, T, 3, "Vit: out", "(batch, 1 + num_patches(), hidden_size)",
                       "the model");
    const VitOptions& o = options_;
    const auto x = detail::view_as<const T, 4>(images);
    const auto to = detail::view_as<T, 3>(out);
    const index_t batch = x.extent(0), count = o.num_patches(), dim = o.hidden_size;
    check_shape("Vit", "images", "(batch, num_channels, image_height, image_width)",
                Shape<4>{batch, o.num_channels, o.image_height, o.image_width}, x.shape());
    check_shape("Vit", "out", Shape<3>{batch, 1 + count, dim}, to.shape());
    const Execution& execution = options.execution;
    const Tensor3<T> patches = extract_patches(x, o.patch_size);
    Scratch<T> memory(execution.scratch(), to.size());
    const TensorView3<T> embedded(memory.data(), to.shape());
    // Adds positions while the product is stored, one image at a time.
    for (index_t b = 0; b < batch; ++b) {
      patch_embedding.forward(patches.view().select(0, b),
                              embedded.select(0, b).slice(0, 1, 1 + count), Activation::none,
                              positions.view().select(0, 0).slice(0, 1, 1 + count), execution);
      for (index_t d = 0; d < dim; ++d) {
        embedded(b, 0, d) = static_cast<T>(cls_token(0, 0, d) + positions(0, 0, d));
      }
    }
    encoder.forward(embedded, to, options, {}, {}, functors...);
  }

  /// Images to logits (batch, num_labels). Throws ShapeError, or ValueError for a model without a
  /// classifier.
  template <TensorLike Images>
  Tensor2<Accumulator<T>> classify(const Images& images,
                                   const AttentionOptions<Accumulator<T>>& options = {}) const {
    if (options_.num_labels == 0) {
      throw ValueError(message("Vit::classify", "the model", "have a classifier", "none"));
    }
    ATTN_ASSERT_INPUT(Images, T, 4, "Vit: images", "(batch, channels, height, width)", "the model");
    const Tensor3<T> hidden = (*this)(detail::view_as<const T, 4>(images), options);
    auto logits = Tensor2<Accumulator<T>>::uninitialized({hidden.extent(0), options_.num_labels});
    classifier.forward(hidden.view().select(1, 0), logits, Activation::none, {}, options.execution);
    return logits;
  }

  /// See Linear::pack().
  void pack() {
    patch_embedding.pack();
    encoder.pack();
    if (options_.num_labels > 0) classifier.pack();
  }

  void visit_parameters(const ParameterVisitor<T>& f) { visit(*this, f); }
  void visit_parameters(const ParameterVisitor<const T>& f) const { visit(*this, f); }

  Linear<T>
      patch_embedding;   ///< from num_channels * patch_size * patch_size pixels, channel by channel
  Tensor3<T> cls_token;  ///< (1, 1, hidden_size)
  Tensor3<T> positions;  ///< (1, 1 + num_patches(), hidden_size)
  Encoder<T> encoder;
  Linear<T> classifier;  ///< no weight without classes

 private:
  static const VitOptions& checked(const VitOptions& o) {
    const auto check = [](std::string_view argument, index_t found, index_t least) {
      constexpr index_t kMax = index_t{1} << 24;
      if (found >= least && found <= kMax) return;
      throw ValueError(message("Vit", argument, "lie in " + std::to_string(least) + " .. 2^24",
                               std::to_string(found)));
    };
    check("image_height", o.image_height, 1);
    check("image_width", o.image_width, 1);
    check("patch_size", o.patch_size, 1);
    check("num_channels", o.num_channels, 1);
    check("hidden_size", o.hidden_size, 1);
    check("num_labels", o.num_labels, 0);
    if (o.image_height % o.patch_size != 0 || o.image_width % o.patch_size != 0) {
      throw ValueError(
          message("Vit", "patch_size",
                  "divide image_height and image_width = " + std::to_string(o.image_height) +
                      " and " + std::to_string(o.image_width),
                  std::to_string(o.patch_size)));
    }
    return o;
  }

  template <class Self, class Visitor>
  static void visit(Self& self, const Visitor& f) {
    self.patch_embedding.visit_parameters(f.under("patch_embedding."));
    f("cls_token", self.cls_token.view());
    f("positions", self.positions.view());
    self.encoder.visit_parameters(f.under("encoder."));
    if (self.options_.num_labels > 0) self.classifier.visit_parameters(f.under("classifier."));
  }

  VitOptions options_;
};

ATTN_NAMESPACE_END
