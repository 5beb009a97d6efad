// GradientKernels: additional inner loops of backward attention.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attn/attention/rows/row_kernels.hpp"

ATTN_NAMESPACE_BEGIN

namespace detail {

template <class T>
struct GradientKernels {
  /// score_panel() of RowKernels for a panel in L1: prefetches nothing.
  void (*score_panel)(index_t d, const T* queries, index_t queries_stride, const T* panel, T scale,
                      T* scores, index_t stride);
  /// C (one tile of rows x columns) += A B, with A stored in rows: see tile.inc.hpp.
  void (*add_product)(index_t columns, index_t k, const T* a, index_t a_stride, const T* b,
                      index_t b_stride, T* c, index_t c_stride);
  /// C (rows x columns) += A^T B: see tile.inc.hpp. May read and write whole tiles of kMaxTileRows
  /// rows.
  void (*add_transposed)(index_t rows, index_t columns, index_t k, const T* a, index_t a_stride,
                         const T* b, index_t b_stride, T* c, index_t c_stride);
  /// d_p becomes d_s = p (d_p - delta); 0 where p is 0.
  void (*score_gradient)(index_t n, const T* p, T delta, T* d_p);
  /// The tangents of p and d_s = p (d_p - delta) from those of scores and d_p, each a sum of two
  /// rows: d_scores becomes that of p, d_d_p that of d_s; 0 where p is 0.
  void (*score_gradient_jvp)(index_t n, const T* p, const T* d_s, T d_lse, T d_delta, T* d_scores,
                             const T* more_scores, T* d_d_p, const T* more_d_p);
  /// score_gradient_jvp with softcap: s is the capped score; scores and d_s are before the cap.
  void (*capped_score_gradient_jvp)(index_t n, const T* p, const T* d_s, const T* s, T cap, T d_lse,
                                    T d_delta, T* d_scores, const T* more_scores, T* d_d_p,
                                    const T* more_d_p);
  /// derivative *= 1 - (s / cap)^2, the derivative of softcap where its result is s.
  void (*softcap_derivative)(index_t n, const T* s, T cap, T* derivative);
  /// x *= y; 0 where x is 0, whatever y is: the derivative at a masked score may be NaN.
  void (*multiply)(index_t n, T* x, const T* y);
  /// y += a x
  void (*add_scaled)(index_t n, T a, const T* x, T* y);
  T (*dot)(index_t n, const T* x, const T* y);
  /// dot(n, x, y) without the elements where x is 0: y may be NaN there.
  T (*dot_where)(index_t n, const T* x, const T* y);
  bool (*all_finite)(index_t rows, index_t n, const T* x, index_t stride);
};

}  // namespace detail

ATTN_NAMESPACE_END

#define ATTN_KERNEL_TEXT "attn/attention/backward/gradient_kernels.inc.hpp"
#include "attn/simd/foreach_isa.hpp"
