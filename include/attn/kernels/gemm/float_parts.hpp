// FloatParts: floats as sums of one or two bfloat16, for MatmulPrecision.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <limits>

#include "attn/core/element.hpp"
#include "attn/simd/vec/vec.hpp"

#define ATTN_KERNEL_TEXT "attn/kernels/gemm/float_parts.inc.hpp"
#include "attn/simd/foreach_isa.hpp"
