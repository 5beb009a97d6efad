// The micro-kernel: a tile of accumulators, shared by GEMM and attention's two products.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attn/core/prefetch.hpp"
#include "attn/simd/vec/vec.hpp"

ATTN_NAMESPACE_BEGIN

namespace detail {

/// The most rows of A in products with unpacked rows of B (dot.inc.hpp): attention's decode path.
inline constexpr index_t kMaxDecodeRows = 12;
/// The kernels of dot.inc.hpp take up to this many rows of A at once; memory must hold a multiple
/// of this number of rows.
inline constexpr index_t kDecodeRowsAtOnce = 4;
static_assert(kMaxDecodeRows % kDecodeRowsAtOnce == 0);
/// The order of sums over n rows of B depends only on ceil(n / kKeyStep), so that one more row
/// often does not change how the others are summed.
inline constexpr index_t kKeyStep = 16;

}  // namespace detail

ATTN_NAMESPACE_END

#define ATTN_KERNEL_TEXT "attn/kernels/gemm/tile.inc.hpp"
#include "attn/simd/foreach_isa.hpp"
