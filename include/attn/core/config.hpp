// Build configuration: version, processor family, inline namespace, macros.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#define ATTN_VERSION_MAJOR 0
#define ATTN_VERSION_MINOR 2
#define ATTN_VERSION_PATCH 0
/// 10000 * major + 100 * minor + patch; compare with ATTN_VERSION >= 200.
#define ATTN_VERSION (ATTN_VERSION_MAJOR * 10000 + ATTN_VERSION_MINOR * 100 + ATTN_VERSION_PATCH)

// An #error does not end a compilation, and hundreds of errors would follow; including a file that
// does not exist does end it.
#if __cplusplus < 202002L
#error "attn needs C++20: compile with -std=c++20"
#include "attn needs C++20: compile with -std=c++20"
#endif

// index_t is a pointer difference, and windows without an end are 2^61.
#if __SIZEOF_POINTER__ != 8
#error "attn needs a 64-bit processor: sizes of tensors and positions of tokens are 64-bit integers"
#include "attn needs a 64-bit processor"
#endif

// Masks are infinities, a NaN must be detected, and exponentials round by adding and subtracting a
// large number: with these flags results would be silently wrong. Clang defines a macro for
// -ffinite-math-only only, which its -ffast-math and -Ofast imply.
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

// Whether x(i, j) throws for an index outside of x: by default only without optimization. Override
// by -DATTN_CHECK_INDEX or -DATTN_CHECK_INDEX=0.
#if !defined(ATTN_CHECK_INDEX)
#if defined(NDEBUG) || defined(__OPTIMIZE__)
#define ATTN_CHECK_INDEX 0
#else
#define ATTN_CHECK_INDEX 1
#endif
#endif

// A file that contains the kernels for files compiled with ATTN_COMPILED: see implementation.hpp.
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

// ATTN_PIN_ISA (a name of simd/targets.inc) compiles that instruction set only. ATTN_COMPILED,
// which linking to attn::compiled defines, compiles none: the kernels are in the library, or in the
// program's file with ATTN_IMPLEMENTATION (ATTN_COMPILED_LIBRARY there). With both macros, that
// library or file must be compiled for the same set: if not, the program does not link.

// For functions over vectors: passing a wide register through memory, or across the edge of a
// target region, would cost more than the work on it. Also for prefetches (core/prefetch.hpp).
#define ATTN_INLINE inline __attribute__((always_inline))

// Makes clang warn of a view of a tensor that is destroyed at the end of the statement, for example
// in a field of options.
#if defined(__clang__)
#define ATTN_LIFETIMEBOUND [[clang::lifetimebound]]
#else
#define ATTN_LIFETIMEBOUND
#endif

// A loop over an array of vectors or strides keeps it in registers only if it is unrolled; g++ 12
// must be told.
#if defined(__clang__)
#define ATTN_UNROLL _Pragma("clang loop unroll(full)")
#else
#define ATTN_UNROLL _Pragma("GCC unroll 16")
#endif

// Marks a loop to be vectorised with whole vectors. clang 14 otherwise unrolls it first and then
// vectorises in odd sizes, whose stores stall later loads.
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

// The structs that a program and attn::compiled exchange must have the same layout, and a pinned
// instruction set must be the same: every file that uses the library references a symbol named
// after both, which a library of another version or set, or with another standard library, does not
// define.
#if defined(ATTN_COMPILED) || defined(ATTN_COMPILED_LIBRARY)
#define ATTN_LAYOUT_OF_LIBRARY \
  ATTN_ABI_PASTE(library_, ATTN_LAYOUT, ATTN_ABI_PIN, , , , , , , , , , , , , )
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
