// append_first: copies the beginning of a KV cache, as stored.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attn/attention/kv_cache.hpp"

ATTN_NAMESPACE_BEGIN

namespace detail {

/// Copies the first n positions of a cache with the same element type, bit for bit. Throws
/// ValueError unless `from` holds them, and for the reasons of KvCache::append_stored().
template <class T>
void append_first(KvCache<T>& to, const KvCache<T>& from, index_t n) {
  const index_t held = from.first_position() > 0 ? 0 : from.size();
  if (n < 0 || n > held) throw_cache_range("append_first", "n", 0, held, n);
  const auto first = [n](const auto& x) { return x ? x.slice(2, 0, n) : x; };
  with_cache_element<T>(*from.options().element, [&]<class E>(E) {
    to.append_stored(first(from.template keys<E>()), first(from.template values<E>()),
                     first(from.key_scales()), first(from.value_scales()));
  });
}

}  // namespace detail

ATTN_NAMESPACE_END
