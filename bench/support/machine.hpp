// Properties of the machine: name, caches, threads and the rate of its cycle counter.
#pragma once

#include <cstdint>
#include <fstream>
#include <string>
#include <unistd.h>
#include <vector>

#include "attn/exec/executor.hpp"
#include "attn/simd/isa.hpp"

#include "support/threads.hpp"

#if ATTN_ARCH_X86
#include <x86intrin.h>
#endif

namespace bench {

/// The processor's model name, or a substitute.
inline std::string machine_name() {
  std::ifstream info("/proc/cpuinfo");
  for (std::string line; std::getline(info, line);) {
    if (line.starts_with("model name") && line.find(':') != std::string::npos) {
      const std::size_t begin = line.find_first_not_of(" \t", line.find(':') + 1);
      if (begin != std::string::npos) return line.substr(begin);
    }
  }
  return "unknown processor";
}

struct Cache {
  int level;
  std::int64_t bytes;
};

/// Data caches of the first core, from L1 up; empty if the system does not report them.
inline std::vector<Cache> caches() {
  std::vector<Cache> found;
  for (int i = 0; i < 8; ++i) {
    const std::string folder = "/sys/devices/system/cpu/cpu0/cache/index" + std::to_string(i) + "/";
    std::ifstream level_file(folder + "level"), type_file(folder + "type"),
        size_file(folder + "size");
    Cache cache{};
    std::string type;
    char unit = 'B';
    if (!(level_file >> cache.level) || !(type_file >> type) || !(size_file >> cache.bytes))
      continue;
    size_file >> unit;
    if (type == "Instruction") continue;
    cache.bytes *= unit == 'K' ? 1 << 10 : unit == 'M' ? 1 << 20 : 1;
    found.push_back(cache);
  }
#if defined(_SC_LEVEL1_DCACHE_SIZE)
  // Second choice: a virtual machine may report the host's caches here, not its share of them.
  if (found.empty()) {
    int level = 1;
    for (int name : {_SC_LEVEL1_DCACHE_SIZE, _SC_LEVEL2_CACHE_SIZE, _SC_LEVEL3_CACHE_SIZE}) {
      const long bytes = sysconf(name);
      if (bytes > 0) found.push_back({level, bytes});
      ++level;
    }
  }
#endif
  return found;
}

/// Bytes of the second-level cache, or a typical size if the system does not report it.
inline std::int64_t second_level_bytes() {
  for (const Cache& cache : caches()) {
    if (cache.level == 2) return cache.bytes;
  }
  return 512 << 10;
}

/// "32 KB", "1 MB"
inline std::string bytes_text(std::int64_t bytes) {
  if (bytes >= 1 << 20 && bytes % (1 << 20) == 0) return std::to_string(bytes >> 20) + " MB";
  return std::to_string(bytes >> 10) + " KB";
}

/// "L1 32 KB, L2 1 MB, L3 32 MB"
inline std::string caches_text() {
  std::string text;
  for (const Cache& cache : caches()) {
    text +=
        (text.empty() ? "L" : ", L") + std::to_string(cache.level) + " " + bytes_text(cache.bytes);
  }
  return text.empty() ? "unknown" : text;
}

/// The number of threads of a call without an executor.
inline int all_threads() { return attn::default_executor().concurrency(); }

/// The executor of one thread, or the default executor.
inline const attn::Executor& executor_of(bool all) {
  static const attn::SerialExecutor one;
  return all ? attn::default_executor() : one;
}

/// Ticks of the processor's time stamp counter per nanosecond; 0 if there is none. It runs at the
/// nominal clock, whatever the present clock of the cores is.
inline double counter_ghz() {
#if ATTN_ARCH_X86
  static const double ghz = [] {
    const Clock::time_point start = Clock::now();
    const std::uint64_t first = __rdtsc();
    while (seconds_since(start) < 0.05) {
    }
    const double ticks = static_cast<double>(__rdtsc() - first);
    return ticks / seconds_since(start) * 1e-9;
  }();
  return ghz;
#else
  return 0;
#endif
}

}  // namespace bench
