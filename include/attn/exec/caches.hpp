// Cache sizes of the machine, which tile sizes follow.
#pragma once

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

ATTN_NAMESPACE_END
