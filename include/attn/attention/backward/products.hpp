// add_products: the products of backward attention that add to d_q, d_k and d_v.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attn/attention/backward/tile.hpp"

ATTN_NAMESPACE_BEGIN

namespace detail {

/// d_q += d_s k, d_v += p^T d_out, d_k += d_s^T q, for `count` rows and the keys in `columns`, of
/// which the mask functor keeps `chunks`. Reads weights and d_s of `scores` and k, q and d_out of
/// `inputs`, adds to d_q, d_k and d_v of `sums`.
template <class T>
void add_products(const BackwardTask<T>& task, const BackwardScratch<T>& scores,
                  const BackwardScratch<T>& inputs, const BackwardScratch<T>& sums, index_t count,
                  const TileKeys* of_tile, KeyRange columns, const KeyChunks& chunks) {
  // 64 keys of 64 floats are 16 KB: they stay in L1 for all row tiles.
  constexpr index_t kKeys = 64;
  const index_t d = task.problem.forward.score_dim(), dv = task.problem.forward.head_dim_v();
  const index_t stride = scores.score_stride, MR = task.kernels.tile_rows;
  const auto [begin, end] = columns;
  for (index_t j = begin; j < end; j += kKeys) {
    for (index_t r = 0; r < count; r += MR) {
      const TileKeys& tile = of_tile[r / MR];
      if (!tile.sees({j, j + kKeys})) continue;
      const KeyRange keys = intersection(tile.columns, {j, j + kKeys});
      task.gradients.add_product(d, keys.end - keys.begin, scores.d_s + r * stride + keys.begin,
                                 stride, inputs.k + keys.begin * inputs.d_stride, inputs.d_stride,
                                 sums.d_q + r * sums.d_stride, sums.d_stride);
    }
  }
  const index_t first_key = chunks.first_key;
  chunks.for_each_seen({first_key + begin, first_key + end}, [&](KeyRange seen) {
    const index_t first = seen.begin - first_key, n = seen.end - seen.begin;
    task.gradients.add_transposed(n, dv, count, scores.dropped + first, stride, inputs.d_out, dv,
                                  sums.d_v + first * sums.dv_stride, sums.dv_stride);
    task.gradients.add_transposed(n, d, count, scores.d_s + first, stride, inputs.q, d,
                                  sums.d_k + first * sums.d_stride, sums.d_stride);
  });
}

}  // namespace detail

ATTN_NAMESPACE_END
