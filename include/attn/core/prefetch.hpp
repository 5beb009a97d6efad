// prefetch_bytes(): prefetches memory into a cache.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attn/core/shape.hpp"

ATTN_NAMESPACE_BEGIN

namespace detail {

/// Prefetches `bytes` from p on into L2, which has more fill buffers than L1. kWrite: 1 for data
/// that will be written. A function that only prefetches must be ATTN_INLINE: g++ 12 -O2 regards it
/// as free of effects and drops the calls.
template <int kWrite = 0>
ATTN_INLINE void prefetch_bytes(const void* p, index_t bytes) {
  for (index_t at = 0; at < bytes; at += 64) {
    __builtin_prefetch(static_cast<const char*>(p) + at, kWrite, 2);
  }
}

}  // namespace detail

ATTN_NAMESPACE_END
