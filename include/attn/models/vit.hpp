// Vit: a vision transformer from images to hidden states and class logits.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>

#include "attn/layers/embedding/interpolate_positions.hpp"
#include "attn/layers/embedding/patches.hpp"
#include "attn/layers/encoder.hpp"

ATTN_NAMESPACE_BEGIN

/// Options with the names of config.json.
struct VitOptions {
  index_t image_height = 224;  ///< pixels
  index_t image_width = 224;   ///< pixels
  index_t patch_size = 16;     ///< side of a patch in pixels; what whole patches leave is not read
  index_t num_channels = 3;    ///< channels of a pixel
  index_t hidden_size = 768;   ///< features of a patch
  index_t num_hidden_layers = 12;            ///< encoder layers
  index_t num_attention_heads = 12;          ///< heads per layer
  index_t intermediate_size = 3072;          ///< hidden features of the feed-forward
  double layer_norm_eps = 1e-12;             ///< epsilon of all norms
  Activation hidden_act = Activation::gelu;  ///< activation of the feed-forward
  bool qkv_bias = true;                      ///< bias of the query, key and value projections
  index_t num_labels = 0;                    ///< classes; 0: no classifier
  index_t num_register_tokens = 0;           ///< register tokens after the class token; they have
                                             ///< no position
  /// If given, images of other sizes get interpolated positions; otherwise they are errors.
  std::optional<Bicubic> interpolation = {};
  bool class_token = true;      ///< a learned token before all others
  bool patch_bias = true;       ///< bias of the patch embedding
  bool embedding_norm = false;  ///< layer norm before the first layer
  bool norm = true;             ///< final norm of all hidden states

  /// Tokens before the patches: the class token and the registers.
  index_t num_prefix_tokens() const { return (class_token ? 1 : 0) + num_register_tokens; }
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
            .norm = norm};
  }
};

/// images (batch, num_channels, image_height, image_width), already preprocessed, to hidden states
/// (batch, num_prefix_tokens() + patches, hidden_size): the class token, registers, then the
/// patches row by row. Sources: Dosovitskiy et al., "An Image is Worth 16x16 Words" (2021), section
/// 3.1; Darcet et al., "Vision Transformers Need Registers" (2024).
template <class T>
class Vit {
 public:
  Vit() = default;
  /// Throws ValueError for options out of range.
  explicit Vit(const VitOptions& options) : options_(checked(options)) {
    const VitOptions& o = options;
    const index_t pixels = o.num_channels * o.patch_size * o.patch_size;
    patch_embedding = Linear<T>(pixels, o.hidden_size, o.patch_bias);
    if (o.class_token) cls_token = Tensor3<T>({1, 1, o.hidden_size});
    positions = Tensor3<T>({1, first_patch() + o.num_patches(), o.hidden_size});
    if (o.num_register_tokens > 0) {
      register_tokens = Tensor3<T>({1, o.num_register_tokens, o.hidden_size});
    }
    if (o.embedding_norm) embedding_norm = LayerNorm<T>(o.hidden_size, o.layer_norm_eps);
    encoder = Encoder<T>(o.encoder_options());
    if (o.num_labels > 0) classifier = Linear<T>(o.hidden_size, o.num_labels);
  }

  const VitOptions& options() const { return options_; }

  template <TensorLike Images, class... Functors>
  Tensor3<T> operator()(const Images& images, const AttentionOptions<Accumulator<T>>& options = {},
                        const Functors&... functors) const {
    ATTN_ASSERT_INPUT(Images, T, 4, "Vit: images", "(batch, channels, height, width)", "the model");
    const auto from = detail::view_as<const T, 4>(images);
    check_images(from.shape());
    const index_t tokens =
        options_.num_prefix_tokens() +
        from.extent(2) / options_.patch_size * (from.extent(3) / options_.patch_size);
    auto out = Tensor3<T>::uninitialized({from.extent(0), tokens, options_.hidden_size});
    forward(from, out, options, functors...);
    return out;
  }

