// Decoder: a stack of decoder layers with a norm behind it, by PyTorch's names.
#pragma once

#include "attn/layers/decoder_layer.hpp"
#include "attn/layers/encoder.hpp"

ATTN_NAMESPACE_BEGIN

/// PyTorch's nn.TransformerDecoder: x (batch, tgt_len, d_model) and memory (batch, src_len, d_model) to the shape of x.
template <class T>
class Decoder {
 public:
  Decoder() = default;
  /// Of the options of a stack, the layers are decoder layers.
  explicit Decoder(const EncoderOptions& options)
      : layers(detail::make_layers<DecoderLayer<T>>(options.num_layers, options.layer)) {
    if (options.norm)
      norm = {options.layer.norm, options.layer.d_model, options.layer.layer_norm_eps,
              options.layer.bias};
  }

  /// One cache for each layer; see DecoderLayer::make_cache().
  std::vector<DecoderLayerCache<T>> make_caches(index_t batch, index_t capacity,
                                                index_t memory_len) const {
    std::vector<DecoderLayerCache<T>> caches;
    for (const DecoderLayer<T>& layer : layers) {
      caches.push_back(layer.make_cache(batch, capacity, memory_len));
    }
    return caches;
  }

  template <TensorLike X, TensorLike Memory>
  Tensor3<T> operator()(const X& x, const Memory& memory, const AttentionOptions<T>& options = {},
                        const DecoderCall<T>& call = {},
                        std::span<DecoderLayerCache<T>> caches = {}) const {
    auto out = Tensor3<T>::uninitialized(const_view(x).shape());
    forward(x, memory, out, options, call, caches);
    return out;
  }

  /// Into `out`, which may be x. Every layer is told the same options: their outputs show the last layer. With caches,
  /// one per layer, x holds the tokens behind those of the caches, and memory is read by the first call alone.
  /// Throws ShapeError or ValueError.
  template <TensorLike X, TensorLike Memory, TensorLike Out>
  void forward(const X& x, const Memory& memory, Out&& out, const AttentionOptions<T>& options = {},
               const DecoderCall<T>& call = {}, std::span<DecoderLayerCache<T>> caches = {}) const {
    TensorView3<const T> in = const_view(x);
    const TensorView3<T> to = view_of(out);
    check_shape("Decoder", "out", in.shape(), to.shape());
    detail::check_caches("Decoder", caches, layers.size());
    for (std::size_t n = 0; n < layers.size(); ++n) {
      layers[n].forward(in, memory, to, options, call, caches.empty() ? nullptr : &caches[n]);
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
    for (DecoderLayer<T>& layer : layers) layer.pack();
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

  std::vector<DecoderLayer<T>> layers;
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
