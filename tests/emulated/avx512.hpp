// Replaces <immintrin.h>: the AVX-512 intrinsics that attn uses, by SIMDe on AVX2.
//
// Uses SIMDe's functions instead of our own: they are tested against processors that have the
// instructions, and do not share our misunderstandings. Only what Debian 12's release of SIMDe
// (0.7.4 rc2) lacks is added below. An intrinsic that neither has does not compile: "target
// specific option mismatch".
#pragma once

#if defined(__AVX512F__)
#error "compile with -mno-avx512f: there is nothing to emulate"
#endif

// Headers of others that SIMDe includes: included here, before any region.
#include <bit>
#include <cfenv>
#include <climits>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <immintrin.h>
#include <memory>
#include <type_traits>

// SIMDe must use AVX2 and FMA: without FMA it would round a product before an addition. SIMDe would
// read the compiler's macros; they are set here instead, so that other code of this file, including
// the baseline's kernels, is compiled as usual.
#define SIMDE_X86_AVX2_NATIVE
#define SIMDE_X86_FMA_NATIVE
#define SIMDE_ENABLE_NATIVE_ALIASES

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2,fma")
#endif

// One by one: simde/x86/avx512.h has thousands of functions.
#include <simde/x86/avx512/abs.h>
#include <simde/x86/avx512/add.h>
#include <simde/x86/avx512/and.h>
#include <simde/x86/avx512/blend.h>
#include <simde/x86/avx512/cast.h>
#include <simde/x86/avx512/cmp.h>
#include <simde/x86/avx512/div.h>
#include <simde/x86/avx512/dpbusd.h>
#include <simde/x86/avx512/extract.h>
#include <simde/x86/avx512/fmadd.h>
#include <simde/x86/avx512/fnmadd.h>
#include <simde/x86/avx512/insert.h>
#include <simde/x86/avx512/loadu.h>
#include <simde/x86/avx512/madd.h>
#include <simde/x86/avx512/maddubs.h>
#include <simde/x86/avx512/max.h>
#include <simde/x86/avx512/min.h>
#include <simde/x86/avx512/mov.h>
#include <simde/x86/avx512/mov_mask.h>
#include <simde/x86/avx512/mul.h>
#include <simde/x86/avx512/or.h>
#include <simde/x86/avx512/permutexvar.h>
#include <simde/x86/avx512/roundscale.h>
#include <simde/x86/avx512/set1.h>
#include <simde/x86/avx512/shuffle.h>
#include <simde/x86/avx512/slli.h>
#include <simde/x86/avx512/sqrt.h>
#include <simde/x86/avx512/srl.h>
#include <simde/x86/avx512/srli.h>
#include <simde/x86/avx512/storeu.h>
#include <simde/x86/avx512/sub.h>
#include <simde/x86/avx512/unpackhi.h>
#include <simde/x86/avx512/unpacklo.h>
#include <simde/x86/avx512/xor.h>

