// BackwardTask: shared state of one task of backward attention.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attn/attention/backward/tiling.hpp"

ATTN_NAMESPACE_BEGIN

namespace detail {

/// Gradients that several tasks add to. Each task has its own copy; the copies are added up in a
/// fixed order once all tasks are done.
template <class T>
struct PartialGradients {
  /// (batch, num_heads, q_len, score_dim) of this split of the keys: d_q, then d_qv; nullptr: the
  /// call's own.
  T* d_q;
  /// (batch, num_heads, BackwardProblem::head_sums()): d_alibi_slope, d_relative_bias, then score
  /// parameters; nullptr where none is wanted.
  T* head_sums;
};

/// Keys of one key/value head against the queries that share it. While it lives, no other task may
/// use its worker's scratch. Classes hold a copy, which saves a load at each use.
template <class T>
struct BackwardTask {
  const BackwardProblem<T>& problem;
  const RowKernels<T>& kernels;
  const GradientKernels<T>& gradients;
  const BackwardTiling& tiling;
  const BackwardScratch<T>& scratch;
  PartialGradients<T> partial;
  T* deltas;  ///< of all rows of the call, by AttentionProblem::row_at()
  index_t b, kv_head;
};

}  // namespace detail

ATTN_NAMESPACE_END
