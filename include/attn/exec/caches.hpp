// Cache sizes of the machine, which determine tile sizes and streaming stores.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdio>

#if __has_include(<unistd.h>)
#include <unistd.h>
#endif

#include "attn/core/shape.hpp"

ATTN_NAMESPACE_BEGIN

/// Bytes of one core's second-level cache; 1 MB if the system does not report it.
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

/// Bytes of the last-level cache that one core can use: at most 64 MB, 32 MB if the system does not
/// report it. Read from /sys, which gives the cache of one group of cores; sysconf() adds up all
/// groups, although an AMD core reaches only 32 MB of them. Capped at 64 MB, since other cores
/// share larger ones: with 480 MB, non-temporal stores are slower when 32 MB are read and written
/// (attn_report gelu and layer_norm), and faster when 128 MB are.
inline index_t last_level_cache() {
  static const index_t bytes = [] {
    constexpr index_t kMax = index_t{64} << 20, kUnknown = index_t{32} << 20;
    std::FILE* file = std::fopen("/sys/devices/system/cpu/cpu0/cache/index3/size", "r");
    if (file == nullptr) return kUnknown;
    long kilobytes = 0;
    const bool is_number = std::fscanf(file, "%ldK", &kilobytes) == 1;
    std::fclose(file);
    if (!is_number || kilobytes <= 0) return kUnknown;
    return (std::min)(index_t{kilobytes}, kMax / 1024) * 1024;
  }();
  return bytes;
}

ATTN_NAMESPACE_END
