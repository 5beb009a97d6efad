// Products of single tiles, as function pointers; null if the instruction set has no tiles.
#pragma once

#include "attn/simd/tiles.hpp"

ATTN_NAMESPACE_BEGIN

/// c (16 x 16) += a (16 x depth bytes) b (depth / 4 x 64 bytes).
struct TileOps {
  static constexpr bool kExtended = true;
  void (*add_pairs)(int depth, const void* a, const void* b, float* c);
  void (*add_bytes)(int depth, const void* a, const void* b, std::int32_t* c);
  void (*add_signed_bytes)(int depth, const void* a, const void* b, std::int32_t* c);
};

ATTN_NAMESPACE_END

#define ATTN_KERNEL_TEXT_EXTENDED
#define ATTN_KERNEL_TEXT "simd/tile_ops.inc.hpp"
#include "attn/simd/foreach_isa.hpp"