namespace attn_emulated {

#define ATTN_EMULATED inline __attribute__((always_inline))

/// A mask of the first kLanes bits.
template <int kLanes>
inline constexpr unsigned kAllLanes = (1u << kLanes) - 1;

// Lane by lane: masked lanes are neither read nor written, as the instructions promise, and a
// sanitizer sees every access.
template <int kLanes, class T>
ATTN_EMULATED void masked_copy(unsigned mask, const T* from, T* to) {
  for (int lane = 0; lane < kLanes; ++lane) {
    if (mask >> lane & 1) to[lane] = from[lane];
  }
}

ATTN_EMULATED __m512 maskz_loadu(__mmask16 mask, const float* p) {
  if (mask == kAllLanes<16>) return simde_mm512_loadu_ps(p);
  float lanes[16] = {};
  masked_copy<16>(mask, p, lanes);
  return simde_mm512_loadu_ps(lanes);
}
ATTN_EMULATED __m512d maskz_loadu(__mmask8 mask, const double* p) {
  if (mask == kAllLanes<8>) return simde_mm512_loadu_pd(p);
  double lanes[8] = {};
  masked_copy<8>(mask, p, lanes);
  return simde_mm512_loadu_pd(lanes);
}
ATTN_EMULATED void mask_storeu(float* p, __mmask16 mask, __m512 a) {
  if (mask == kAllLanes<16>) return simde_mm512_storeu_ps(p, a);
  float lanes[16];
  simde_mm512_storeu_ps(lanes, a);
  masked_copy<16>(mask, lanes, p);
}
ATTN_EMULATED void mask_storeu(double* p, __mmask8 mask, __m512d a) {
  if (mask == kAllLanes<8>) return simde_mm512_storeu_pd(p, a);
  double lanes[8];
  simde_mm512_storeu_pd(lanes, a);
  masked_copy<8>(mask, lanes, p);
}

/// VGETEXP of one lane, from Intel's table: floor(log2 |x|), also of subnormals; -inf for 0, +inf
/// for infinities, NaN for NaN. Normal numbers are computed by bits, since std::logb is a call.
ATTN_EMULATED float getexp(float x) {
  const std::uint32_t biased = std::bit_cast<std::uint32_t>(x) >> 23 & 0xff;
  return biased == 0 || biased == 0xff ? std::logb(x)
                                       : static_cast<float>(static_cast<int>(biased) - 127);
}
ATTN_EMULATED double getexp(double x) {
  const std::uint64_t biased = std::bit_cast<std::uint64_t>(x) >> 52 & 0x7ff;
  return biased == 0 || biased == 0x7ff ? std::logb(x)
                                        : static_cast<double>(static_cast<int>(biased) - 1023);
}
ATTN_EMULATED __m512 maskz_getexp(__mmask16 mask, __m512 a) {
  float lanes[16];
  simde_mm512_storeu_ps(lanes, a);
  for (float& lane : lanes) lane = getexp(lane);
  return simde_mm512_maskz_mov_ps(mask, simde_mm512_loadu_ps(lanes));
}
ATTN_EMULATED __m512d maskz_getexp(__mmask8 mask, __m512d a) {
  double lanes[8];
  simde_mm512_storeu_pd(lanes, a);
  for (double& lane : lanes) lane = getexp(lane);
  return simde_mm512_maskz_mov_pd(mask, simde_mm512_loadu_pd(lanes));
}

/// Extracts half 0 or 1 of a.
ATTN_EMULATED __m256 maskz_extractf32x8(__mmask8 mask, __m512 a, int half) {
  float lanes[16];
  simde_mm512_storeu_ps(lanes, a);
  return simde_mm256_maskz_mov_ps(mask, simde_mm256_loadu_ps(lanes + 8 * half));
}

/// Applies `to` to the lanes of `a`, an __m512i or __m512 with elements From; returns a `Vector`
/// with elements To. The mask must be all lanes.
template <class From, class To, class Vector, class Wide, class F>
ATTN_EMULATED Vector each_lane(Wide a, F to) {
  From from[16];
  To lanes[16];
  std::memcpy(from, &a, sizeof from);
  for (int lane = 0; lane < 16; ++lane) lanes[lane] = to(from[lane]);
  Vector result;
  std::memcpy(&result, lanes, sizeof result);
  return result;
}

// By Intel's pages: widening with and without sign, halves, rounding to nearest even, and
// truncation to low bits.
ATTN_EMULATED __m512i cvtepu16_epi32(__m256i a) {
  return each_lane<std::uint16_t, std::int32_t, __m512i>(a, [](std::uint16_t x) { return int{x}; });
}
ATTN_EMULATED __m512i cvtepi8_epi32(__m128i a) {
  return each_lane<std::int8_t, std::int32_t, __m512i>(a, [](std::int8_t x) { return int{x}; });
}
ATTN_EMULATED __m512 cvtepi32_ps(__m512i a) {
  return each_lane<std::int32_t, float, __m512>(a, [](int x) { return static_cast<float>(x); });
}
ATTN_EMULATED __m512i cvtps_epi32(__m512 a) {
  return each_lane<float, std::int32_t, __m512i>(
      a, [](float x) { return static_cast<int>(std::nearbyint(x)); });
}
ATTN_EMULATED __m256i cvtepi32_epi16(__m512i a) {
  return each_lane<std::int32_t, std::int16_t, __m256i>(
      a, [](int x) { return static_cast<std::int16_t>(x); });
}
ATTN_EMULATED __m128i cvtepi32_epi8(__m512i a) {
  return each_lane<std::int32_t, std::int8_t, __m128i>(
      a, [](int x) { return static_cast<std::int8_t>(x); });
}
// By attn's own scalar conversions, which element_test.cpp tests: SIMDe's do not round to nearest.
ATTN_EMULATED __m512 cvtph_ps(__m256i a) {
  return each_lane<std::uint16_t, float, __m512>(
      a, [](std::uint16_t x) { return attn::detail::widen_float16(x); });
}
ATTN_EMULATED __m256i cvtps_ph(__m512 a) {
  return each_lane<float, std::uint16_t, __m256i>(
      a, [](float x) { return attn::detail::narrow_to_float16(x); });
}

/// VDPBF16PS by Intel's page: the odd products first, each added with one rounding; denormals count
/// as 0. SIMDe's version keeps denormals.
ATTN_EMULATED __m512 dpbf16_ps(__m512 sums, __m512bh a, __m512bh b) {
  constexpr auto flush = [](float x) {
    return std::abs(x) < 0x1p-126f ? std::copysign(0.0f, x) : x;
  };
  const auto widen = [&](std::uint16_t x) {
    return flush(std::bit_cast<float>(std::uint32_t{x} << 16));
  };
  float lanes[16];
  std::uint16_t x[32], y[32];
  std::memcpy(lanes, &sums, sizeof lanes);
  std::memcpy(x, &a, sizeof x);
  std::memcpy(y, &b, sizeof y);
  for (int lane = 0; lane < 16; ++lane) {
    for (int at : {2 * lane + 1, 2 * lane}) {
      lanes[lane] = flush(std::fma(widen(x[at]), widen(y[at]), flush(lanes[lane])));
    }
  }
  return simde_mm512_loadu_ps(lanes);
}

#undef ATTN_EMULATED

}  // namespace attn_emulated

