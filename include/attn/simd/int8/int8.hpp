// Int8: vectors of 8-bit integers and their products, once per instruction set.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attn/core/element.hpp"
#include "attn/simd/vec/vec.hpp"

#define ATTN_KERNEL_TEXT_EXTENDED
#define ATTN_KERNEL_TEXT "attn/simd/int8/int8.inc.hpp"
#include "attn/simd/foreach_isa.hpp"
