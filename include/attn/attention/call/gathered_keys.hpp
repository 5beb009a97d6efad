// GatheredKeys: a call whose blocks of queries each see their own list of keys.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attn/attention/key_range.hpp"

ATTN_NAMESPACE_BEGIN

namespace detail {

/// Each block of queries of each key/value head becomes a batch row of its own, with one key/value
/// head and the keys of its list: row (b * num_kv_heads + kv_head) * blocks + block. Tasks, tiles
/// and kernels need not know that keys are gathered.
struct GatheredKeys {
  TensorView4<const index_t> positions = {};        ///< AttentionOptions::gather
  index_t block = 1;                                ///< queries that share a list
  index_t num_kv_heads = 0, heads_per_kv_head = 0;  ///< of the call; 0: no keys are gathered
  index_t q_len = 0, kv_len = 0, first_key = 0;     ///< of the call

  explicit operator bool() const { return num_kv_heads > 0; }

  /// A list of keys, of the call's batch row b.
  struct Row {
    index_t b, kv_head, block;
  };
  Row row(index_t b) const {
    const index_t blocks = positions.extent(2), head = b / blocks;
    return {head / num_kv_heads, head % num_kv_heads, b % blocks};
  }
  index_t position(const Row& at, index_t j) const {
    return positions(at.b, positions.extent(1) == 1 ? 0 : at.kv_head, at.block, j);
  }

  index_t head(index_t b, index_t h) const { return row(b).kv_head * heads_per_kv_head + h; }
  index_t query(index_t b, index_t i) const { return row(b).block * block + i; }
  /// Number of queries.
  index_t queries(index_t b) const { return (std::min)(block, q_len - row(b).block * block); }
  /// Number of keys.
  index_t count(index_t b) const {
    const Row at = row(b);
    index_t begin = 0, end = positions.extent(3);
    while (begin < end) {
      const index_t middle = begin + (end - begin) / 2;
      if (position(at, middle) < 0) {
        end = middle;
      } else {
        begin = middle + 1;
      }
    }
    return begin;
  }
  /// Lengths of the call's own batch row.
  SequenceLengths lengths(index_t b) const { return {row(b).b, q_len, kv_len, first_key}; }

  /// The keys of the list at the given positions.
  KeyRange within(index_t b, KeyRange given) const {
    const Row at = row(b);
    const index_t n = count(b);
    const auto first = [&](index_t from, index_t position_at_least) {
      index_t end = n;
      while (from < end) {
        const index_t middle = from + (end - from) / 2;
        if (position(at, middle) < position_at_least) {
          from = middle + 1;
        } else {
          end = middle;
        }
      }
      return from;
    };
    const index_t begin = first(0, given.begin);
    return {begin, first(begin, given.end)};
  }
};

}  // namespace detail

ATTN_NAMESPACE_END
