// Kernel text: Vec<float> and Vec<double> of the current instruction set, then the math built on them.
//
// The vocabulary, the same in every set (a new set is one new file here and one entry in foreach_isa):
//   V::kLanes, V::load(p), V::load(p, n), V::all(x), v.store(p), v.store(p, n)  (n lanes, others 0 / kept)
//   + - * /, fma(a, b, c) = a b + c, fnma = c - a b, max, min (of a NaN the second operand), sqrt
//   less(a, b) -> V::Mask, select(mask, yes, no), round (to nearest even), sum, max_lane
//   exponent_bits(v): the lowest 9 (double: 12) bits of each lane, moved to where sign and exponent are
//   exponent(v): floor(log2 v) of positive normal v; of others some number
#if ATTN_TARGET == 2
#include "attn/simd/vec_avx512.inc"
#elif ATTN_TARGET == 1
#include "attn/simd/vec_avx2.inc"
#else
#include "attn/simd/vec_scalar.inc"
#endif
#include "attn/simd/math.inc"
#include "attn/simd/transpose.inc"