#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif

// Macros, like SIMDe's own aliases: the compiler's header, which SIMDe includes, declares functions
// of these names. Without optimisation, some of them are macros there.
#undef _mm512_maskz_extractf32x8_ps
#undef _mm512_maskz_getexp_pd
#undef _mm512_maskz_getexp_ps
#undef _mm512_maskz_slli_epi32
#undef _mm512_maskz_slli_epi64
#define _mm512_maskz_loadu_ps(mask, p) attn_emulated::maskz_loadu(mask, p)
#define _mm512_maskz_loadu_pd(mask, p) attn_emulated::maskz_loadu(mask, p)
#define _mm512_mask_storeu_ps(p, mask, a) attn_emulated::mask_storeu(p, mask, a)
#define _mm512_mask_storeu_pd(p, mask, a) attn_emulated::mask_storeu(p, mask, a)
#define _mm512_maskz_getexp_ps(mask, a) attn_emulated::maskz_getexp(mask, a)
#define _mm512_maskz_getexp_pd(mask, a) attn_emulated::maskz_getexp(mask, a)
#define _mm512_maskz_extractf32x8_ps(mask, a, half) attn_emulated::maskz_extractf32x8(mask, a, half)
#define _mm512_maskz_sqrt_ps(mask, a) simde_mm512_maskz_mov_ps(mask, simde_mm512_sqrt_ps(a))
#define _mm512_maskz_sqrt_pd(mask, a) simde_mm512_maskz_mov_pd(mask, simde_mm512_sqrt_pd(a))
#define _mm512_maskz_slli_epi32(mask, a, by) \
  simde_mm512_maskz_mov_epi32(mask, simde_mm512_slli_epi32(a, by))
#define _mm512_maskz_slli_epi64(mask, a, by) \
  simde_mm512_maskz_mov_epi64(mask, simde_mm512_slli_epi64(a, by))
#define _mm512_maskz_srli_epi64(mask, a, by) \
  simde_mm512_maskz_mov_epi64(mask, simde_mm512_srli_epi64(a, by))
#undef _mm512_madd_epi16  // this release of SIMDe gives its masked form this name
#undef _mm512_maskz_srli_epi16
#undef _mm512_maskz_srli_epi32
#undef _mm512_maskz_cvtps_ph
#define _mm512_maskz_srli_epi32(mask, a, by) \
  simde_mm512_maskz_mov_epi32(mask, simde_mm512_srli_epi32(a, by))
#define _mm512_madd_epi16(a, b) simde_mm512_madd_epi16(a, b)
#define _mm512_maskz_srli_epi16(mask, a, by) \
  simde_mm512_maskz_mov_epi16(mask, simde_mm512_srli_epi16(a, by))
#define _mm512_maskz_cvtepu16_epi32(mask, a) attn_emulated::cvtepu16_epi32(a)
#define _mm512_maskz_cvtepi8_epi32(mask, a) attn_emulated::cvtepi8_epi32(a)
#define _mm512_maskz_cvtepi32_ps(mask, a) attn_emulated::cvtepi32_ps(a)
#define _mm512_maskz_cvtps_epi32(mask, a) attn_emulated::cvtps_epi32(a)
#define _mm512_maskz_cvtepi32_epi16(mask, a) attn_emulated::cvtepi32_epi16(a)
#define _mm512_maskz_cvtepi32_epi8(mask, a) attn_emulated::cvtepi32_epi8(a)
#define _mm512_dpbf16_ps(sums, a, b) attn_emulated::dpbf16_ps(sums, a, b)
#define _mm512_maskz_cvtph_ps(mask, a) attn_emulated::cvtph_ps(a)
#define _mm512_maskz_cvtps_ph(mask, a, rounding) attn_emulated::cvtps_ph(a)
