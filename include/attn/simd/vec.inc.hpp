// Kernel text: Vec of float, double and 64-bit integers, then the math built on them.
// SPDX-License-Identifier: Apache-2.0
//
// The vocabulary, the same in every target (a new target is one new file and one row of
// targets.inc):
//   V::kLanes, V::load(p), V::load(p, n), V::all(x), v.store(p), v.store(p, n)  (n lanes, others 0
//   / kept)
//   + - * /, fma(a, b, c) = a b + c, fnma = c - a b, max, min (of a NaN the second operand), sqrt
//   stream(v, p): store past the caches, p aligned to the vector; then streamed(), once, before
//   others may read it
//   are_set<T>(const bool* p) -> V::Mask, of as many as there are lanes
//   less(a, b) -> V::Mask, select(mask, yes, no), round (to nearest even), sum, max_lane
//   exponent_bits(v): the lowest 9 (double: 12) bits of each lane, moved to where sign and exponent
//   are
//   exponent(v): floor(log2 v) of positive normal v; of others some number
// Of Vec<float> in sets with FMA, for exp_flush:
//   pow2_eighths(v): 2^((m - 1016) / 8) of the number m in the lowest 12 bits of each lane, m in
//   [8, 2040)
//   zero_if_less(x, least, y): y, but 0 where x < least
// Of Vec<std::uint64_t>, which random numbers are made of: kLanes, load(p), all(x), ^, high() >>
// 32, and
//   low_product(a, b): the whole product of the low halves
//   store_low(even, odd, p): their low halves, in turn
// Of Vec<float>, for elements of 16 and 8 bits (bfloat16, float16, std::int8_t), of whole vectors:
//   widen(p): exactly
//   narrow(v, p): to nearest, ties to even; to std::int8_t numbers within +-127
// Registers, which says what tiles they hold. Where a target has better than transpose.inc: Block
// and sum_each().
template <class T>
struct Vec;

/// Whether fma() rounds once.
inline constexpr bool kFused = ATTN_TARGET_FUSED != 0;

#include "attn/simd/transpose.inc"
#include ATTN_TARGET_VECTORS

/// What a tile of a product does; text for pairs of elements has another.
struct MultiplyAdd {
  template <class V>
  static ATTN_INLINE V add(V a, V b, V sum) {
    return fma(a, b, sum);
  }
};

/// All lanes of a vector, where a number would say how many.
struct Whole {};
template <class T>
ATTN_INLINE Vec<T> load(const T* p, Whole) {
  return Vec<T>::load(p);
}
template <class T>
ATTN_INLINE Vec<T> load(const T* p, index_t n) {
  return Vec<T>::load(p, n);
}
template <class T>
ATTN_INLINE void store(Vec<T> v, T* p, Whole) {
  v.store(p);
}
template <class T>
ATTN_INLINE void store(Vec<T> v, T* p, index_t n) {
  v.store(p, n);
}

/// Elements of 16 and 8 bits, widened where they are loaded and rounded where they are stored. What
/// is left of a row goes through memory: no target but AVX-512 has masks for it.
template <class E>
  requires(sizeof(E) < sizeof(float))
ATTN_INLINE Vec<float> load(const E* p, Whole) {
  return widen(p);
}
template <class E>
  requires(sizeof(E) < sizeof(float))
ATTN_INLINE Vec<float> load(const E* p, index_t n) {
  E lanes[Vec<float>::kLanes] = {};
  std::copy_n(p, n < Vec<float>::kLanes ? n : Vec<float>::kLanes, lanes);
  return widen(lanes);
}
template <class E>
  requires(sizeof(E) < sizeof(float))
ATTN_INLINE void store(Vec<float> v, E* p, Whole) {
  narrow(v, p);
}
template <class E>
  requires(sizeof(E) < sizeof(float))
ATTN_INLINE void store(Vec<float> v, E* p, index_t n) {
  E lanes[Vec<float>::kLanes];
  narrow(v, lanes);
  std::copy_n(lanes, n < Vec<float>::kLanes ? n : Vec<float>::kLanes, p);
}

/// f(j, lanes) over [0, n) by vectors: lanes is Whole for whole ones and what is left for the last.
/// Partial stores only where they must be: AVX2's are microcode on AMD's machines.
template <class T, class F>
ATTN_INLINE void each_vector(index_t n, F f) {
  index_t j = 0;
  for (; j + Vec<T>::kLanes <= n; j += Vec<T>::kLanes) f(j, Whole{});
  if (j < n) f(j, n - j);
}

#include "attn/simd/math.inc"
