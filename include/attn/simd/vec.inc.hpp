// Kernel text: Vec of float, double and 64-bit integers of the current instruction set, then the math built on them.
//
// The vocabulary, the same in every set (a new set is one new file here and one entry in foreach_isa):
//   V::kLanes, V::load(p), V::load(p, n), V::all(x), v.store(p), v.store(p, n)  (n lanes, others 0 / kept)
//   + - * /, fma(a, b, c) = a b + c, fnma = c - a b, max, min (of a NaN the second operand), sqrt
//   less(a, b) -> V::Mask, select(mask, yes, no), round (to nearest even), sum, max_lane
//   exponent_bits(v): the lowest 9 (double: 12) bits of each lane, moved to where sign and exponent are
//   exponent(v): floor(log2 v) of positive normal v; of others some number
// Of Vec<float> in sets with FMA, for exp_flush:
//   pow2_eighths(v): 2^((m - 1016) / 8) of the number m in the lowest 12 bits of each lane, m in [8, 2040)
//   zero_if_less(x, least, y): y, but 0 where x < least
// Of Vec<std::uint64_t>, which random numbers are made of: kLanes, load(p), all(x), ^, high() >> 32, and
//   low_product(a, b): the whole product of the low halves
//   store_low(even, odd, p): their low halves, in turn
#if ATTN_TARGET == 2
#include "attn/simd/vec_avx512.inc"
#elif ATTN_TARGET == 1
#include "attn/simd/vec_avx2.inc"
#else
#include "attn/simd/vec_scalar.inc"
#endif

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

/// f(j, lanes) over [0, n) by vectors: lanes is Whole for whole ones and what is left for the last. Partial stores
/// only where they must be: AVX2's are microcode on AMD's machines.
template <class T, class F>
ATTN_INLINE void each_vector(index_t n, F f) {
  index_t j = 0;
  for (; j + Vec<T>::kLanes <= n; j += Vec<T>::kLanes) f(j, Whole{});
  if (j < n) f(j, n - j);
}

#include "attn/simd/math.inc"
#include "attn/simd/transpose.inc"
