// prefetch_bytes(): asks for memory before it is needed.
#pragma once

#include "attn/core/shape.hpp"

ATTN_NAMESPACE_BEGIN

namespace detail {

/// Asks for `bytes` from p on: kLocality 3 into the first cache, 2 into the second. kWrite: 1 for what will be
/// written. What calls this and does nothing else is ATTN_INLINE too: g++ 12 -O2 finds a function that only asks for
/// memory to be without effect, and drops the calls.
template <int kLocality, int kWrite = 0>
ATTN_INLINE void prefetch_bytes(const void* p, index_t bytes) {
  for (index_t at = 0; at < bytes; at += 64) {
    __builtin_prefetch(static_cast<const char*>(p) + at, kWrite, kLocality);
  }
}

}  // namespace detail

ATTN_NAMESPACE_END
