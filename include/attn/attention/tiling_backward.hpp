// BackwardTiling and BackwardScratch: how backward is cut, and the memory of one worker.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attn/attention/problem_backward.hpp"

ATTN_NAMESPACE_BEGIN

namespace detail {

/// How the keys of one batch row are cut. A part of the keys is a task, which makes d_k and d_v of
/// its keys and a part of d_q; all of it follows from the length alone.
struct BackwardTiling {
  static constexpr index_t kMaxParts = 4, kKeysOfPart = 1024;
  static constexpr index_t kBlockQ = 96;  ///< whole tiles of 6 and of 8 rows

  index_t block_kv, parts, keys_of_part;

  explicit BackwardTiling(index_t kv_len)
      // Weights and score gradients of 96 x 128 floats are 48 KB each; packed keys and values,
      // copies and sums of 128 x 64 floats five times 32 KB.
      : block_kv(has_large_second_level_cache() ? 256 : 128),
        parts(std::clamp((kv_len + kKeysOfPart - 1) / kKeysOfPart, index_t{1}, kMaxParts)),
        keys_of_part(round_up((kv_len + parts - 1) / parts, block_kv)) {}
};

/// Scratch of one worker, cut from `elements` of T at `memory`.
template <class T>
struct BackwardScratch {
  T *k_panels, *v_panels, *k, *q, *d_out, *weights, *dropped, *d_s, *slope, *prob_slope, *d_q, *d_k,
      *d_v, *delta;
  std::array<T*, kMaxScoreParameters> parameter_slopes{};
  QueryRow<T>* rows;
  KeyRange* seen;  ///< by the rows of each block
  index_t d_stride, dv_stride, score_stride, elements = 0;

  BackwardScratch(T* memory, const BackwardProblem<T>& problem, index_t block_kv) {
    const AttentionProblem<T>& forward = problem.forward;
    const index_t d = forward.score_dim(), dv = forward.head_dim_v();
    constexpr index_t kRows = BackwardTiling::kBlockQ;
    d_stride = round_up(d, 16);
    dv_stride = round_up(dv, 16);
    score_stride = block_kv + 16;  // the columns of the last tile, and no power of two between rows
    const auto take = [&](index_t n) {
      T* start = memory == nullptr ? nullptr : memory + elements;
      elements += round_up(n, 16);
      return start;
    };
    const auto take_array = [&]<class X>(X*, index_t n) {
      const index_t bytes = n * index_t{sizeof(X)};
      return reinterpret_cast<X*>(take((bytes + index_t{sizeof(T)} - 1) / index_t{sizeof(T)}));
    };
    const bool drops = forward.options.dropout.p > 0, bends = problem.bends_scores();
    k_panels = take(block_kv * d);
    v_panels = take(block_kv * dv);
    k = take(block_kv * d_stride);
    q = take(kRows * d);
    d_out = take(kRows * dv);
    weights = take(kRows * score_stride);
    dropped = drops || problem.prob_slope ? take(kRows * score_stride) : weights;
    d_s = take(kRows * score_stride);
    slope = bends ? take(score_stride) : nullptr;
    prob_slope = problem.prob_slope ? take(score_stride) : nullptr;
    for (std::size_t n = 0; n < kMaxScoreParameters; ++n) {
      if (problem.parameter_slopes[n]) parameter_slopes[n] = take(score_stride);
    }
    d_q = take(kRows * d_stride);
    d_k = take((block_kv + kMaxTileRows) * d_stride);
    d_v = take((block_kv + kMaxTileRows) * dv_stride);
    delta = take(kRows);
    rows = take_array(static_cast<QueryRow<T>*>(nullptr), kRows);
    const index_t max_rows = forward.heads_per_kv_head * forward.scores[2];
    seen = take_array(static_cast<KeyRange*>(nullptr), (max_rows + kRows - 1) / kRows);
  }
};

}  // namespace detail

ATTN_NAMESPACE_END
