// KeyHead, GatheredKeys: where keys lie in a call whose blocks of queries have lists of keys.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attn/attention/key_range.hpp"

ATTN_NAMESPACE_BEGIN

namespace detail {

/// The keys of one key/value head of a batch row.
struct KeyHead {
  index_t b, kv_head;             ///< of k and v
  const index_t* list = nullptr;  ///< positions of gathered keys, list_stride apart
  index_t list_stride = 0, first_key = 0;

  /// The j-th key, by its index among those given.
  index_t key(index_t j) const { return list == nullptr ? j : list[j * list_stride] - first_key; }
};

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
    return {.b = head / num_kv_heads, .kv_head = head % num_kv_heads, .block = b % blocks};
  }

  // Not inlined, so that calls without lists inline only the test for them.

  /// Lengths of batch row b.
  ATTN_COLD SequenceLengths sequence(index_t b) const {
    const Row at = row(b);
    return {.b = b, .q_len = (std::min)(block, q_len - at.block * block), .kv_len = count(at)};
  }
  /// Index of query i in q and out.
  ATTN_COLD Shape<4> query_index(index_t b, index_t h, index_t i) const {
    const Row at = row(b);
    return {at.b, at.kv_head * heads_per_kv_head + h, at.block * block + i, 0};
  }
  index_t head(index_t b, index_t h) const { return query_index(b, h, 0)[1]; }

  /// The list of batch row b.
  ATTN_COLD KeyHead key_head(index_t b) const { return key_head(row(b)); }

  /// The part of the list that all parts of a mask except the dense ones keep for query i.
  ATTN_COLD KeyRange keys_seen(const Mask& mask, const QueryOffset& offset, index_t b,
                               index_t i) const {
    const Row at = row(b);
    const SequenceLengths all{.b = at.b, .q_len = q_len, .kv_len = kv_len, .first_key = first_key};
    const KeyRange seen = detail::keys_seen(mask, offset, all, at.block * block + i);
    const KeyHead keys = key_head(at);
    const index_t n = count(at), begin = find(keys, 0, n, seen.begin);
    return {begin, find(keys, begin, n, seen.end)};
  }

 private:
  KeyHead key_head(const Row& at) const {
    const index_t head = positions.extent(1) == 1 ? 0 : at.kv_head;
    return {.b = at.b,
            .kv_head = at.kv_head,
            .list = positions.extent(3) == 0 ? positions.data()
                                             : positions.at_index({at.b, head, at.block, 0}),
            .list_stride = positions.stride(3),
            .first_key = first_key};
  }

  /// The first of the list's keys [from, end) at or after a given key; `end` if there is none.
  static index_t find(const KeyHead& keys, index_t from, index_t end, index_t wanted) {
    if (from < end && keys.key(end - 1) < wanted) return end;
    if (from < end && keys.key(from) >= wanted) return from;
    while (from < end) {
      const index_t middle = from + (end - from) / 2;
      if (keys.key(middle) < wanted) {
        from = middle + 1;
      } else {
        end = middle;
      }
    }
    return from;
  }

  /// Number of keys: those before the -1 that fill up the list.
  index_t count(const Row& at) const {
    const KeyHead keys = key_head(at);
    index_t from = 0, end = positions.extent(3);
    if (end > 0 && keys.list[(end - 1) * keys.list_stride] >= 0) return end;
    while (from < end) {
      const index_t middle = from + (end - from) / 2;
      if (keys.list[middle * keys.list_stride] < 0) {
        end = middle;
      } else {
        from = middle + 1;
      }
    }
    return from;
  }
};

}  // namespace detail

ATTN_NAMESPACE_END
