// LayerStack: layers and a final norm, the base of Encoder and Decoder.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <vector>

#include "attn/attention/relative_bias.hpp"
#include "attn/layers/encoder_layer.hpp"

ATTN_NAMESPACE_BEGIN

/// Options of an encoder or decoder.
struct TransformerStackOptions {
  index_t num_layers = 6;  ///< how many layers are applied
  /// With n > 0 only n layers have weights, windows and rotary embedding of their own, each applied
  /// num_layers / n times in succession, as in ALBERT; 0: all have.
  index_t num_groups = 0;
  TransformerLayerOptions layer = {};  ///< options of each layer
  bool norm = false;                   ///< final norm, as in pre-norm stacks
  bool first_norm = true;  ///< false: no norm before the first attention, as in ModernBERT
  /// Sliding window per layer, instead of layer.attention.window: layer n uses entry n % size; -1:
  /// all keys.
  std::vector<index_t> windows = {};
  /// Rotary embedding per layer, instead of layer.attention.rotary: layer n uses entry n % size,
  /// which may be none.
  std::vector<std::optional<RotaryOptions>> rotary = {};
  /// What mixes tokens per layer, instead of layer.mixer: layer n uses entry n % size. Recurrent
  /// layers use no window and no rotary embedding.
  std::vector<TokenMixer> mixers = {};
  /// Number of first layers with the ordinary feed-forward of `layer` instead of experts.
  index_t dense_layers = 0;
  /// Buckets of distances with a learned bias shared by all layers (T5): see t5_relative_bias(); 0:
  /// none.
  index_t relative_buckets = 0;
  index_t relative_max_distance = 128;  ///< larger distances share the last bucket
  bool relative_bidirectional = true;   ///< half of the buckets are for keys after the query
};

namespace detail {

template <class T, class Layer>
class LayerStack {
 public:
  LayerStack() = default;
  /// Layers with the same rotary options share one table. Throws ValueError for options out of
  /// range.
  explicit LayerStack(const TransformerStackOptions& options) {
    const TransformerLayerOptions& o = options.layer;
    check(options);
    const index_t count = options.num_groups > 0 ? options.num_groups : options.num_layers;
    if (options.num_groups > 0) num_applied_ = options.num_layers;
    // Constructed one by one: copies would write the zeros of the first, which take no memory until
    // they are replaced.
    layers.reserve(static_cast<std::size_t>(count));
    const auto mixer_of = [&](std::size_t n) {
      return options.mixers.empty() ? o.mixer : options.mixers[n % options.mixers.size()];
    };
    const std::optional<RotaryOptions> no_rotary;
    const auto rotary_of = [&](std::size_t n) -> const std::optional<RotaryOptions>& {
      if (mixer_of(n) != TokenMixer::attention) return no_rotary;
      return options.rotary.empty() ? o.attention.rotary
                                    : options.rotary[n % options.rotary.size()];
    };
    for (std::size_t n = 0; n < static_cast<std::size_t>(count); ++n) {
      std::size_t first = 0;  // the first layer with these rotary options
      while (first < n && rotary_of(first) != rotary_of(n)) ++first;
      TransformerLayerOptions own = o;
      own.mixer = mixer_of(n);
      own.attention.rotary = first == n ? rotary_of(n) : std::nullopt;
      if (static_cast<index_t>(n) < options.dense_layers) own.experts = {};
      layers.emplace_back(own);
      if (first < n && rotary_of(n)) layers.back().share_rotary(layers[first]);
    }
    for (std::size_t n = 0; n < layers.size() && !options.windows.empty(); ++n) {
      layers[n].self_attn.set_window(options.windows[n % options.windows.size()]);
    }
    if (!options.first_norm && !layers.empty()) layers[0].norm1 = {};
    if (options.norm) norm = o.make_norm<T>();
    if (options.relative_buckets != 0) {
      check_t5_buckets(options.relative_buckets, options.relative_bidirectional,
                       options.relative_max_distance);
      relative_bias = Tensor2<T>({options.relative_buckets, o.nhead});
      relative_max_distance = options.relative_max_distance;
      relative_bidirectional = options.relative_bidirectional;
    }
  }

  /// See Linear::pack().
  void pack(MatmulPrecision precision = MatmulPrecision::highest) {
    for (Layer& layer : layers) layer.pack(precision);
  }

  /// How many layers are applied, and which of `layers` is the n-th of them.
  std::size_t num_layers() const {
    return num_applied_ > 0 ? static_cast<std::size_t>(num_applied_) : layers.size();
  }
  std::size_t place_of(std::size_t n) const { return n * layers.size() / num_layers(); }

  /// relative_bias; layers.0., layers.1., ..; norm.
  void visit_parameters(const ParameterVisitor<T>& f) { visit(*this, f); }
  void visit_parameters(const ParameterVisitor<const T>& f) const { visit(*this, f); }

