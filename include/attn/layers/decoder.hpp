// Decoder: a stack of decoder layers with a final norm, PyTorch's nn.TransformerDecoder.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attn/layers/decoder_layer.hpp"
#include "attn/layers/layer_stack.hpp"

ATTN_NAMESPACE_BEGIN

/// PyTorch's nn.TransformerDecoder: x (batch, tgt_len, d_model) and memory (batch, src_len,
/// d_model) to the shape of x.
template <class T>
class Decoder : public detail::LayerStack<T, DecoderLayer<T>> {
  using Stack = detail::LayerStack<T, DecoderLayer<T>>;

 public:
  using Stack::Stack;

  /// One cache for each layer; see DecoderLayer::make_cache().
  std::vector<DecoderLayerCache<T>> make_caches(index_t batch, index_t capacity, index_t memory_len,
                                                std::optional<DType> element = {}) const {
    std::vector<DecoderLayerCache<T>> caches;
    for (std::size_t n = 0; n < this->num_layers(); ++n) {
      const DecoderLayer<T>& layer = this->layers[this->place_of(n)];
      caches.push_back(layer.make_cache(batch, capacity, memory_len, element));
    }
    return caches;
  }

  template <TensorLike X, TensorLike Memory, class... Functors>
  Tensor3<T> operator()(const X& x, const Memory& memory,
                        const AttentionOptions<Accumulator<T>>& options = {},
                        const DecoderCall<T>& call = {},
                        std::span<DecoderLayerCache<T>> caches = {},
                        const Functors&... functors) const {
    ATTN_ASSERT_INPUT(X, T, 3, "Decoder: x", "(batch, seq, d_model)", "the layer");
    ATTN_ASSERT_INPUT(Memory, T, 3, "Decoder: memory", "(batch, memory_len, d_model)", "the layer");
    const auto in = detail::view_as<const T, 3>(x), source = detail::view_as<const T, 3>(memory);
    auto out = Tensor3<T>::uninitialized(in.shape());
    forward(in, source, out, options, call, caches, functors...);
    return out;
  }

  /// Writes to `out`, which may be x but must not overlap memory. All layers get the same options,
  /// and functors for self-attention; outputs on request are those of the last layer. With caches,
  /// one per layer, x holds the tokens after those in the caches, and only the first call reads
  /// memory. Throws ShapeError or ValueError, and then leaves the caches unchanged.
  template <TensorLike X, TensorLike Memory, TensorLike Out, class... Functors>
  void forward(const X& x, const Memory& memory, Out&& out,
               const AttentionOptions<Accumulator<T>>& options = {},
               const DecoderCall<T>& call = {}, std::span<DecoderLayerCache<T>> caches = {},
               const Functors&... functors) const {
    ATTN_ASSERT_INPUT(X, T, 3, "Decoder: x", "(batch, seq, d_model)", "the layer");
    ATTN_ASSERT_INPUT(Memory, T, 3, "Decoder: memory", "(batch, memory_len, d_model)", "the layer");
    ATTN_ASSERT_OUTPUT(Out, T, 3, "Decoder: out", "(batch, seq, d_model)", "the layer");
    const auto source = detail::view_as<const T, 3>(memory);
    const detail::StackBias<T> own("Decoder", *this, options);
    this->run("Decoder", detail::view_as<const T, 3>(x), detail::view_as<T, 3>(out), caches,
              options.execution,
              [&](const DecoderLayer<T>& layer, auto from, auto to, DecoderLayerCache<T>* cache) {
                layer.forward(from, source, to, own.options(), call, cache, functors...);
              });
  }
};

ATTN_NAMESPACE_END
