// The micro-kernel: a block of accumulators in registers, shared by GEMM and both products of attention.
#pragma once

#include "attn/simd/vec.hpp"

// A register tile held in an array spills on g++ 12 unless every loop that touches it is unrolled.
#if defined(__clang__)
#define ATTN_UNROLL _Pragma("clang loop unroll(full)")
#else
#define ATTN_UNROLL _Pragma("GCC unroll 16")
#endif

#define ATTN_KERNEL_TEXT "attn/kernels/tile.inc.hpp"
#include "attn/simd/foreach_isa.hpp"
