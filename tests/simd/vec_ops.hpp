// vec_apply and its like: the operations over Vec, dispatched to one instruction set at run time.
#pragma once

#include <limits>

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
  exponent,
  exp2,
  exp2_flush,
  exp,
  exp_flush,
  erf,
  tanh,
  log,
};

template <class T>
inline constexpr T kInf = std::numeric_limits<T>::infinity();
template <class T>
inline constexpr T kNaN = std::numeric_limits<T>::quiet_NaN();

ATTN_NAMESPACE_END

#define ATTN_KERNEL_TEXT "simd/vec_ops.inc.hpp"
#include "attn/simd/foreach_isa.hpp"

#if ATTN_ARCH_X86
#define ATTN_TEST_ON_SET(call) \
  switch (isa) {               \
    case Isa::scalar:          \
      return scalar::call;     \
    case Isa::avx2:            \
      return avx2::call;       \
    default:                   \
      return avx512::call;     \
  }
#else
#define ATTN_TEST_ON_SET(call) return scalar::call;
#endif

ATTN_NAMESPACE_BEGIN

inline void integers_on([[maybe_unused]] Isa isa, index_t n, const std::uint64_t* a,
                        const std::uint64_t* b, std::uint32_t* product, std::uint32_t* high,
                        std::uint32_t* either) {
  ATTN_TEST_ON_SET(vec_integers(n, a, b, product, high, either))
}

/// The functions of vec_ops.inc.hpp on one set.
template <class T>
struct VecOps {
  Isa isa;

  explicit VecOps(Isa set) : isa(require_isa(set)) {}

  void apply(VecOp op, index_t n, const T* a, const T* b, const T* c, T* out) const {
    ATTN_TEST_ON_SET(vec_apply(op, n, a, b, c, out))
  }
  int lanes() const { ATTN_TEST_ON_SET(vec_lanes<T>()) }
  void copy(const T* from, T* to) const { ATTN_TEST_ON_SET(vec_copy(from, to)) }
  void copy_part(const T* from, index_t n, T* to,
                 index_t m) const {ATTN_TEST_ON_SET(vec_copy_part(from, n, to, m))} T
      sum(const T* x) const {ATTN_TEST_ON_SET(vec_sum(x))} T max_lane(const T* x) const {
    ATTN_TEST_ON_SET(vec_max_lane(x))
  }
  void all(T value, T* to) const { ATTN_TEST_ON_SET(vec_all(value, to)) }
};

ATTN_NAMESPACE_END
