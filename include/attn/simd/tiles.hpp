// Tiles: matrix registers, on targets that have them.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attn/simd/vec/vec.hpp"

#define ATTN_KERNEL_TEXT_EXTENDED
#define ATTN_KERNEL_TEXT "attn/simd/tiles.inc.hpp"
#include "attn/simd/foreach_isa.hpp"
