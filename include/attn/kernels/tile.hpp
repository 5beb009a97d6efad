// The micro-kernel: a block of accumulators in registers, shared by GEMM and both products of attention.
#pragma once

#include "attn/core/prefetch.hpp"
#include "attn/simd/vec.hpp"

ATTN_NAMESPACE_BEGIN

namespace detail {

/// Columns of one packed panel of B: NR of GEMM's tile, whose vectors are 16, 32 and 64 bytes.
constexpr index_t panel_width(Isa isa, index_t element_size) {
  return (isa == Isa::avx512 ? 4 * 64 : isa == Isa::avx2 ? 2 * 32 : 2 * 16) / element_size;
}

/// Rows of attention's tile, MR.
constexpr index_t row_tile_height(Isa isa) { return isa == Isa::avx512 ? 8 : 6; }

/// Most rows of the path for few queries, which take keys and values unpacked.
inline constexpr index_t kFewRows = 12;
/// Memory holds a multiple of so many of them, since kernels take so many at once.
inline constexpr index_t kFewRowsAtOnce = 4;
static_assert(kFewRows % kFewRowsAtOnce == 0);

}  // namespace detail

ATTN_NAMESPACE_END

#define ATTN_KERNEL_TEXT "attn/kernels/tile.inc.hpp"
#include "attn/simd/foreach_isa.hpp"
