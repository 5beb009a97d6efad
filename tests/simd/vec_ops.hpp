// vec_ops(): the operations over Vec, dispatched to one target at run time.
#pragma once

#include <limits>

#include "attn/simd/vec/vec.hpp"

ATTN_NAMESPACE_BEGIN

enum class VecOp {
  add,
  subtract,
  multiply,
  divide,
  fma,
  fnma,
  max,
  min,
  select_less,
  sqrt,
  round,
  pow2,
  exponent,
  exp2,
  exp2_flush,
  exp,
  exp_flush,
  tanh,
  silu,
  gelu,
  log,
};

template <class T>
inline constexpr T kInf = std::numeric_limits<T>::infinity();
template <class T>
inline constexpr T kNaN = std::numeric_limits<T>::quiet_NaN();

/// The functions of vec_ops.inc.hpp on one target.
template <class T>
struct VecTable {
  int lanes;
  void (*apply)(VecOp op, index_t n, const T* a, const T* b, const T* c, T* out);
  void (*copy)(const T* from, T* to);
  void (*copy_part)(const T* from, index_t n, T* to, index_t m);
  T (*sum)(const T* x);
  T (*max_lane)(const T* x);
  void (*all)(T value, T* to);
};
template <>
struct VecTable<std::uint64_t> {
  void (*apply)(index_t n, const std::uint64_t* a, const std::uint64_t* b, std::uint32_t* product,
                std::uint32_t* high, std::uint32_t* either);
};

ATTN_NAMESPACE_END

#define ATTN_KERNEL_TEXT "simd/vec_ops.inc.hpp"
#include "attn/simd/foreach_isa.hpp"

ATTN_NAMESPACE_BEGIN

template <class T>
const VecTable<T>& vec_ops(Isa isa) {
  return detail::table_of<VecTable<T>>(require_isa(isa));
}

ATTN_NAMESPACE_END
