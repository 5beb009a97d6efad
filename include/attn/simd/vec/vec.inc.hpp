// Kernel text: Vec of float, double and 64-bit integers, then the math built on them.
// SPDX-License-Identifier: Apache-2.0
//
// What each target's file defines (a new target is one new file and one row of targets.inc). For
// V = Vec<float> and Vec<double>:
//   V::kLanes, V::all(x), V::load(p), v.store(p)
//   V::load(p, n), v.store(p, n): the first n lanes; others are 0, or are not written
//   + - * /, fma(a, b, c) = a b + c, fnma(a, b, c) = c - a b, sqrt, sum, max_lane
//   max, min: the second operand if either is NaN
//   round: to nearest, ties to even
//   less(a, b) -> V::Mask, select(mask, yes, no)
//   are_set<T>(const bool* p) -> V::Mask, from kLanes bools
//   stream(v, p): a non-temporal store to an aligned p; streamed(): a fence after them
//   exponent_bits(v): the low 9 (double: 12) bits of each lane, moved to sign and exponent
//   exponent(v): floor(log2 v) of positive normal v, of others any number
// For Vec<float> in targets with FMA (exp_flush):
//   pow2_eighths(v): 2^((m - 1016) / 8), where m in [8, 2040) is in the low 12 bits of each lane
//   zero_if_less(x, bound, y): y, but 0 where x < bound
// For Vec<float> and 16- and 8-bit elements (bfloat16, float16, std::int8_t), whole vectors:
//   widen(p): exact
//   narrow(v, p): to nearest, ties to even; for std::int8_t values are within +-127
// Vec<std::uint64_t>, for random numbers: kLanes, load(p), all(x), ^, and
//   high(): each lane >> 32
//   low_product(a, b): 64-bit products of the low halves
//   store_low(even, odd, p): the low halves of both, interleaved
// Registers: the shapes of register tiles. If a target has better ones than transpose.inc: Block
// and sum_each().
template <class T>
struct Vec;

/// Whether fma() rounds once.
inline constexpr bool kFused = ATTN_TARGET_FUSED != 0;

#include "attn/simd/vec/transpose.inc"
#include ATTN_TARGET_VECTORS

/// The multiply-add of a GEMM tile; kernel text for pairs of elements defines another.
struct MultiplyAdd {
  template <class V>
  static ATTN_INLINE V add(V a, V b, V sum) {
    return fma(a, b, sum);
  }
};

/// A tag instead of a number of lanes: all of them.
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

/// Elements of 16 and 8 bits are widened when loaded and rounded when stored. The rest of a row
/// goes through a buffer, since only AVX-512 has masked loads of them.
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

/// Calls f(j, lanes) for each vector of [0, n): lanes is Whole{}, or the number of lanes left in
/// the last one. Partial stores only there: AVX2's masked stores are microcoded on AMD processors.
template <class T, class F>
ATTN_INLINE void each_vector(index_t n, F f) {
  index_t j = 0;
  for (; j + Vec<T>::kLanes <= n; j += Vec<T>::kLanes) f(j, Whole{});
  if (j < n) f(j, n - j);
}

#include "attn/simd/vec/math.inc"
