// Build configuration: version, processor family, and the inline namespace that keeps unlike builds apart.
#pragma once

#define ATTN_VERSION_MAJOR 0
#define ATTN_VERSION_MINOR 1
#define ATTN_VERSION_PATCH 0
/// 10000 * major + 100 * minor + patch; compare with ATTN_VERSION >= 100.
#define ATTN_VERSION (ATTN_VERSION_MAJOR * 10000 + ATTN_VERSION_MINOR * 100 + ATTN_VERSION_PATCH)

// Masks are infinities, a NaN is to show, and exponentials round by adding a large number and taking it away again:
// results with these flags would be wrong without a word. Clang tells of -ffinite-math-only alone, which its -ffast-math
// and -Ofast imply.
#if (defined(__FINITE_MATH_ONLY__) && __FINITE_MATH_ONLY__) || defined(__ASSOCIATIVE_MATH__)
#error "attn needs infinities, NaN and sums in order: include it without -ffast-math and -Ofast"
#endif

#if defined(__x86_64__)
#define ATTN_ARCH_X86 1
#else
#define ATTN_ARCH_X86 0
#endif

// The linker keeps one copy of an inline function. Were a file compiled with -mavx2 and one compiled
// without to share names, the AVX2 copy could be the one kept, and an old processor would crash in it.
// So the namespace spells what the compiler was allowed to emit. These macros are read here and
// nowhere else: from GCC 14 on they also change inside a `#pragma GCC target` region.
#if !ATTN_ARCH_X86
#define ATTN_BASELINE generic
#elif defined(__AVX512F__)
#define ATTN_BASELINE avx512
#elif defined(__AVX2__)
#define ATTN_BASELINE avx2
#elif defined(__AVX__)
#define ATTN_BASELINE avx
#elif defined(__SSE4_2__)
#define ATTN_BASELINE sse42
#else
#define ATTN_BASELINE x64
#endif

#if defined(_OPENMP)
#define ATTN_THREADING omp
#else
#define ATTN_THREADING serial
#endif

// ATTN_PIN_ISA (scalar, avx2 or avx512) compiles that one instruction set only. ATTN_COMPILED, which linking
// to attn::compiled defines, compiles none: the kernels are in the library (ATTN_COMPILED_LIBRARY there).
#if defined(ATTN_PIN_ISA) && defined(ATTN_COMPILED)
#error "attn::compiled has every instruction set: pin one in a header-only build"
#elif defined(ATTN_PIN_ISA)
#define ATTN_ISA_SUFFIX ATTN_PIN_ISA
#elif defined(ATTN_COMPILED)
#define ATTN_ISA_SUFFIX compiled
#elif defined(ATTN_COMPILED_LIBRARY)
#define ATTN_ISA_SUFFIX library
#else
#define ATTN_ISA_SUFFIX any
#endif

#define ATTN_CONCAT4_(a, b, c, d) a##_##b##_##c##_##d
#define ATTN_CONCAT4(a, b, c, d) ATTN_CONCAT4_(a, b, c, d)
/// The inline namespace inside `attn`, such as v1_x64_omp_any.
#define ATTN_ABI_NAMESPACE ATTN_CONCAT4(v1, ATTN_BASELINE, ATTN_THREADING, ATTN_ISA_SUFFIX)

// For functions over vectors: passed through memory, or across a target region's edge, a wide register would cost
// more than the work done on it. And for prefetches (core/prefetch.hpp).
#define ATTN_INLINE inline __attribute__((always_inline))

// A loop over an array, of vectors or of strides, keeps it in registers only if it is unrolled; g++ 12 has to be told.
#if defined(__clang__)
#define ATTN_UNROLL _Pragma("clang loop unroll(full)")
#else
#define ATTN_UNROLL _Pragma("GCC unroll 16")
#endif

#define ATTN_NAMESPACE_BEGIN \
  namespace attn {           \
  inline namespace ATTN_ABI_NAMESPACE {
#define ATTN_NAMESPACE_END \
  }                        \
  }