  std::vector<Layer> layers;  ///< those with weights of their own
  Norm<T> norm;               ///< without a weight if there is no final norm
  Tensor2<T> relative_bias;   ///< (relative_buckets, num_heads), or empty
  index_t relative_max_distance = 128;
  bool relative_bidirectional = true;

 protected:
  /// Calls run_layer(layer, in, out, cache or nullptr) for each layer, all but the first in place,
  /// then the norm.
  template <class Cache, class F>
  void run(std::string_view function, TensorView3<const T> in, TensorView3<T> out,
           std::span<Cache> caches, const Execution& execution, F run_layer) const {
    check_shape(function, "out", in.shape(), out.shape());
    if (out.extent(2) > 1 && out.stride(2) != 1) {  // which the norm of the second layer needs
      throw_shape(function, "out", "have innermost stride 1 (these are the strides)",
                  out.strides());
    }
    if (!caches.empty()) check_caches(function, caches);
    CacheGuard guard(caches);
    for (std::size_t n = 0; n < num_layers(); ++n) {
      run_layer(layers[place_of(n)], in, out, caches.empty() ? nullptr : &caches[n]);
      in = out;
    }
    if (norm.weight) {
      norm.forward(in, out, execution);
    } else if (layers.empty()) {
      copy(in, out);
    }
    guard.commit();
  }

  /// One cache per layer, all at the same position.
  template <class Cache>
  void check_caches(std::string_view function, std::span<Cache> caches) const {
    if (caches.size() != num_layers()) {
      throw ValueError(message(function, "caches",
                               "be one per layer, " + std::to_string(num_layers()),
                               std::to_string(caches.size())));
    }
    for (std::size_t n = 1; n < caches.size(); ++n) {
      if (caches[n].is_like(caches[0])) continue;
      throw ValueError(message(function, "caches", "hold the same positions with the same room",
                               "cache " + std::to_string(n) + " unlike cache 0"));
    }
  }

 private:
  static void check(const TransformerStackOptions& o) {
    const auto refuse = [](std::string_view argument, std::string_view expected, index_t found) {
      throw ValueError(
          message("TransformerStackOptions", argument, expected, std::to_string(found)));
    };
    if (o.num_layers < 0) refuse("num_layers", "be at least 0", o.num_layers);
    if (o.dense_layers < 0 || (o.dense_layers > 0 && o.layer.experts.num_experts == 0)) {
      refuse("dense_layers", "be 0 without experts, and not negative", o.dense_layers);
    }
    if (o.layer.latent.kv_lora_rank != 0 && (!o.windows.empty() || o.relative_buckets != 0)) {
      throw ValueError(message("TransformerStackOptions", "windows and relative_buckets",
                               "be none with latent attention", "some"));
    }
    if (o.num_groups < 0 || o.num_groups > o.num_layers) {
      refuse("num_groups", "lie in 0 .. num_layers", o.num_groups);
    }
    if (!o.first_norm && (!o.layer.norm_first || o.layer.shared_norm || o.num_groups > 0)) {
      throw ValueError(message("TransformerStackOptions", "first_norm",
                               "be true without norm_first, and with shared_norm or num_groups",
                               "false"));
    }
  }

  template <class Self, class Visitor>
  static void visit(Self& self, const Visitor& f) {
    f.visit("relative_bias", self.relative_bias);
    for (std::size_t n = 0; n < self.layers.size(); ++n) {
      self.layers[n].visit_parameters(f.under("layers." + std::to_string(n) + "."));
    }
    self.norm.visit_parameters(f.under("norm."));
  }

  index_t num_applied_ = 0;  ///< 0: as many as there are `layers`
};

/// The options of one call's self-attention with the bias of the stack, valid while this object
/// exists.
template <class T>
class StackBias {
 public:
  template <class Layer>
  StackBias(std::string_view function, const LayerStack<T, Layer>& stack,
            const AttentionOptions<Accumulator<T>>& given)
      : shape_{stack.relative_bias ? stack.relative_bias.extent(1) : 0,
               2 * stack.relative_max_distance + 1},
        memory_(given.execution.scratch(), size_of(shape_)),
        options_(given) {
    if (!stack.relative_bias) return;
    if (given.relative_bias) {
      throw ValueError(message(function, "relative_bias", "be none: the stack has its own", "one"));
    }
    const TensorView2<Accumulator<T>> bias(memory_.data(), shape_);
    t5_relative_bias(stack.relative_bias, stack.relative_bidirectional, bias);
    options_.relative_bias = bias;
  }
  const AttentionOptions<Accumulator<T>>& options() const { return options_; }
  const Shape<2>& shape() const { return shape_; }

 private:
  Shape<2> shape_;  ///< (num_heads, 2 max_distance + 1), or without elements
  Scratch<Accumulator<T>> memory_;
  AttentionOptions<Accumulator<T>> options_;
};

}  // namespace detail

ATTN_NAMESPACE_END
