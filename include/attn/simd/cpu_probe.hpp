// Detection of features that compilers cannot query: AVX-VNNI, AMX on Linux, NEON's dot product.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attn/core/config.hpp"

#if ATTN_ARCH_X86 && defined(__linux__)
#include <csetjmp>
#include <csignal>
#include <sys/syscall.h>
#include <unistd.h>
#elif ATTN_ARCH_ARM64 && defined(__linux__)
#include <sys/auxv.h>
#endif

ATTN_NAMESPACE_BEGIN

namespace detail {

#if ATTN_ARCH_X86

struct CpuidRegisters {
  unsigned eax, ebx, ecx, edx;
};

/// All 0 for a leaf that the processor does not have. Does not use <cpuid.h>, whose macros would
/// leak into the program.
inline CpuidRegisters cpuid(unsigned leaf, unsigned subleaf) {
  const auto ask = [](unsigned of, unsigned sub) {
    CpuidRegisters r;
    asm volatile("cpuid" : "=a"(r.eax), "=b"(r.ebx), "=c"(r.ecx), "=d"(r.edx) : "a"(of), "c"(sub));
    return r;
  };
  return ask(0, 0).eax < leaf ? CpuidRegisters{} : ask(leaf, subleaf);
}

/// Requires AVX2, for which __builtin_cpu_supports() checks that the system saves its registers.
inline bool has_avxvnni() { return cpuid(7, 0).eax >= 1 && (cpuid(7, 1).eax >> 4 & 1) != 0; }

#endif

#if ATTN_ARCH_X86 && defined(__linux__)

inline sigjmp_buf& tile_probe_return() {
  static sigjmp_buf where;
  return where;
}

/// Whether a tile instruction runs: some virtual machines report the features, grant the state, and
/// raise SIGILL.
inline bool runs_tile_instructions() {
  struct sigaction probe = {}, before = {};
  probe.sa_handler = [](int) { siglongjmp(tile_probe_return(), 1); };
  if (sigaction(SIGILL, &probe, &before) != 0) return false;
  volatile bool runs = false;
  if (sigsetjmp(tile_probe_return(), 1) == 0) {
    alignas(64) unsigned char config[64] = {1};  // palette 1: one tile of one row of 4 bytes
    config[16] = 4;
    config[48] = 1;
    asm volatile(
        "ldtilecfg %0\n\t"
        "tilezero %%tmm0\n\t"
        "tilerelease"
        :
        : "m"(config));
    runs = true;
  }
  sigaction(SIGILL, &before, nullptr);
  return runs;
}

/// Whether tiles of bfloat16 and of 8-bit integers are available, and the system grants this
/// process their state: one request holds for every thread, and signal frames of threads that use
/// tiles grow by 8 KB. Called once per program.
inline bool has_amx() {
  constexpr unsigned kXsaveInUse = 1u << 27;                                // leaf 1, ecx
  constexpr unsigned kBf16 = 1u << 22, kTile = 1u << 24, kInt8 = 1u << 25;  // leaf 7, edx
  constexpr unsigned kTileState = 3u << 17;                    // XCR0: configuration and data
  constexpr long kRequestPermission = 0x1023, kTileData = 18;  // arch_prctl(2)
  if ((cpuid(1, 0).ecx & kXsaveInUse) == 0) return false;
  if ((~cpuid(7, 0).edx & (kBf16 | kTile | kInt8)) != 0) return false;
  unsigned low, high;
  asm volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  if ((low & kTileState) != kTileState) return false;
  if (syscall(SYS_arch_prctl, kRequestPermission, kTileData) != 0) return false;
  return runs_tile_instructions();
}

#elif ATTN_ARCH_X86
inline bool has_amx() { return false; }
#elif ATTN_ARCH_ARM64

/// SDOT: true if the program is compiled for it, as programs for Apple's processors always are, or
/// if Linux reports it.
inline bool has_neondot() {
#if defined(__ARM_FEATURE_DOTPROD)
  return true;
#elif defined(__linux__)
  constexpr unsigned long kDotProducts = 1ul << 20;  // HWCAP_ASIMDDP
  return (getauxval(AT_HWCAP) & kDotProducts) != 0;
#else
  return false;
#endif
}
#endif

}  // namespace detail

ATTN_NAMESPACE_END
