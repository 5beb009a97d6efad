// BlockTable: the visibility of each block of queries and keys.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attn/attention/key_range.hpp"

ATTN_NAMESPACE_BEGIN

namespace detail {

/// A view of the table of a BlockMask, which kernels read instead of calling classify().
struct BlockTable {
  const Visibility* blocks = nullptr;  ///< (batch, heads, q_blocks, kv_blocks), last axis fastest
  Shape<4> shape = {};  ///< (batch, heads, q_len, kv_len); batch and heads broadcast if they are 1
  int q_shift = 0, kv_shift = 0;  ///< log2 of the queries and keys of one block

  explicit operator bool() const { return blocks != nullptr; }

  static index_t blocks_of(index_t length, int shift) {
    return (length + (index_t{1} << shift) - 1) >> shift;
  }
  Shape<4> grid() const {
    return {shape[0], shape[1], blocks_of(shape[2], q_shift), blocks_of(shape[3], kv_shift)};
  }

  /// The visibility of a range of key positions to a range of queries; neither is empty.
  Visibility visibility(index_t b, index_t h, KeyRange queries, KeyRange keys) const {
    const Shape<4> extents = grid();
    const index_t head = (extents[0] == 1 ? 0 : b) * extents[1] + (extents[1] == 1 ? 0 : h);
    const index_t last_q = (queries.end - 1) >> q_shift, last_kv = (keys.end - 1) >> kv_shift;
    bool some = false, all = true;
    for (index_t q = queries.begin >> q_shift; q <= last_q; ++q) {
      const Visibility* row = blocks + (head * extents[2] + q) * extents[3];
      for (index_t kv = keys.begin >> kv_shift; kv <= last_kv; ++kv) {
        some = some || row[kv] != Visibility::empty;
        all = all && row[kv] == Visibility::full;
      }
    }
    return all ? Visibility::full : some ? Visibility::partial : Visibility::empty;
  }
};

}  // namespace detail

ATTN_NAMESPACE_END
