// PairScratch: scratch memory for bfloat16 pairs.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attn/core/arithmetic.hpp"
#include "attn/core/element.hpp"
#include "attn/exec/workspace.hpp"

ATTN_NAMESPACE_BEGIN

namespace detail {

/// Two consecutive elements in the order of summation.
using ElementPair = std::uint32_t;
/// Rows of a query tile, columns per product, and elements per summation step (16 pairs).
inline constexpr index_t kPairRows = 32, kPairColumns = 32, kPairStep = 32;

template <class T>
struct PairScratch {
  bfloat16* queries = nullptr;    ///< rows of a task, padded with zeros to whole tiles
  T* keys = nullptr;              ///< pairs: panels of one block
  T* lines = nullptr;             ///< pairs: the keys of a panel
  ElementPair* values = nullptr;  ///< (pairs of keys, out_stride)
  T* two_values = nullptr;
  bfloat16* weights = nullptr;  ///< of one tile

  PairScratch() = default;
  PairScratch(ScratchLayout& layout, index_t head_dim, index_t out_stride, index_t block_kv,
              index_t height) {
    const index_t d = round_up(head_dim, kPairStep);
    queries = layout.take<bfloat16>(height * d);
    keys = layout.take<T>(block_kv * d / 2);
    lines = layout.take<T>(kPairColumns * d / 2);
    values = layout.take<ElementPair>(block_kv / 2 * out_stride);
    two_values = layout.take<T>(2 * out_stride);
    weights = layout.take<bfloat16>(kPairRows * block_kv);
  }
};

}  // namespace detail

ATTN_NAMESPACE_END
