// Cache sizes of the machine, which tile sizes follow, and stores past the caches.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>

#if __has_include(<unistd.h>)
#include <unistd.h>
#endif

#include "attn/core/shape.hpp"

ATTN_NAMESPACE_BEGIN

/// Bytes of one core's second-level cache; 1 MB where the system does not say.
inline index_t second_level_cache() {
  static const index_t bytes = [] {
#if defined(_SC_LEVEL2_CACHE_SIZE)
    const long found = sysconf(_SC_LEVEL2_CACHE_SIZE);
    if (found > 0) return index_t{found};
#endif
    return index_t{1} << 20;
  }();
  return bytes;
}

/// Bytes of the last-level cache that one core reaches: at most 32 MB, which it is where the system
/// does not say. (On AMD's machines glibc adds up the caches of all cores: 256 MB and more, of
/// which a core reaches 32.)
inline index_t last_level_cache() {
  static const index_t bytes = [] {
    constexpr index_t kMost = index_t{32} << 20;
#if defined(_SC_LEVEL3_CACHE_SIZE)
    const long found = sysconf(_SC_LEVEL3_CACHE_SIZE);
    if (found > 0) return (std::min)(index_t{found}, kMost);
#endif
    return kMost;
  }();
  return bytes;
}

ATTN_NAMESPACE_END
