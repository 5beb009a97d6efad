// has_fast_pairs(): whether bfloat16 pairs multiply faster than float.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>

#include "attn/core/config.hpp"

ATTN_NAMESPACE_BEGIN

namespace detail {

#if ATTN_ARCH_X86
// Twelve chains keep two units of four cycles' latency busy; the operands are zeros, which are not
// slow on any processor. Written in assembler, since this header precedes those of intrinsics.
#define ATTN_PAIR_CHAIN(instruction, sum) instruction " %%zmm0, %%zmm0, %%zmm" #sum "\n\t"
#define ATTN_PAIR_CHAINS(instruction) \
  asm volatile(                                                                              \
      "vzeroall\n\t"                                                                         \
      "movl $64, %%ecx\n"                                                                    \
      "1:\n\t" ATTN_PAIR_CHAIN(instruction, 1) ATTN_PAIR_CHAIN(instruction, 2)               \
          ATTN_PAIR_CHAIN(instruction, 3) ATTN_PAIR_CHAIN(instruction, 4)                    \
              ATTN_PAIR_CHAIN(instruction, 5) ATTN_PAIR_CHAIN(instruction, 6)                \
                  ATTN_PAIR_CHAIN(instruction, 7) ATTN_PAIR_CHAIN(instruction, 8)            \
                      ATTN_PAIR_CHAIN(instruction, 9) ATTN_PAIR_CHAIN(instruction, 10)       \
                          ATTN_PAIR_CHAIN(instruction, 11) ATTN_PAIR_CHAIN(instruction, 12)  \
      "decl %%ecx\n\t"                                                                       \
      "jnz 1b\n\t"                                                                           \
      "vzeroall"                                                                             \
      :                                                                                      \
      :                                                                                      \
      : "ecx", "cc", "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", \
        "xmm9", "xmm10", "xmm11", "xmm12", "xmm13", "xmm14", "xmm15")

/// Ticks of 768 instructions, best of several rounds, so that interrupted rounds do not count.
template <class F>
unsigned long long best_of_rounds(F run) {
  unsigned long long best = ~0ull;
  for (int round = 0; round < 16; ++round) {
    const unsigned long long start = __builtin_ia32_rdtsc();
    run();
    best = (std::min)(best, __builtin_ia32_rdtsc() - start);
  }
  return best;
}

/// A pair is two products. Of the processors with the instruction, AMD's Zen 4 and 5 execute it as
/// often as a multiply-add of floats (a ratio of 1), Intel's Emerald Rapids a quarter as often (4).
inline bool has_fast_pairs() {
  if (__builtin_cpu_supports("avx512bf16") == 0) return false;
  const auto floats = [] { ATTN_PAIR_CHAINS("vfmadd231ps"); };
  const auto pairs = [] { ATTN_PAIR_CHAINS("vdpbf16ps"); };
  const auto of_floats = static_cast<double>(best_of_rounds(floats));
  return static_cast<double>(best_of_rounds(pairs)) < 1.7 * of_floats;
}
#undef ATTN_PAIR_CHAINS
#undef ATTN_PAIR_CHAIN
#else
inline bool has_fast_pairs() { return false; }
#endif

}  // namespace detail

ATTN_NAMESPACE_END
