// vec_apply and its like: the operations over Vec, dispatched to one instruction set at run time.
#pragma once

#include "attn/kernels/execution.hpp"
#include "attn/simd/vec.hpp"

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
  exp,
  exp2_flush,
  erf,
};

ATTN_NAMESPACE_END

#define ATTN_KERNEL_TEXT "simd/vec_ops.inc.hpp"
#include "attn/simd/foreach_isa.hpp"

ATTN_NAMESPACE_BEGIN

/// The functions of vec_ops.inc.hpp on one set.
template <class T>
struct VecOps {
  Execution on;

  explicit VecOps(Isa isa) : on{.isa = isa} {}

  void apply(VecOp op, index_t n, const T* a, const T* b, const T* c, T* out) const {
    ATTN_DISPATCH(on, vec_apply(op, n, a, b, c, out))
  }
  int lanes() const { ATTN_DISPATCH(on, vec_lanes<T>()) }
  void copy(const T* from, T* to) const { ATTN_DISPATCH(on, vec_copy(from, to)) }
  void copy_part(const T* from, index_t n, T* to,
                 index_t m) const {ATTN_DISPATCH(on, vec_copy_part(from, n, to, m))} T
      sum(const T* x) const {ATTN_DISPATCH(on, vec_sum(x))} T max_lane(const T* x) const {
    ATTN_DISPATCH(on, vec_max_lane(x))
  }
  void all(T value, T* to) const { ATTN_DISPATCH(on, vec_all(value, to)) }
};

ATTN_NAMESPACE_END
