// Build configuration: version, processor family, inline namespace, macros.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#define ATTN_VERSION_MAJOR 0
#define ATTN_VERSION_MINOR 2
#define ATTN_VERSION_PATCH 0
/// 10000 * major + 100 * minor + patch; compare with ATTN_VERSION >= 200.
#define ATTN_VERSION (ATTN_VERSION_MAJOR * 10000 + ATTN_VERSION_MINOR * 100 + ATTN_VERSION_PATCH)

// An #error does not end a compilation, and what follows would be hundreds of errors; a file that
// is not there does.
#if __cplusplus < 202002L
#error "attn needs C++20: compile with -std=c++20"
#include "attn needs C++20: compile with -std=c++20"
#endif

// Masks are infinities, a NaN is to show, and exponentials round by adding a large number and
// taking it away again: results with these flags would be wrong without a word. Clang tells of
// -ffinite-math-only alone, which its -ffast-math and -Ofast imply.
#if (defined(__FINITE_MATH_ONLY__) && __FINITE_MATH_ONLY__) || defined(__ASSOCIATIVE_MATH__)
#error "attn needs infinities, NaN and sums in order: include it without -ffast-math and -Ofast"
#endif

#if defined(__x86_64__)
#define ATTN_ARCH_X86 1
#else
#define ATTN_ARCH_X86 0
#endif
#if defined(__aarch64__)
#define ATTN_ARCH_ARM64 1
#else
#define ATTN_ARCH_ARM64 0
#endif

// Whether x(i, j) throws outside of x: by default where nothing is optimized. -DATTN_CHECK_INDEX
// and -DATTN_CHECK_INDEX=0 say otherwise.
#if !defined(ATTN_CHECK_INDEX)
#if defined(NDEBUG) || defined(__OPTIMIZE__)
#define ATTN_CHECK_INDEX 0
#else
#define ATTN_CHECK_INDEX 1
#endif
#endif

// A file that holds kernels for those compiled with ATTN_COMPILED: see implementation.hpp.
#if defined(ATTN_IMPLEMENTATION)
#define ATTN_IMPLEMENTATION_FLOAT
#define ATTN_IMPLEMENTATION_DOUBLE
#define ATTN_IMPLEMENTATION_ELEMENTS
#endif
#if defined(ATTN_IMPLEMENTATION_FLOAT) || defined(ATTN_IMPLEMENTATION_DOUBLE) || \
    defined(ATTN_IMPLEMENTATION_ELEMENTS)
#undef ATTN_COMPILED
#define ATTN_COMPILED_LIBRARY
#endif

#include "attn/core/abi_namespace.hpp"

// ATTN_PIN_ISA (a name of simd/targets.inc) compiles that one instruction set only. ATTN_COMPILED,
// which linking to attn::compiled defines, compiles none: the kernels are in the library, or in the
// program's file with ATTN_IMPLEMENTATION (ATTN_COMPILED_LIBRARY there).
#if defined(ATTN_PIN_ISA) && (defined(ATTN_COMPILED) || defined(ATTN_COMPILED_LIBRARY))
#error "attn::compiled has every instruction set: pin one in a header-only build"
#endif

// For functions over vectors: passed through memory, or across a target region's edge, a wide
// register would cost more than the work done on it. And for prefetches (core/prefetch.hpp).
#define ATTN_INLINE inline __attribute__((always_inline))

// Clang then warns of a view of a tensor that is gone at the end of the statement, in a field of
// options say.
#if defined(__clang__)
#define ATTN_LIFETIMEBOUND [[clang::lifetimebound]]
#else
#define ATTN_LIFETIMEBOUND
#endif

// A loop over an array, of vectors or of strides, keeps it in registers only if it is unrolled; g++
// 12 has to be told.
#if defined(__clang__)
#define ATTN_UNROLL _Pragma("clang loop unroll(full)")
#else
#define ATTN_UNROLL _Pragma("GCC unroll 16")
#endif

// A loop that becomes whole vectors. clang 14 unrolls it first and then finds vectors of odd sizes
// in it, whose stores later loads wait for.
#if defined(__clang__)
#define ATTN_VECTOR_LOOP _Pragma("clang loop unroll(disable)")
#else
#define ATTN_VECTOR_LOOP
#endif

#define ATTN_NAMESPACE_BEGIN \
  namespace attn {           \
  inline namespace ATTN_ABI_NAMESPACE {
#define ATTN_NAMESPACE_END \
  }                        \
  }

// The structs that a program and attn::compiled hand each other must be laid out alike: every file
// that counts on the library asks the linker for the name of its own layout, which no library of
// another version or with another standard library has.
#if defined(ATTN_COMPILED) || defined(ATTN_COMPILED_LIBRARY)
#define ATTN_LAYOUT_OF_LIBRARY ATTN_ABI_PASTE(library_, ATTN_LAYOUT, , , , , , , , , , , , , , )
namespace attn::compiled {
#if defined(ATTN_COMPILED_LIBRARY)
__attribute__((used)) inline constexpr char ATTN_LAYOUT_OF_LIBRARY = 0;
#else
extern const char ATTN_LAYOUT_OF_LIBRARY;
namespace {
__attribute__((used)) const char* const library_of_this_layout = &ATTN_LAYOUT_OF_LIBRARY;
}
#endif
}  // namespace attn::compiled
#endif
