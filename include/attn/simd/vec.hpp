// Vec<T>: one hardware vector of float or double, once per instruction set; the vocabulary of all kernels.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

#include "attn/simd/isa.hpp"

#if ATTN_ARCH_X86
#include <immintrin.h>
#endif

// Every function over vectors is inlined: passed through memory, or across a region's edge, a wide
// register would cost more than the work done on it.
#define ATTN_INLINE inline __attribute__((always_inline))

#define ATTN_KERNEL_TEXT "attn/simd/vec.inc.hpp"
#include "attn/simd/foreach_isa.hpp"
