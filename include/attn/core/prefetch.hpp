// prefetch_bytes(): asks for memory before it is needed.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attn/core/shape.hpp"

ATTN_NAMESPACE_BEGIN

namespace detail {

/// Asks for `bytes` from p on, into the second cache: a core waits for few lines at a time, and for fewer of the first.
/// kWrite: 1 for what will be written. What calls this and does nothing else is ATTN_INLINE too: g++ 12 -O2 finds a
/// function that only asks for memory to be without effect, and drops the calls.
template <int kWrite = 0>
ATTN_INLINE void prefetch_bytes(const void* p, index_t bytes) {
  for (index_t at = 0; at < bytes; at += 64) {
    __builtin_prefetch(static_cast<const char*>(p) + at, kWrite, 2);
  }
}

}  // namespace detail

ATTN_NAMESPACE_END
