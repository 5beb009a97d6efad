// BackwardTiling, BackwardScratch: splits of backward attention and scratch memory.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attn/attention/backward/problem.hpp"

ATTN_NAMESPACE_BEGIN

namespace detail {

/// How the keys of one batch row are cut. Each split of the keys is a task, which computes d_k and
/// d_v of its keys and a partial d_q. Depends on kv_len and the machine alone.
struct BackwardTiling {
  static constexpr index_t kMaxSplits = 4, kKeysPerSplit = 1024;
  static constexpr index_t kBlockQ = 96;  ///< a multiple of tile heights 6 and 8

  index_t block_kv, kv_splits, keys_per_split;

  explicit BackwardTiling(index_t kv_len)
      // With 128 keys of 64 floats, weights and score gradients (96 x 128) take 48 KB each, and
      // packed keys, packed values, copied keys, d_k and d_v 32 KB each.
      : block_kv(has_large_second_level_cache() ? 256 : 128),
        kv_splits(std::clamp((kv_len + kKeysPerSplit - 1) / kKeysPerSplit, index_t{1}, kMaxSplits)),
        keys_per_split(round_up((kv_len + kv_splits - 1) / kv_splits, block_kv)) {}
};

/// Scratch of one worker, cut from `elements` elements of T at `memory`.
template <class T>
struct BackwardScratch {
  T *k_panels, *v_panels, *k, *q, *d_out, *weights, *dropped, *d_s, *score_derivative,
      *prob_derivative, *d_q, *d_k, *d_v, *delta;
  std::array<T*, kMaxScoreParameters> parameter_derivatives{};
  QueryRow<T>* rows;
  KeyRange* seen;  ///< keys that each block of rows sees
  index_t d_stride, dv_stride, score_stride, elements = 0;

  BackwardScratch(T* memory, const BackwardProblem<T>& problem, index_t block_kv) {
    const AttentionProblem<T>& forward = problem.forward;
    const index_t d = forward.score_dim(), dv = forward.head_dim_v();
    constexpr index_t kRows = BackwardTiling::kBlockQ;
    d_stride = round_up(d, 16);
    dv_stride = round_up(dv, 16);
    score_stride = block_kv + 16;  // room for the last tile; not a power of two
    const auto take = [&](index_t n) {
      T* start = memory == nullptr ? nullptr : memory + elements;
      elements += round_up(n, 16);
      return start;
    };
    const auto take_array = [&]<class X>(X*, index_t n) {
      const index_t bytes = n * index_t{sizeof(X)};
      return reinterpret_cast<X*>(take((bytes + index_t{sizeof(T)} - 1) / index_t{sizeof(T)}));
    };
    const bool drops = forward.options.dropout.p > 0;
    k_panels = take(block_kv * d);
    v_panels = take(block_kv * dv);
    k = take(block_kv * d_stride);
    q = take(kRows * d);
    d_out = take(kRows * dv);
    weights = take(kRows * score_stride);
    dropped = drops || problem.prob_derivative ? take(kRows * score_stride) : weights;
    d_s = take(kRows * score_stride);
    score_derivative = problem.has_score_derivative() ? take(score_stride) : nullptr;
    prob_derivative = problem.prob_derivative ? take(score_stride) : nullptr;
    for (std::size_t n = 0; n < kMaxScoreParameters; ++n) {
      if (problem.parameter_derivatives[n]) parameter_derivatives[n] = take(score_stride);
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
