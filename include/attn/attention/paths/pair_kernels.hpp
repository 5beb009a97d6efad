// PairKernels: kernels that multiply bfloat16 pairs.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attn/attention/tasks/pair_scratch.hpp"
#include "attn/kernels/gemm/float_parts.hpp"
#include "attn/kernels/gemm/tile.hpp"
#include "attn/simd/pairs.hpp"
#include "attn/simd/tiles.hpp"

ATTN_NAMESPACE_BEGIN

namespace detail {

/// All null if the target has no pair products.
template <class T>
struct PairKernels {
  static constexpr bool kExtended = true;

  /// scores[r, j] = scale q_r . k_j for kPairRows query rows of d elements (a multiple of
  /// kPairStep) and `panels` panels of keys.
  void (*score_panels)(index_t panels, index_t d, const bfloat16* queries, const T* keys, T scale,
                       T* scores, index_t stride);
  /// The functions below write one part of each element or, unless tails is 0, also its tail,
  /// `tails` elements after the head.
  ///
  /// Rounds both[x] and both[n + x] into the pair to[x].
  void (*pair_rows)(index_t n, const T* both, ElementPair* to, index_t tails);
  /// to = n elements of a row, rounded to bfloat16.
  void (*round_row)(index_t n, const T* row, bfloat16* to, index_t tails);

  /// sums_r = rescale_r (1 if rescale is null, which is for amx alone) sums_r + sum over j of
  /// weights[r, j] v_j for kPairRows rows, `columns` (a multiple of kPairColumns) elements of a
  /// value, and `keys`, a multiple of kPairStep.
  void (*add_values)(index_t columns, index_t keys, const bfloat16* weights, index_t weights_stride,
                     const ElementPair* values, T* sums, const T* rescale);
};

}  // namespace detail

ATTN_NAMESPACE_END

#define ATTN_KERNEL_TEXT_EXTENDED
#define ATTN_KERNEL_TEXT "attn/attention/paths/pair_kernels.inc.hpp"
#include "attn/simd/foreach_isa.hpp"
