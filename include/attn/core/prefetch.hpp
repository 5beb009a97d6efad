// prefetch_bytes(): prefetches memory into a cache.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attn/core/shape.hpp"

ATTN_NAMESPACE_BEGIN

namespace detail {

/// Prefetches `bytes` from p on into L2, which has more fill buffers than L1. kWrite: 1 for what
/// will be written. A function that does nothing but prefetch is ATTN_INLINE too: g++ 12 -O2 takes
/// it to be without effect, and drops the calls.
template <int kWrite = 0>
ATTN_INLINE void prefetch_bytes(const void* p, index_t bytes) {
  for (index_t at = 0; at < bytes; at += 64) {
    __builtin_prefetch(static_cast<const char*>(p) + at, kWrite, 2);
  }
}

}  // namespace detail

ATTN_NAMESPACE_END
