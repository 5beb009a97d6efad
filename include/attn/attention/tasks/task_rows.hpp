// TaskRows: the queries of a task and the keys that they attend to.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attn/attention/rows/row_kernels.hpp"
#include "attn/attention/tasks/key_chunks.hpp"

ATTN_NAMESPACE_BEGIN

namespace detail {

/// Rows [first_row, first_row + num_rows) of batch row b, counted from the first row of key/value
/// head kv_head; the last row of a head is followed by the first of the next.
struct RowBlock {
  index_t b, kv_head, first_row, num_rows;
  /// The last row of the head is followed by the first of the same head of the next batch row.
  bool joins_batch = false;
};

template <class T>
class TaskRows {
 public:
  /// `rows` has room for block.num_rows. trims_by_table: a BlockTable may shorten ranges of keys.
  /// False on the decode path, where the order of sums depends on the range: only the functor's own
  /// classify() shortens it there, as in a call without the table.
  TaskRows(const AttentionProblem<T>& problem, const RowBlock& block, QueryRow<T>* rows,
           bool trims_by_table)
      : problem_(problem),
        b_(block.b),
        count_(block.num_rows),
        q_len_(problem.lengths(block.b).q_len),
        first_position_(problem.lengths(block.b).first_key),
        rows_(rows),
        uniform_(block.num_rows > 0 && !problem.options.mask.has_intervals()),
        has_table_(static_cast<bool>(problem.functors.blocks)),
        trims_by_table_(has_table_ && trims_by_table),
        classifies_(problem.functors.classify != nullptr && !trims_by_table_) {
    if (count_ == 0) return;  // a packed sequence may have keys and no queries
    const index_t heads = problem.heads_per_kv_head;
    index_t h = block.kv_head * heads + block.first_row / q_len_;
    index_t i = block.first_row % q_len_;
    KeyRange keys = problem.keys_seen(b_, i);
    for (index_t r = 0; r < count_; ++r) {
      if (!uniform_) keys = problem.keys_seen(b_, i);
      rows[r] = {.h = h,
                 .i = i,
                 .keys = keys,
                 .state = {.row_max = kMinusInf<T>, .row_sum = T{0}},
                 .output_scale = T{0}};
      if (++i == q_len_) i = 0, ++h;
      if (block.joins_batch && h == (block.kv_head + 1) * heads) h -= heads;
    }
  }

  /// Makes all rows see keys [0, keys), whatever the masks are.
  void see_all(index_t keys) {
    for (index_t r = 0; r < count_; ++r) rows_[r].keys = {0, keys};
    uniform_ = count_ > 0;
    has_table_ = trims_by_table_ = classifies_ = false;
  }

  index_t count() const { return count_; }
  /// Whether all rows see the same interval of keys.
  bool uniform() const { return uniform_; }
  QueryRow<T>& operator[](index_t r) const { return rows_[r]; }
  std::span<QueryRow<T>> all() const { return {rows_, static_cast<std::size_t>(count_)}; }

  /// The smallest range that contains every key of `keys` visible to at least one row.
  KeyRange seen(KeyRange keys) const { return seen_by(0, count_, keys); }

  /// seen() for rows [r, r + count).
  KeyRange seen_by(index_t r, index_t count, KeyRange keys) const {
    return uniform_ && !trims() ? seen_by_row(r, keys) : seen_by_any(r, count, keys);
  }

  /// The visibility of `keys` to rows [r, r + count) under the mask functor, from the BlockTable,
  /// else from classify(). `keys` lie in the block that begins at first_key.
  KeyChunks chunks(index_t r, index_t count, index_t first_key, KeyRange keys) const {
    KeyChunks result{.first_key = first_key};
    if (!has_table_) {
      const bool is_full = classifies_ && visibility(r, count, keys, false) == Visibility::full;
      if (is_full) result.set_all_full();
      return result;
    }
    for (index_t j = keys.begin; j < keys.end;) {
      const index_t end = (std::min)(KeyChunks::chunk_end(j), keys.end);
      result.add(j, visibility(r, count, {j, end}, true));
      j = end;
    }
    return result;
  }

 private:
  bool trims() const { return trims_by_table_ || classifies_; }

  /// The visibility of `keys` to rows [r, r + count), which may belong to several heads, from the
  /// BlockTable or classify().
  Visibility visibility(index_t r, index_t count, KeyRange keys, bool by_table) const {
    const RowFunctors<T>& functors = problem_.functors;
    const KeyRange positions{keys.begin + first_position_, keys.end + first_position_};
    bool some = false, all = true;
    for (index_t x = r; x < r + count;) {
      const QueryRow<T>& first = rows_[x];
      const index_t n = (std::min)(r + count - x, q_len_ - first.i);  // of one head
      const KeyRange queries{first.i, first.i + n};
      const Visibility part =
          by_table ? functors.blocks.visibility(b_, first.h, queries, positions)
                   : functors.classify(functors.mask.object, b_, first.h, queries, positions);
      some = some || part != Visibility::empty;
      all = all && part == Visibility::full;
      x += n;
    }
    return all ? Visibility::full : some ? Visibility::partial : Visibility::empty;
  }

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
    if (trims()) trim(r, count, seen);
    return seen;
  }

  /// Shortens `seen` at both ends by empty chunks.
  void trim(index_t r, index_t count, KeyRange& seen) const {
    const auto is_empty = [&](KeyRange keys) {
      return visibility(r, count, keys, trims_by_table_) == Visibility::empty;
    };
    while (seen.begin < seen.end) {
      const index_t next = (std::min)(KeyChunks::chunk_end(seen.begin), seen.end);
      if (!is_empty({seen.begin, next})) break;
      seen.begin = next;
    }
    while (seen.begin < seen.end) {
      const index_t last =
          (std::max)(KeyChunks::chunk_end(seen.end - 1) - KeyChunks::kKeys, seen.begin);
      if (!is_empty({last, seen.end})) break;
      seen.end = last;
    }
  }

  const AttentionProblem<T>& problem_;
  index_t b_, count_, q_len_;
  index_t first_position_;  ///< of key 0
  QueryRow<T>* rows_;
  bool uniform_;
  bool has_table_, trims_by_table_;
  bool classifies_;  ///< classify() of the mask functor shortens ranges of keys
};

}  // namespace detail

ATTN_NAMESPACE_END
