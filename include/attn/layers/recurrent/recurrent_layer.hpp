// RecurrentLayer: the cache of a recurrent layer, and its call without an output.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attn/layers/recurrent/recurrent_call.hpp"

ATTN_NAMESPACE_BEGIN

namespace detail {

/// Base of Layer, which has state_size() and forward(x, out, call, execution).
template <class Layer, class T>
class RecurrentLayer {
 public:
  /// A cache for the layer's state. Throws ValueError for a window.
  KvCache<T> make_cache(index_t batch, index_t capacity, index_t window = 0,
                        std::optional<DType> element = {}) const {
    return KvCache<T>({.batch = batch,
                       .capacity = capacity,
                       .window = window,
                       .element = element,
                       .state_size = layer().state_size()});
  }

  template <TensorLike X>
  Tensor3<T> operator()(const X& x, const MultiHeadAttentionCall<T>& call = {},
                        const Execution& execution = {}) const {
    ATTN_ASSERT_INPUT(X, T, 3, "a recurrent layer: x", "(batch, seq, d_model)", "the layer");
    const auto from = view_as<const T, 3>(x);
    auto out = Tensor3<T>::uninitialized(from.shape());
    layer().forward(from, out, call, execution);
    return out;
  }

 private:
  const Layer& layer() const { return static_cast<const Layer&>(*this); }
};

}  // namespace detail

ATTN_NAMESPACE_END
