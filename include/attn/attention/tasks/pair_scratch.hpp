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

/// An element is one bfloat16 or the sum of two parts, head and tail. Of the products of two parts
/// each, three are summed: head times tail, head times head, tail times head.
template <class T>
struct PairScratch {
  index_t parts = 1;
  bfloat16* queries = nullptr;    ///< rows of a task, padded with zeros to whole tiles
  T* keys = nullptr;              ///< pairs: panels of one block
  bfloat16* key = nullptr;        ///< one row
  T* lines = nullptr;             ///< pairs: the keys of a panel
  ElementPair* values = nullptr;  ///< (part, pairs of keys, out_stride)
  T* two_values = nullptr;
  bfloat16* weights = nullptr;                ///< (part, kPairRows, block_kv), of one tile
  index_t values_part = 0, weights_part = 0;  ///< elements from one part to the next

  PairScratch() = default;
  PairScratch(ScratchLayout& layout, index_t parts_of_element, index_t head_dim, index_t out_stride,
              index_t block_kv, index_t height)
      : parts(parts_of_element) {
    const index_t d = padded_row(head_dim);
    queries = layout.take<bfloat16>(height * d);
    keys = layout.take<T>(block_kv * d / 2);
    key = layout.take<bfloat16>(d);
    lines = layout.take<T>(kPairColumns * d / 2);
    values_part = block_kv / 2 * out_stride;
    values = layout.take<ElementPair>(parts * values_part);
    two_values = layout.take<T>(2 * out_stride);
    weights_part = kPairRows * block_kv;
    weights = layout.take<bfloat16>(parts * weights_part);
  }

  /// Elements of a row of queries or keys: the factors of each product, padded.
  index_t padded_row(index_t head_dim) const {
    return (2 * parts - 1) * round_up(head_dim, kPairStep);
  }
};

}  // namespace detail

ATTN_NAMESPACE_END
