// Encoder: a stack of encoder layers with a final norm, PyTorch's nn.TransformerEncoder.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>

#include "attn/layers/layer_stack.hpp"

ATTN_NAMESPACE_BEGIN

/// PyTorch's nn.TransformerEncoder: x (batch, seq, d_model) to the same shape.
template <class T>
class Encoder : public detail::LayerStack<T, EncoderLayer<T>> {
  using Stack = detail::LayerStack<T, EncoderLayer<T>>;

 public:
  using Stack::Stack;

  /// One cache for each layer; see MultiHeadAttention::make_cache().
  std::vector<KvCache<T>> make_caches(index_t batch, index_t capacity, index_t window = 0,
                                      std::optional<DType> element = {}) const {
    std::vector<KvCache<T>> caches;
    for (std::size_t n = 0; n < this->num_layers(); ++n) {
      const EncoderLayer<T>& layer = this->layers[this->place_of(n)];
      caches.push_back(layer.make_cache(batch, capacity, window, element));
    }
    return caches;
  }

  template <TensorLike X, class... Functors>
  Tensor3<T> operator()(const X& x, const AttentionOptions<Accumulator<T>>& options = {},
                        TensorView2<const index_t> position_ids = {},
                        std::span<KvCache<T>> caches = {}, const Functors&... functors) const {
    ATTN_ASSERT_INPUT(X, T, 3, "Encoder: x", "(batch, seq, d_model)", "the layer");
    const auto in = detail::view_as<const T, 3>(x);
    auto out = Tensor3<T>::uninitialized(in.shape());
    forward(in, out, options, position_ids, caches, functors...);
    return out;
  }

  /// Writes to `out`, which may be x. All layers get the same options and functors; outputs on
  /// request are those of the last layer. With caches, one per layer, x holds the tokens after
  /// those in the caches. Throws ShapeError or ValueError, and then leaves the caches unchanged,
  /// except for keys that a window forgot.
  template <TensorLike X, TensorLike Out, class... Functors>
  void forward(const X& x, Out&& out, const AttentionOptions<Accumulator<T>>& options = {},
               TensorView2<const index_t> position_ids = {}, std::span<KvCache<T>> caches = {},
               const Functors&... functors) const {
    ATTN_ASSERT_INPUT(X, T, 3, "Encoder: x", "(batch, seq, d_model)", "the layer");
    ATTN_ASSERT_OUTPUT(Out, T, 3, "Encoder: out", "(batch, seq, d_model)", "the layer");
    const detail::StackBias<T> own("Encoder", *this, options);
    this->run("Encoder", detail::view_as<const T, 3>(x), detail::view_as<T, 3>(out), caches,
              options.execution,
              [&](const EncoderLayer<T>& layer, auto from, auto to, KvCache<T>* cache) {
                layer.forward(from, to, own.options(),
                              {.position_ids = position_ids, .cache = cache}, functors...);
              });
  }

  /// Forward of a tree of tokens, x (batch, n, d_model): see MultiHeadAttentionCall::parents and
  /// position_ids. Throws ShapeError or ValueError, also without a causal mask, and then leaves the
  /// caches unchanged.
  template <TensorLike X, TensorLike Out>
  void forward_tree(const X& x, Out&& out, const AttentionOptions<Accumulator<T>>& options,
                    TensorView2<const index_t> position_ids, std::span<KvCache<T>> caches,
                    TensorView1<const index_t> parents) const {
    const detail::StackBias<T> own("Encoder", *this, options);
    this->run("Encoder", const_view(x), view_of(out), caches, options.execution,
              [&](const EncoderLayer<T>& layer, auto from, auto to, KvCache<T>* cache) {
                layer.forward(from, to, own.options(),
                              {.position_ids = position_ids, .cache = cache, .parents = parents});
              });
  }

  /// Forward for several conversations of any lengths: row b of x holds the tokens after those of
  /// conversations[b], which has a cache of one row per layer. The result equals one call per row,
  /// but linear layers read their weights once for all rows. See MultiHeadAttentionCall::row_caches
  /// for the options allowed. Throws ShapeError or ValueError, and then leaves all caches
  /// unchanged, except for keys that a window forgot.
  template <TensorLike X, TensorLike Out, class... Functors>
  void forward_rows(const X& x, Out&& out, const AttentionOptions<Accumulator<T>>& options,
                    std::span<const std::span<KvCache<T>>> conversations,
                    const Functors&... functors) const {
    const index_t batch = const_view(x).extent(0);
    if (std::ssize(conversations) != batch) {
      throw ValueError(message("Encoder", "conversations",
                               "be one per batch row, " + std::to_string(batch),
                               std::to_string(conversations.size())));
    }
    for (const std::span<KvCache<T>> caches : conversations) this->check_caches("Encoder", caches);
    detail::CallGuard<T> guard(conversations);
    std::vector<KvCache<T>*> rows(conversations.size());
    const detail::StackBias<T> own("Encoder", *this, options);
    std::size_t n = 0;  // index of the layer
    this->run("Encoder", const_view(x), view_of(out), std::span<KvCache<T>>(), options.execution,
              [&](const EncoderLayer<T>& layer, auto from, auto to, KvCache<T>*) {
                std::transform(conversations.begin(), conversations.end(), rows.begin(),
                               [n](std::span<KvCache<T>> caches) { return &caches[n]; });
                ++n;
                layer.forward(from, to, own.options(), {.row_caches = rows}, functors...);
              });
    guard.commit();
  }
};

ATTN_NAMESPACE_END
