// Includes ATTN_KERNEL_TEXT once per instruction set, each in a namespace and target region of its own.
//
// A template defined outside a target region cannot be instantiated with wide vectors, so kernel text
// is not templated on the set but included again: attn::scalar, attn::avx2, attn::avx512. Everything
// that the text needs must have been included before: nothing is included for the first time here.
// No include guard: one inclusion per kernel header. Nothing where attn::compiled has the kernels,
// except for text that only a program can instantiate (ATTN_KERNEL_TEXT_IN_PROGRAM): loops over a user's functor.

#if !defined(ATTN_KERNEL_TEXT)
#error "define ATTN_KERNEL_TEXT before including foreach_isa.hpp"
#endif

#if !defined(ATTN_COMPILED) || defined(ATTN_KERNEL_TEXT_IN_PROGRAM)

// g++ 12 warns of a signed index into an array of vectors, though not into one of numbers.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wsign-conversion"

#define ATTN_ISA_scalar 0
#define ATTN_ISA_avx2 1
#define ATTN_ISA_avx512 2
#define ATTN_ISA_NUMBER_(isa) ATTN_ISA_##isa
#define ATTN_ISA_NUMBER(isa) ATTN_ISA_NUMBER_(isa)

#if !defined(ATTN_PIN_ISA) || ATTN_ISA_NUMBER(ATTN_PIN_ISA) == 0
ATTN_NAMESPACE_BEGIN
namespace scalar {
#define ATTN_TARGET 0
#include ATTN_KERNEL_TEXT
#undef ATTN_TARGET
}  // namespace scalar
ATTN_NAMESPACE_END
#endif

#if ATTN_ARCH_X86 && (!defined(ATTN_PIN_ISA) || ATTN_ISA_NUMBER(ATTN_PIN_ISA) == 1)
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2,fma")
#endif
ATTN_NAMESPACE_BEGIN
namespace avx2 {
#define ATTN_TARGET 1
#include ATTN_KERNEL_TEXT
#undef ATTN_TARGET
}  // namespace avx2
ATTN_NAMESPACE_END
#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif
#endif

#if ATTN_ARCH_X86 && (!defined(ATTN_PIN_ISA) || ATTN_ISA_NUMBER(ATTN_PIN_ISA) == 2)
#if defined(__clang__)
#pragma clang attribute push(                                                   \
        __attribute__((target("avx2,fma,avx512f,avx512bw,avx512dq,avx512vl"))), \
            apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2,fma,avx512f,avx512bw,avx512dq,avx512vl,prefer-vector-width=512")
#endif
ATTN_NAMESPACE_BEGIN
namespace avx512 {
#define ATTN_TARGET 2
#include ATTN_KERNEL_TEXT
#undef ATTN_TARGET
}  // namespace avx512
ATTN_NAMESPACE_END
#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif
#endif

#undef ATTN_ISA_scalar
#undef ATTN_ISA_avx2
#undef ATTN_ISA_avx512
#undef ATTN_ISA_NUMBER_
#undef ATTN_ISA_NUMBER

#pragma GCC diagnostic pop

#endif
#undef ATTN_KERNEL_TEXT
