// TaskRows: the queries of a task and the keys that they attend to.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attn/attention/rows/row_kernels.hpp"

ATTN_NAMESPACE_BEGIN

namespace detail {

/// Rows [first_row, first_row + num_rows) of batch row b, counted from the first row of key/value
/// head kv_head; the last row of a head is followed by the first of the next.
struct RowBlock {
  index_t b, kv_head, first_row, num_rows;
};

template <class T>
class TaskRows {
 public:
  /// `rows` has room for block.num_rows.
  TaskRows(const AttentionProblem<T>& problem, const RowBlock& block, QueryRow<T>* rows)
      : problem_(problem),
        b_(block.b),
        count_(block.num_rows),
        first_position_(problem.lengths(block.b).first_key),
        rows_(rows),
        uniform_(block.num_rows > 0 && !problem.options.mask.has_intervals()),
        classifies_(problem.functors.classify != nullptr) {
    if (count_ == 0) return;  // a packed sequence may have keys and no queries
    const index_t q_len = problem.lengths(b_).q_len;
    index_t h = block.kv_head * problem.heads_per_kv_head + block.first_row / q_len;
    index_t i = block.first_row % q_len;
    KeyRange keys = problem.keys_seen(b_, i);
    for (index_t r = 0; r < count_; ++r) {
      if (!uniform_) keys = problem.keys_seen(b_, i);
      rows[r] = {h, i, keys, {kMinusInf<T>, T{0}}, T{0}};
      if (++i == q_len) i = 0, ++h;
    }
  }

  /// Makes all rows see keys [0, keys), whatever the masks are.
  void show_all(index_t keys) {
    for (index_t r = 0; r < count_; ++r) rows_[r].keys = {0, keys};
    uniform_ = count_ > 0;
    classifies_ = false;
  }

  index_t count() const { return count_; }
  /// Whether all rows see the same interval of keys.
  bool uniform() const { return uniform_; }
  QueryRow<T>& operator[](index_t r) const { return rows_[r]; }
  std::span<QueryRow<T>> all() const { return {rows_, static_cast<std::size_t>(count_)}; }

  /// The smallest range that contains every key of `keys` visible to at least one row.
  KeyRange seen(KeyRange keys) const { return seen_by(0, count_, keys); }

  /// As above, for rows [r, r + count).
  KeyRange seen_by(index_t r, index_t count, KeyRange keys) const {
    return uniform_ && !classifies_ ? seen_by_row(r, keys) : seen_by_any(r, count, keys);
  }

  /// classify() of the mask functor for rows [r, r + count), which may belong to several heads.
  Visibility visibility(index_t r, index_t count, KeyRange keys) const {
    const RowFunctors<T>& functors = problem_.functors;
    if (!classifies_) return Visibility::partial;
    bool some = false, all = true;
    for (index_t x = r; x < r + count;) {
      const QueryRow<T>& first = rows_[x];
      index_t end = x + 1;
      while (end < r + count && rows_[end].h == first.h) ++end;
      const Visibility part =
          functors.classify(functors.mask.object, b_, first.h, {first.i, first.i + end - x},
                            {keys.begin + first_position_, keys.end + first_position_});
      some = some || part != Visibility::empty;
      all = all && part == Visibility::full;
      x = end;
    }
    return all ? Visibility::full : some ? Visibility::partial : Visibility::empty;
  }

 private:
  KeyRange seen_by_row(index_t r, KeyRange keys) const {
    return {(std::max)(rows_[r].keys.begin, keys.begin), (std::min)(rows_[r].keys.end, keys.end)};
  }

  KeyRange seen_by_any(index_t r, index_t count, KeyRange keys) const {
    KeyRange seen{keys.end, keys.begin};
    for (index_t x = r; x < r + (uniform_ ? 1 : count); ++x) {
      const KeyRange part = seen_by_row(x, keys);
      if (part.begin >= part.end) continue;
      seen = {(std::min)(seen.begin, part.begin), (std::max)(seen.end, part.end)};
    }
    if (classifies_) trim(r, count, seen);
    return seen;
  }

  /// Maximal number of keys in one call of classify() in trim().
  static constexpr index_t kChunk = 64;

  /// Shortens `seen` at both ends by chunks for which classify() returns empty.
  void trim(index_t r, index_t count, KeyRange& seen) const {
    while (seen.begin < seen.end) {
      const index_t next = (std::min)((seen.begin / kChunk + 1) * kChunk, seen.end);
      if (visibility(r, count, {seen.begin, next}) != Visibility::empty) break;
      seen.begin = next;
    }
    while (seen.begin < seen.end) {
      const index_t last = (std::max)((seen.end - 1) / kChunk * kChunk, seen.begin);
      if (visibility(r, count, {last, seen.end}) != Visibility::empty) break;
      seen.end = last;
    }
  }

  const AttentionProblem<T>& problem_;
  index_t b_, count_;
  index_t first_position_;  ///< of key 0
  QueryRow<T>* rows_;
  bool uniform_;
  bool classifies_;  ///< the mask functor has classify()
};

}  // namespace detail

ATTN_NAMESPACE_END
