// The machine's measured peak of float multiply-adds, the limit of FLOP/s figures.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <utility>

#include "attn/simd/isa.hpp"

#include "support/threads.hpp"

#if ATTN_ARCH_X86
#include <immintrin.h>
#endif

namespace bench {
namespace detail {

// Twelve independent chains of operations. Two units with a latency of 4 cycles (AVX2 and AVX-512
// on every processor so far) are busy from eight chains on. SSE2 has no FMA: a multiplication and
// an addition of 3 or 4 cycles follow each other on two units each, which takes twelve chains.
// Twelve chains and two constants occupy 14 of 16 registers. Each chain is a variable of its own,
// because g++ 12 spills arrays, and starts from another value, or the compiler would compute one
// chain for all. Assembly at -O2, g++ 12: the loop is 12 vfmadd132ps on registers, sub and jne;
// clang 14 unrolls it twice.
#define ATTN_BENCH_CHAINS(_) _(0) _(1) _(2) _(3) _(4) _(5) _(6) _(7) _(8) _(9) _(10) _(11)
#define ATTN_BENCH_START(i) Vec chain##i = factor + static_cast<float>(i);
#define ATTN_BENCH_SUM(i) total += chain##i;
#define ATTN_BENCH_DEFINE_CHAINS(name, target, lanes, STEP)                         \
  target __attribute__((noinline)) inline float name(std::int64_t steps, float x) { \
    typedef float Vec __attribute__((vector_size(lanes * sizeof(float))));          \
    const Vec factor = Vec{} + x, summand = Vec{} + (1 - x);                        \
    ATTN_BENCH_CHAINS(ATTN_BENCH_START)                                             \
    for (std::int64_t step = 0; step < steps; ++step) {                             \
      ATTN_BENCH_CHAINS(STEP)                                                       \
    }                                                                               \
    Vec total{};                                                                    \
    ATTN_BENCH_CHAINS(ATTN_BENCH_SUM)                                               \
    return total[0];                                                                \
  }
#define ATTN_BENCH_STEP_PLAIN(i) chain##i = chain##i * factor + summand;
#define ATTN_BENCH_STEP_AVX2(i) chain##i = Vec(_mm256_fmadd_ps(chain##i, factor, summand));
#define ATTN_BENCH_STEP_AVX512(i) chain##i = Vec(_mm512_fmadd_ps(chain##i, factor, summand));

inline constexpr double kChains = 12;

ATTN_BENCH_DEFINE_CHAINS(chains_plain, , 4, ATTN_BENCH_STEP_PLAIN)
#if ATTN_ARCH_X86
ATTN_BENCH_DEFINE_CHAINS(chains_avx2, __attribute__((target("avx2,fma"))), 8, ATTN_BENCH_STEP_AVX2)
ATTN_BENCH_DEFINE_CHAINS(chains_avx512, __attribute__((target("avx512f"))), 16,
                         ATTN_BENCH_STEP_AVX512)
#endif

#undef ATTN_BENCH_CHAINS
#undef ATTN_BENCH_START
#undef ATTN_BENCH_SUM
#undef ATTN_BENCH_DEFINE_CHAINS
#undef ATTN_BENCH_STEP_PLAIN
#undef ATTN_BENCH_STEP_AVX2
#undef ATTN_BENCH_STEP_AVX512

/// Operations of `steps` iterations of the loop: a multiply-add counts as two.
inline double run_chains(attn::Isa isa, std::int64_t steps) {
  // volatile, so that the compiler does not know the value; below 1, so that the chains converge
  // and stay normal numbers.
  volatile float x = 0.75f;
  volatile float kept = 0;
  double lanes = 4;
#if ATTN_ARCH_X86
  if (attn::base(isa) == attn::Isa::avx512) {
    kept = chains_avx512(steps, x);
    lanes = 16;
  } else if (isa == attn::Isa::avx2) {
    kept = chains_avx2(steps, x);
    lanes = 8;
  } else
#endif
  {
    kept = chains_plain(steps, x);
  }
  static_cast<void>(isa);
  static_cast<void>(kept);
  return 2 * kChains * lanes * static_cast<double>(steps);
}

}  // namespace detail

/// FLOP/s of one round of about `seconds` on `threads` threads at once. The machine must have the
/// instruction set.
inline double measure_peak(attn::Isa isa, int threads, double seconds = 0.02) {
  // A step takes 6 cycles if two FMAs start per cycle: about 2 ns. The first run refines the
  // estimate.
  std::int64_t steps = 1 << 18;
  const double first = run_together(1, [&](int) { detail::run_chains(isa, steps); });
  steps = std::max<std::int64_t>(
      steps, static_cast<std::int64_t>(static_cast<double>(steps) * seconds / first));
  std::vector<double> operations(static_cast<std::size_t>(threads));
  const double time = run_together(threads, [&](int id) {
    operations[static_cast<std::size_t>(id)] = detail::run_chains(isa, steps);
  });
  double total = 0;
  for (double each : operations) total += each;
  return total / time;
}

/// The best rounds so far, for each instruction set and number of threads. One round is not
/// reliable on a shared machine or with a varying clock: measure again between the runs that are
/// compared.
class Peaks {
 public:
  /// Measures one more round; returns its result.
  double measure(attn::Isa isa, int threads) {
    const double reached = measure_peak(isa, threads);
    double& best = best_[{isa, threads}];
    best = std::max(best, reached);
    return reached;
  }

  /// The best result so far; 0 if none was measured.
  double best(attn::Isa isa, int threads) const {
    const auto found = best_.find({isa, threads});
    return found == best_.end() ? 0 : found->second;
  }

 private:
  std::map<std::pair<attn::Isa, int>, double> best_;
};

}  // namespace bench
