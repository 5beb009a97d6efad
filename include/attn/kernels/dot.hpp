// Few rows against many: dot products and weighted sums that read the many once, unpacked.
#pragma once

#include "attn/simd/vec.hpp"

#define ATTN_KERNEL_TEXT "attn/kernels/dot.inc.hpp"
#include "attn/simd/foreach_isa.hpp"
