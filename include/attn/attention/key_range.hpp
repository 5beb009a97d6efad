// QueryOffset, Visibility, and the range of keys that causality, windows and lengths keep.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attn/attention/sequence_masks.hpp"

ATTN_NAMESPACE_BEGIN

/// The position of query i is i + offset. Causal masks, windows and ALiBi use it.
struct QueryOffset {
  enum class Kind { bottom_right, top_left, fixed, per_row };
  Kind kind = Kind::bottom_right;
  index_t value = 0;
  TensorView1<const index_t> values = {};
};

/// The last query is aligned with the last key: offset = kv_len - q_len, from the lengths of each
/// batch row.
inline constexpr QueryOffset bottom_right{};
/// The first query is aligned with the first key, as in PyTorch's is_causal: offset = 0.
inline constexpr QueryOffset top_left{QueryOffset::Kind::top_left, 0, {}};
/// An explicit offset, which may be negative.
constexpr QueryOffset query_offset(index_t value) { return {QueryOffset::Kind::fixed, value, {}}; }
/// One offset per batch row. Shape (batch).
template <TensorLike X>
QueryOffset query_offsets(const X& offsets) {
  static_assert(detail::has_rank<X, 1>, "query_offsets takes offsets, (batch)");
  ATTN_ASSERT_INDICES(X, "query_offsets: offsets");
  return {QueryOffset::Kind::per_row, 0, detail::index_view<1>(offsets)};
}
template <TemporaryTensor X>
QueryOffset query_offsets(X&&) = delete;  // it would view a temporary tensor

/// What classify() of a mask functor returns for a block of queries and keys.
enum class Visibility { empty, partial, full };

namespace detail {

/// Keys [begin, end).
struct KeyRange {
  index_t begin, end;
};
constexpr bool is_empty(KeyRange keys) { return keys.begin >= keys.end; }
constexpr KeyRange intersection(KeyRange a, KeyRange b) {
  return {(std::max)(a.begin, b.begin), (std::min)(a.end, b.end)};
}

/// One batch row of a call: stored lengths, before key_lengths and query_lengths apply.
struct SequenceLengths {
  index_t b, q_len, kv_len;
  index_t first_key = 0;  ///< position of the first of the kv_len keys that are given

  /// Number of keys, including those before first_key.
  index_t total_kv_len() const { return first_key + kv_len; }
  index_t keys(const Mask& mask) const {
    return mask.key_lengths ? mask.key_lengths(b) : total_kv_len();
  }
  index_t queries(const Mask& mask) const {
    return mask.query_lengths ? mask.query_lengths(b) : q_len;
  }
};

/// Position of query i among the keys.
inline index_t position(const Mask& mask, const QueryOffset& offset, const SequenceLengths& row,
                        index_t i) {
  switch (offset.kind) {
    case QueryOffset::Kind::bottom_right:
      return i + row.keys(mask) - row.queries(mask);
    case QueryOffset::Kind::top_left:
      return i;
    case QueryOffset::Kind::per_row:
      return i + offset.values(row.b);
    case QueryOffset::Kind::fixed:
      break;
  }
  return i + offset.value;
}

/// The keys of the document that position p belongs to.
inline KeyRange document_at(TensorView1<const index_t> ids, index_t p) {
  if (p < 0 || p >= ids.extent(0)) return {0, 0};
  // The first key at or after `from` whose id is at least `id`; ids never decrease.
  const auto first = [&](index_t from, index_t id) {
    index_t end = ids.extent(0);
    while (from < end) {
      const index_t middle = from + (end - from) / 2;
      if (ids(middle) < id) {
        from = middle + 1;
      } else {
        end = middle;
      }
    }
    return from;
  };
  return {first(0, ids(p)), first(p, ids(p) + 1)};
}

/// The keys that all parts of a mask except the dense ones keep for query i. This is always one
/// interval; indices count from the first key given.
inline KeyRange keys_seen(const Mask& mask, const QueryOffset& offset, const SequenceLengths& row,
                          index_t i) {
  if (i >= row.queries(mask)) return {0, 0};
  const index_t p = position(mask, offset, row, i);
  KeyRange seen{mask.left_padding ? mask.left_padding(row.b) : 0, row.keys(mask)};
  const auto intersect = [&](index_t begin, index_t end) {
    seen = intersection(seen, {begin, end});
  };
  if (mask.causal) intersect(0, p + 1);
  if (mask.prefix_lengths) intersect(0, (std::max)(p + 1, mask.prefix_lengths(row.b)));
  if (mask.chunk > 0) {
    const index_t begin = p - ((p % mask.chunk) + mask.chunk) % mask.chunk;  // p may be negative
    intersect(begin, begin + mask.chunk);
  }
  if (mask.documents) {
    const auto& ids = mask.documents;
    const KeyRange document = document_at(ids.select(0, ids.extent(0) == 1 ? 0 : row.b), p);
    intersect(document.begin, document.end);
  }
  intersect((std::max)(p - mask.left, row.first_key), p + mask.right + 1);
  return is_empty(seen) ? KeyRange{0, 0}
                        : KeyRange{seen.begin - row.first_key, seen.end - row.first_key};
}

}  // namespace detail

ATTN_NAMESPACE_END
