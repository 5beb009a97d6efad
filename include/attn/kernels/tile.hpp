// The micro-kernel: a block of accumulators in registers, shared by GEMM and both products of attention.
#pragma once

#include "attn/simd/vec.hpp"

#define ATTN_KERNEL_TEXT "attn/kernels/tile.inc.hpp"
#include "attn/simd/foreach_isa.hpp"
