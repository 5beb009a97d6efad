// ForwardScratch, CallScratch: scratch memory of a worker and of a call.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <new>

#include "attn/attention/call/pair_calls.hpp"
#include "attn/attention/tasks/code_scratch.hpp"
#include "attn/attention/tasks/key_chunks.hpp"
#include "attn/attention/tasks/pair_scratch.hpp"
#include "attn/attention/tasks/plan.hpp"
#include "attn/exec/workspace.hpp"

ATTN_NAMESPACE_BEGIN

namespace detail {

/// Scratch memory of one worker thread, large enough for any task of the call.
template <class T>
struct ForwardScratch {
  index_t out_stride;     ///< elements between rows of `sums` and of `v`
  T* k;                   ///< packed panels of one block, on the tiled path
  T* v;                   ///< copied values of one block
  T* scores;              ///< of one tile
  T* products;            ///< scale qv . v of one tile, on the decode path
  T* scales;              ///< of the int8 keys or values of one block
  const void** pointers;  ///< to the keys or values of one block
  T* lines;               ///< scattered keys of one panel, before they are packed
  T* q;                   ///< copied queries, in whole tiles
  T* sums;                ///< of weights times values, in whole tiles
  QueryRow<T>* rows;
  CodeScratch<T> codes;  ///< instead of k, if int8 values are multiplied
  PairScratch<T> pairs;  ///< if a target multiplies pairs of bfloat16

  ForwardScratch(ScratchLayout& layout, const AttentionProblem<T>& problem,
                 const AttentionPlan& plan)
      : out_stride(round_up(problem.head_dim_v(), may_take_pairs(problem) ? kPairColumns : 16)) {
    const AttentionOptions<T>& options = problem.options;
    const index_t block_kv = plan.max_block_kv, score_dim = problem.score_dim();
    const bool packs_pairs = plan.packs_keys && may_take_pairs(problem);
    const index_t tile_rows = packs_pairs ? kPairRows : kMaxTileRows;
    const index_t height =
        plan.heads_per_task * (std::max)(plan.max_rows + tile_rows - 1, kMaxDecodeRows);
    const bool has_codes = plan.packs_keys && problem.has_codes();
    const bool has_panels = plan.packs_keys && !has_codes;
    k = layout.take<T>(has_panels ? block_kv * score_dim : 0);
    v = layout.take<T>(block_kv * out_stride);
    scores = layout.take<T>((std::max)(tile_rows, kMaxDecodeRows) * block_kv);
    products = layout.take<T>(options.qv ? kMaxDecodeRows * block_kv : 0);
    scales = layout.take<T>(problem.k_scales ? block_kv : 0);
    pointers = layout.take<const void*>(block_kv);
    lines = layout.take<T>(has_panels && problem.scattered() ? KeyChunks::kKeys * score_dim : 0);
    q = layout.take<T>(height * score_dim);
    sums = layout.take<T>(height * out_stride);
    rows = layout.take<QueryRow<T>>(plan.heads_per_task * plan.max_rows);
    if (packs_pairs) {
      pairs =
          PairScratch<T>(layout, (std::max)(float_parts(problem), index_t{1}),
                         has_pairs(problem) ? problem.head_dim() : 0, out_stride, block_kv, height);
    }
    if (has_codes) codes = CodeScratch<T>(layout, score_dim, block_kv, height);
  }
};

/// Scratch memory of one call. Pointers to parts that the call does not need are null.
template <class T>
struct CallScratch {
  T* weights;           ///< of all heads, if average_weights needs them
  RowState<T>* states;  ///< of all rows, if they outlive their task
  AttentionPlan::Sequence* sequences;
  ForwardScratch<T>* workers;  ///< of each thread
  T* split_sums;               ///< kMaxDecodeRows rows of each split
  RowState<T>* split_states;   ///< states of the rows of split_sums

  ATTN_ONCE_A_CALL CallScratch(ScratchLayout& layout, const AttentionProblem<T>& problem,
                               const AttentionPlan& plan) {
    weights = layout.take<T>(plan.scores_elements);
    states = layout.take<RowState<T>>(plan.states);
    sequences = layout.take<AttentionPlan::Sequence>(problem.batch());
    ScratchLayout one;
    const index_t out_stride = ForwardScratch<T>(one, problem, plan).out_stride;
    const auto bytes = static_cast<index_t>(one.bytes());
    workers = layout.take<ForwardScratch<T>>(plan.concurrency);
    std::byte* memory = layout.take<std::byte>(bytes * plan.concurrency);
    for (index_t n = 0; memory != nullptr && n < plan.concurrency; ++n) {
      ScratchLayout own(memory + n * bytes);
      ::new (workers + n) ForwardScratch<T>(own, problem, plan);
    }
    split_sums = layout.take<T>(plan.kv_splits * kMaxDecodeRows * out_stride);
    split_states = layout.take<RowState<T>>(plan.kv_splits * kMaxDecodeRows);
  }
};

template <class T>
ATTN_ONCE_A_CALL std::size_t call_scratch_bytes(const AttentionProblem<T>& problem,
                                                const AttentionPlan& plan) {
  ScratchLayout layout;
  (void)CallScratch<T>(layout, problem, plan);
  return layout.bytes();
}

}  // namespace detail

ATTN_NAMESPACE_END
