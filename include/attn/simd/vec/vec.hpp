// Vec<T>: one hardware vector of float or double; the vocabulary of all kernels.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>
#include <utility>

#include "attn/core/element.hpp"
#include "attn/core/shape.hpp"
#include "attn/simd/tables.hpp"

#if ATTN_ARCH_X86 && !defined(ATTN_COMPILED)
#include <immintrin.h>
#elif ATTN_ARCH_ARM64 && !defined(ATTN_COMPILED)
#include <arm_neon.h>
#endif

ATTN_NAMESPACE_BEGIN

namespace detail {

/// The bits of 2^(j / 8), minus those of 1 and 2^20 j; twice, for vectors of 16.
inline constexpr std::int32_t kPow2Eighths[16] = {
    0, -289342, -509968, -655657, -719629, -694486, -572163, -343865,
    0, -289342, -509968, -655657, -719629, -694486, -572163, -343865};

}  // namespace detail

ATTN_NAMESPACE_END

#define ATTN_KERNEL_TEXT "attn/simd/vec/vec.inc.hpp"
#include "attn/simd/foreach_isa.hpp"
