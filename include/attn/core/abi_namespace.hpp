// Name of the inline namespace, which differs between builds with different code or layout.
// SPDX-License-Identifier: Apache-2.0
//
// The linker keeps one copy of an inline function. If a file compiled with -mbmi2 and one compiled
// without shared names, the linker could keep the copy with BMI2, and an old processor would crash
// in it. So the name encodes what the compiler may emit: v0_2_0_x86v1_omp is version 0.2.0 for
// x86-64-v1 with OpenMP, v0_2_0_x86v1_bmi2_omp the same with -mbmi2. Every macro is read at the
// first inclusion only: from GCC 14 on the compiler's macros change inside a `#pragma GCC target`
// region.
#pragma once

#include <cstddef>  // the standard library's own macros

#include "attn/core/abi_features.hpp"

// The layout of structs: the version, and properties of the standard library's types.
#if defined(_GLIBCXX_DEBUG)
#define ATTN_ABI_DEBUG _debug
#else
#define ATTN_ABI_DEBUG
#endif
#if defined(_LIBCPP_VERSION)
#define ATTN_ABI_LIBRARY _libcpp
#elif defined(_GLIBCXX_USE_CXX11_ABI) && !_GLIBCXX_USE_CXX11_ABI
#define ATTN_ABI_LIBRARY _cxx98
#else
#define ATTN_ABI_LIBRARY
#endif
/// Such as v0_2_0, or v0_2_0_debug with _GLIBCXX_DEBUG.
#define ATTN_LAYOUT                                                                   \
  ATTN_ABI_PASTE(v, ATTN_VERSION_MAJOR, _, ATTN_VERSION_MINOR, _, ATTN_VERSION_PATCH, \
                 ATTN_ABI_DEBUG, ATTN_ABI_LIBRARY, , , , , , , , )

// Other compiler settings that change code.
#if defined(__RECIPROCAL_MATH__)
#define ATTN_ABI_RECIP _recip
#else
#define ATTN_ABI_RECIP
#endif
#if defined(__NO_SIGNED_ZEROS__)
#define ATTN_ABI_NSZ _nsz
#else
#define ATTN_ABI_NSZ
#endif
#if defined(_GLIBCXX_ASSERTIONS)
#define ATTN_ABI_ASSERTIONS _assertions
#else
#define ATTN_ABI_ASSERTIONS
#endif
#if !defined(__has_feature)
#define ATTN_ABI_HAS_FEATURE(name) 0
#else
#define ATTN_ABI_HAS_FEATURE(name) __has_feature(name)
#endif
#if defined(__SANITIZE_ADDRESS__) || ATTN_ABI_HAS_FEATURE(address_sanitizer)
#define ATTN_ABI_SANITIZER _asan
#elif defined(__SANITIZE_THREAD__) || ATTN_ABI_HAS_FEATURE(thread_sanitizer)
#define ATTN_ABI_SANITIZER _tsan
#elif ATTN_ABI_HAS_FEATURE(memory_sanitizer)
#define ATTN_ABI_SANITIZER _msan
#else
#define ATTN_ABI_SANITIZER
#endif
#if defined(_OPENMP)
#define ATTN_ABI_OMP _omp
#else
#define ATTN_ABI_OMP
#endif
#if defined(ATTN_NO_MMAP)
#define ATTN_ABI_NO_MMAP _nommap
#else
#define ATTN_ABI_NO_MMAP
#endif
#if ATTN_CHECK_INDEX
#define ATTN_ABI_CHECKED _chk
#else
#define ATTN_ABI_CHECKED
#endif
// The instruction set of the kernels, if one is pinned.
#if defined(ATTN_PIN_ISA)
#define ATTN_ABI_PIN ATTN_ABI_PASTE(_pin_, ATTN_PIN_ISA, , , , , , , , , , , , , , )
#else
#define ATTN_ABI_PIN
#endif
// Where the kernels are: in the program, or in attn::compiled, which has a name of its own.
#if defined(ATTN_COMPILED)
#define ATTN_ABI_KERNELS _lib
#elif defined(ATTN_COMPILED_LIBRARY)
#define ATTN_ABI_KERNELS _kernels
#else
#define ATTN_ABI_KERNELS
#endif

/// The inline namespace inside `attn`, such as v0_2_0_x86v1_omp.
#define ATTN_ABI_NAMESPACE                                                                     \
  ATTN_ABI_PASTE(ATTN_LAYOUT, _, ATTN_ABI_PROCESSOR, ATTN_ABI_VECTORS, ATTN_ABI_SCALAR_TOKENS, \
                 ATTN_ABI_AVX_TOKENS, ATTN_ABI_AVX512_TOKENS, ATTN_ABI_RECIP, ATTN_ABI_NSZ,    \
                 ATTN_ABI_ASSERTIONS, ATTN_ABI_SANITIZER, ATTN_ABI_OMP, ATTN_ABI_NO_MMAP,      \
                 ATTN_ABI_KERNELS, ATTN_ABI_PIN, ATTN_ABI_CHECKED)
