// Kernel text: Tiles and TileScope of the current target.
// SPDX-License-Identifier: Apache-2.0
//
// The operations. There are eight tiles, numbered from 0 as registers are, of 16 rows of 64 bytes
// each.
//   TileScope(depth): a thread may use tiles while one exists; their contents are per thread, like
//     registers. Not nested. Tiles 4 and 5, for A, have rows of `depth` bytes (64, or less: a
//     multiple of 4), and tiles 6 and 7, for B, have depth / 4 rows: the depth of a product
//   Tiles::zero<C>(); load<A>(p, stride): 16 rows, `stride` bytes apart; store<C>(p, stride)
//   Tiles::add_pairs<C, A, B>(): C (16 x 16, float) += A (16 rows x 32 k, bfloat16) B (16 pairs of
//     k x 16 columns)
//   Tiles::add_bytes<C, A, B>(): C (16 x 16, int32) += A (16 rows x 64 k, signed) B (16 quads of
//     k x 16 columns, unsigned)
//   Tiles::add_signed_bytes<C, A, B>(): add_bytes with signed B
// A row of B holds 2 or 4 consecutive k of one column after another, 4 bytes per column.

#if defined(ATTN_TARGET_TILES)
#include ATTN_TARGET_TILES
constexpr bool has_tiles() { return true; }
#else
constexpr bool has_tiles() { return false; }
#endif
