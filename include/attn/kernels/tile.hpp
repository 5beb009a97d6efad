// The micro-kernel: a tile of accumulators, shared by GEMM and attention's two products.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attn/core/prefetch.hpp"
#include "attn/simd/vec.hpp"

ATTN_NAMESPACE_BEGIN

namespace detail {

/// Most rows of the decode path's kernels, which take keys and values unpacked.
inline constexpr index_t kMaxDecodeRows = 12;
/// Memory holds a multiple of so many of them, since kernels take so many at once.
inline constexpr index_t kDecodeRowsAtOnce = 4;
static_assert(kMaxDecodeRows % kDecodeRowsAtOnce == 0);
/// Their sums over keys are in the same order for any number of keys that takes as many steps.
inline constexpr index_t kKeyStep = 16;

}  // namespace detail

ATTN_NAMESPACE_END

#define ATTN_KERNEL_TEXT "attn/kernels/tile.inc.hpp"
#include "attn/simd/foreach_isa.hpp"