  /// Writes to `out`. All layers get the options and functors. Throws ShapeError or ValueError.
  template <TensorLike Images, TensorLike Out, class... Functors>
  void forward(const Images& images, Out&& out,
               const AttentionOptions<Accumulator<T>>& options = {},
               const Functors&... functors) const {
    ATTN_ASSERT_INPUT(Images, T, 4, "Vit: images", "(batch, channels, height, width)", "the model");
    ATTN_ASSERT_OUTPUT(Out, T, 3, "Vit: out", "(batch, num_prefix_tokens() + patches, hidden_size)",
                       "the model");
    const VitOptions& o = options_;
    const auto x = detail::view_as<const T, 4>(images);
    const auto to = detail::view_as<T, 3>(out);
    const index_t batch = x.extent(0), dim = o.hidden_size, before = o.num_prefix_tokens();
    check_images(x.shape());
    const index_t rows = x.extent(2) / o.patch_size, columns = x.extent(3) / o.patch_size;
    const index_t count = rows * columns;
    check_shape("Vit", "out", Shape<3>{batch, before + count, dim}, to.shape());
    const Execution& execution = options.execution;
    const Tensor3<T> patches = extract_patches(
        x.slice(2, 0, rows * o.patch_size).slice(3, 0, columns * o.patch_size), o.patch_size);
    // The image has another size than the model's.
    const bool interpolates = x.extent(2) != o.image_height || x.extent(3) != o.image_width;
    const auto grid = positions.view().select(0, 0).slice(0, first_patch(), positions.extent(1));
    Tensor3<T> interpolated;
    if (interpolates) {
      interpolated = interpolate_positions(grid.split(0, o.image_height / o.patch_size), rows,
                                           columns, *o.interpolation);
    }
    const TensorView2<const T> places =
        interpolates ? TensorView2<const T>(interpolated.data(), {count, dim}) : grid;
    Scratch<T> memory(execution.scratch(), to.size());
    const TensorView3<T> embedded(memory.data(), to.shape());
    // Adds positions while the product is stored, one image at a time.
    for (index_t b = 0; b < batch; ++b) {
      patch_embedding.forward(patches.view().select(0, b),
                              embedded.select(0, b).slice(0, before, before + count),
                              Activation::none, places, execution);
      for (index_t d = 0; d < dim; ++d) {
        if (o.class_token) {
          embedded(b, 0, d) = static_cast<T>(cls_token(0, 0, d) + positions(0, 0, d));
        }
        for (index_t n = 0; n < o.num_register_tokens; ++n) {
          embedded(b, first_patch() + n, d) = register_tokens(0, n, d);
        }
      }
    }
    if (o.embedding_norm) embedding_norm.forward(embedded, embedded, execution);
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
  void pack(MatmulPrecision precision = MatmulPrecision::highest) {
    patch_embedding.pack(precision);
    encoder.pack(precision);
    if (options_.num_labels > 0) classifier.pack(precision);
  }

  void visit_parameters(const ParameterVisitor<T>& f) { visit(*this, f); }
  void visit_parameters(const ParameterVisitor<const T>& f) const { visit(*this, f); }

  Linear<T>
      patch_embedding;   ///< from num_channels * patch_size * patch_size pixels, channel by channel
  Tensor3<T> cls_token;  ///< (1, 1, hidden_size); empty without a class token
  Tensor3<T> positions;  ///< (1, num_patches(), hidden_size), after that of the class token
  Tensor3<T> register_tokens;  ///< (1, num_register_tokens, hidden_size); empty without registers
  LayerNorm<T> embedding_norm;
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
    check("num_register_tokens", o.num_register_tokens, 0);
    if (o.num_labels > 0 && !o.class_token) {
      throw ValueError(
          message("Vit", "class_token", "be true for a classifier, which reads it", "false"));
    }
    if (o.patch_size > (std::min)(o.image_height, o.image_width)) {
      throw ValueError(
          message("Vit", "patch_size",
                  "be at most image_height and image_width = " + std::to_string(o.image_height) +
                      " and " + std::to_string(o.image_width),
                  std::to_string(o.patch_size)));
    }
    return o;
  }

  /// The row of `positions` that belongs to the first patch.
  index_t first_patch() const { return options_.class_token ? 1 : 0; }

  /// Throws ShapeError for images that the model does not take.
  void check_images(const Shape<4>& images) const {
    const VitOptions& o = options_;
    if (!o.interpolation) {
      check_shape("Vit", "images", "(batch, num_channels, image_height, image_width)",
                  Shape<4>{images[0], o.num_channels, o.image_height, o.image_width}, images);
    } else if (images[1] != o.num_channels || images[2] < 1 || images[3] < 1 ||
               images[2] % o.patch_size != 0 || images[3] % o.patch_size != 0) {
      throw_shape("Vit", "images",
                  "have shape (batch, " + std::to_string(o.num_channels) +
                      ", height, width) with sizes that the patch of " +
                      std::to_string(o.patch_size) + " divides",
                  images);
    }
  }

  template <class Self, class Visitor>
  static void visit(Self& self, const Visitor& f) {
    self.patch_embedding.visit_parameters(f.under("patch_embedding."));
    if (self.cls_token) f("cls_token", self.cls_token.view());
    f("positions", self.positions.view());
    if (self.register_tokens) f("register_tokens", self.register_tokens.view());
    if (self.options_.embedding_norm) {
      self.embedding_norm.visit_parameters(f.under("embedding_norm."));
    }
    self.encoder.visit_parameters(f.under("encoder."));
    if (self.options_.num_labels > 0) self.classifier.visit_parameters(f.under("classifier."));
  }

  VitOptions options_;
};

ATTN_NAMESPACE_END
