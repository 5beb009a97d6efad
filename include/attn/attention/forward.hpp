// Forward attention: how a call is cut into tasks and blocks, and the dispatch to the kernels.
#pragma once

#include "attn/attention/problem.hpp"
#include "attn/kernels/softmax.hpp"
#include "attn/kernels/tile.hpp"

ATTN_NAMESPACE_BEGIN

namespace detail {

/// How the rows and keys of a call are cut. Results do not depend on rows_per_task; kBlockKV fixes where a
/// row's sums are rescaled, so it depends on nothing.
struct AttentionTiling {
  /// Keys of one block: packed K (256 x 64 floats = 64 KB) and V (64 KB) stay in a second-level cache of
  /// 512 KB beside the scores and outputs of one task.
  static constexpr index_t kBlockKV = 256;
  /// Rows of one task, at most and at least: packed queries and outputs of 384 x 64 floats are 96 KB each.
  static constexpr index_t kMostRows = 384, kLeastRows = 96;

  index_t rows_per_task;  ///< the heads that share keys are stacked: rows = group * q_len
  index_t blocks_per_group;
  index_t num_tasks;

  AttentionTiling(index_t groups, index_t rows, int threads) : rows_per_task(kMostRows) {
    // Packing a key costs about 1/400 of multiplying it by 384 rows; idle threads cost more.
    const auto tasks = [&] { return groups * ((rows + rows_per_task - 1) / rows_per_task); };
    while (rows_per_task > kLeastRows && tasks() < 2 * threads) rows_per_task /= 2;
    blocks_per_group = (rows + rows_per_task - 1) / rows_per_task;
    num_tasks = groups * blocks_per_group;
  }
};

}  // namespace detail

ATTN_NAMESPACE_END

#define ATTN_KERNEL_TEXT "attn/attention/score_row.inc.hpp"
#include "attn/simd/foreach_isa.hpp"
#define ATTN_KERNEL_TEXT "attn/attention/forward.inc.hpp"
#include "attn/simd/foreach_isa.hpp"

ATTN_NAMESPACE_BEGIN

namespace detail {

template <class T>
void forward(const AttentionProblem<T>& problem) {
  const Execution& execution = problem.options.execution;
  ATTN_DISPATCH(execution, forward(problem, execution.threads(), execution.scratch()))
}

}  // namespace detail

ATTN_NAMESPACE_END
