// BackwardTask: shared state of one task of backward attention.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attn/attention/backward/tiling.hpp"

ATTN_NAMESPACE_BEGIN

namespace detail {

/// Gradients that several tasks add to. Each task has its own copy; the copies are added up in a
/// fixed order after all tasks have finished.
template <class T>
struct PartialGradients {
  /// (rows of the call, score_dim) for this split of the keys, by BackwardTask::row_at(): d_q, then
  /// d_qv; nullptr: use the output of the call.
  T* d_q;
  /// (batch, num_heads, BackwardProblem::head_sums()): d_alibi_slope, d_relative_bias, then score
  /// parameters; nullptr if none is requested.
  T* head_sums;
};

/// Keys of one key/value head with the queries that share it. While it exists, no other task may
/// use its worker's scratch. Classes hold a copy, which saves a load at each use.
template <class T>
struct BackwardTask {
  const BackwardProblem<T>& problem;
  const RowKernels<T>& kernels;
  const GradientKernels<T>& gradients;
  const BackwardTiling& tiling;
  const BackwardScratch<T>& scratch;
  PartialGradients<T> partial = {};
  T* deltas;          ///< of the rows of problem.kv_heads, by row_at()
  index_t first_row;  ///< of these rows, by AttentionProblem::row_at()
  index_t b, kv_head;

  /// Index of a query among the rows of problem.kv_heads.
  index_t row_at(index_t h, index_t i) const { return problem.forward.row_at(b, h, i) - first_row; }
};

}  // namespace detail

ATTN_NAMESPACE_END
