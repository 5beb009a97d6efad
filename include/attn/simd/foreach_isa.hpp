// Includes ATTN_KERNEL_TEXT once per target, in the target's namespace and compiler region.
// SPDX-License-Identifier: Apache-2.0
//
// A template defined outside a target region cannot be instantiated with wide vectors, so kernel
// text is not templated on the target but included again: attn::scalar, attn::avx2, attn::avx512.
// Everything that the text needs must have been included before: nothing is included for the first
// time here. No include guard: one inclusion per kernel header. Includes nothing if attn::compiled
// has the kernels, except for text that only a program can instantiate
// (ATTN_KERNEL_TEXT_IN_PROGRAM): loops over a user's functor. ATTN_KERNEL_TEXT_EXTENDED includes
// the text for targets that extend others, too.

#if !defined(ATTN_KERNEL_TEXT)
#error "define ATTN_KERNEL_TEXT before including foreach_isa.hpp"
#endif

#if !defined(ATTN_COMPILED) || defined(ATTN_KERNEL_TEXT_IN_PROGRAM)
// g++ 12 warns of a signed index into an array of vectors, though not into one of numbers.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wsign-conversion"
#if defined(__clang__)
// A text may be empty for a target, for example pairs on targets without pair products.
#pragma clang diagnostic ignored "-Wpragma-clang-attribute"
#endif
// Some programs define these as macros: headers write (std::min)(a, b), kernel text calls functions
// of its own.
#pragma push_macro("min")
#pragma push_macro("max")
#undef min
#undef max
#include "attn/simd/targets.inc"
#pragma pop_macro("max")
#pragma pop_macro("min")
#pragma GCC diagnostic pop
#endif
#undef ATTN_KERNEL_TEXT
#undef ATTN_KERNEL_TEXT_EXTENDED
