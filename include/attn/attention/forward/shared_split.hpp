// sum_shared_split(): a task over keys that batch rows share.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attn/attention/forward/driver_sums.hpp"

ATTN_NAMESPACE_BEGIN

namespace detail {

/// Runs task i of AttentionPlan::shared_tasks: sums one shared split of a key/value head for a
/// group of batch rows, as one tile. Each row has the bits of a tile of its own. Then calls
/// store(task, first row, batch row, key/value head, split) for each batch row. `one` is the tiling
/// of one batch row.
template <class T, class Store>
void sum_shared_split(const AttentionProblem<T>& problem, const ForwardKernels<T>& kernels,
                      const SequenceTiling& one, const ForwardScratch<T>& scratch, index_t i,
                      const Store& store) {
  const index_t batch = problem.batch(), groups = one.batch_groups(batch), group = i % groups;
  const index_t split = i / groups % one.shared_splits, kv_head = i / groups / one.shared_splits;
  const index_t begin = group * batch / groups, end = (group + 1) * batch / groups;
  SequenceTiling tiling = one;
  tiling.rows *= end - begin;
  ForwardTask<T> task(problem, kernels, tiling, scratch,
                      {.b = begin,
                       .kv_head = kv_head,
                       .first_row = 0,
                       .num_rows = tiling.rows,
                       .joins_batch = true});
  sum_split(task, split);
  for (index_t b = begin; b < end; ++b) store(task, (b - begin) * one.rows, b, kv_head, split);
}

}  // namespace detail

ATTN_NAMESPACE_END
