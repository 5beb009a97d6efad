// Pairs: vectors of bfloat16 pairs, on targets that multiply them.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attn/simd/vec/vec.hpp"

#define ATTN_KERNEL_TEXT_EXTENDED
#define ATTN_KERNEL_TEXT "attn/simd/pairs.inc.hpp"
#include "attn/simd/foreach_isa.hpp"
