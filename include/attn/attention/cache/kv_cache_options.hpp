// KvCacheOptions: shape, window and element of a KV cache.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>

#include "attn/core/element.hpp"
#include "attn/core/shape.hpp"

ATTN_NAMESPACE_BEGIN

struct KvCacheOptions {
  index_t batch = 1;         ///< rows, each an independent sequence
  index_t num_kv_heads = 1;  ///< key/value heads
  index_t capacity = 0;      ///< maximum number of keys held
  index_t head_dim = 0;      ///< dimension of a key
  index_t head_dim_v = 0;    ///< dimension of a value; 0: head_dim
  /// Keys kept when new ones are appended, enough for sliding_window(window, 0); must be below
  /// capacity; 0 keeps all.
  index_t window = 0;
  /// Element type in which keys and values are stored; default: the type of the cache. A cache of
  /// float may use DType::BF16, DType::F16 or DType::I8: half or, with a scale per token and head,
  /// about a quarter of the memory, which limits decoding. Queries, products and softmax stay
  /// float. See docs/precision.md.
  std::optional<DType> element = {};
};

namespace detail {

/// Calls f(E{}) with the type E of an element that a KvCache<T> may store; returns false for
/// others.
template <class T, class F>
bool with_cache_element(DType element, const F& f) {
  if constexpr (std::same_as<T, float>) {
    return with_dtype<float, bfloat16, float16, std::int8_t>(element, f);
  } else {
    return with_dtype<T>(element, f);
  }
}

}  // namespace detail

ATTN_NAMESPACE_END
