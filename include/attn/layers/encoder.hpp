// Encoder: a stack of encoder layers with a norm behind it, by PyTorch's names.
#pragma once

#include <span>
#include <vector>

#include "attn/layers/encoder_layer.hpp"

ATTN_NAMESPACE_BEGIN

struct EncoderOptions {
  index_t num_layers = 6;
  TransformerLayerOptions layer = {};
  bool norm = false;  ///< of the last layer's result, as pre-norm stacks have it
};

namespace detail {

/// "layers.3." and the like, for visit_part.
inline std::string layer_prefix(std::size_t n) { return "layers." + std::to_string(n) + "."; }

/// Zero parameters of `count` like layers; their rotary table is one.
template <class Layer>
std::vector<Layer> make_layers(index_t count, const TransformerLayerOptions& options) {
  if (count == 0) return {};
  return std::vector<Layer>(static_cast<std::size_t>(count), Layer(options));
}

template <class Caches>
void check_caches(std::string_view function, const Caches& caches, std::size_t layers) {
  if (caches.empty() || caches.size() == layers) return;
  throw ValueError(message(function, "caches", "number one per layer, " + std::to_string(layers),
                           std::to_string(caches.size())));
}

}  // namespace detail

/// PyTorch's nn.TransformerEncoder: x (batch, seq, d_model) to the same shape.
template <class T>
class Encoder {
 public:
  Encoder() = default;
  explicit Encoder(const EncoderOptions& options)
      : layers(detail::make_layers<EncoderLayer<T>>(options.num_layers, options.layer)) {
    if (options.norm)
      norm = {options.layer.norm, options.layer.d_model, options.layer.layer_norm_eps,
              options.layer.bias};
  }

  /// One cache for each layer; see MultiHeadAttention::make_cache().
  std::vector<KvCache<T>> make_caches(index_t batch, index_t capacity, index_t window = 0) const {
    std::vector<KvCache<T>> caches;
    for (const EncoderLayer<T>& layer : layers) {
      caches.push_back(layer.self_attn.make_cache(batch, capacity, window));
    }
    return caches;
  }

  template <TensorLike X>
  Tensor3<T> operator()(const X& x, const AttentionOptions<T>& options = {},
                        TensorView2<const index_t> position_ids = {},
                        std::span<KvCache<T>> caches = {}) const {
    auto out = Tensor3<T>::uninitialized(const_view(x).shape());
    forward(x, out, options, position_ids, caches);
    return out;
  }

  /// Into `out`, which may be x. Every layer is told the same options: their outputs show the last layer. With caches,
  /// one per layer, x holds the tokens behind those of the caches. Throws ShapeError or ValueError.
  template <TensorLike X, TensorLike Out>
  void forward(const X& x, Out&& out, const AttentionOptions<T>& options = {},
               TensorView2<const index_t> position_ids = {},
               std::span<KvCache<T>> caches = {}) const {
    TensorView3<const T> in = const_view(x);
    const TensorView3<T> to = view_of(out);
    check_shape("Encoder", "out", in.shape(), to.shape());
    detail::check_caches("Encoder", caches, layers.size());
    for (std::size_t n = 0; n < layers.size(); ++n) {
      layers[n].forward(
          in, to, options,
          {.position_ids = position_ids, .cache = caches.empty() ? nullptr : &caches[n]});
      in = to;
    }
    if (norm.weight) {
      norm.forward(in, to, options.execution);
    } else if (layers.empty()) {
      copy<T, 3>(in, to);
    }
  }

  /// See Linear::pack().
  void pack() {
    for (EncoderLayer<T>& layer : layers) layer.pack();
  }

  /// layers.0., layers.1., ..; norm.
  template <class F>
  void visit_parameters(F&& f) {
    visit(*this, f);
  }
  template <class F>
  void visit_parameters(F&& f) const {
    visit(*this, f);
  }

  std::vector<EncoderLayer<T>> layers;
  Norm<T> norm;  ///< without a weight where there is none

 private:
  template <class Self, class F>
  static void visit(Self& self, F& f) {
    for (std::size_t n = 0; n < self.layers.size(); ++n) {
      visit_part(detail::layer_prefix(n), self.layers[n], f);
    }
    if (self.norm.weight) visit_part("norm.", self.norm, f);
  }
};

ATTN_NAMESPACE_END
