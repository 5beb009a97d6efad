// Byte-pair merges by rank.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <bit>
#include <vector>

#include "attn/text/token.hpp"

ATTN_NAMESPACE_BEGIN

namespace detail {

/// The token that two adjacent tokens merge into, and the priority of the merge.
struct Merge {
  std::int32_t rank = -1;  ///< -1: these two do not merge
  std::int32_t token = -1;
};

/// Merges of pairs of tokens: an open-addressing table, in which a lookup usually touches one line.
class MergeTable {
 public:
  MergeTable() = default;
  explicit MergeTable(std::size_t count) : slots_(std::bit_ceil(2 * count + 1)) {}

  /// The first of equal pairs counts.
  void add(std::int32_t left, std::int32_t right, Merge merge) {
    Slot& slot = slots_[find(key(left, right))];
    if (slot.merge.rank < 0) slot = {key(left, right), merge};
  }

  Merge operator()(std::int32_t left, std::int32_t right) const {
    return slots_[find(key(left, right))].merge;
  }

 private:
  struct Slot {
    std::uint64_t key = 0;
    Merge merge;
  };

  static std::uint64_t key(std::int32_t left, std::int32_t right) {
    return static_cast<std::uint64_t>(left) << 32 | static_cast<std::uint32_t>(right);
  }
  std::size_t find(std::uint64_t key) const {
    const std::size_t mask = slots_.size() - 1;
    std::size_t at = key * 0x9E3779B97F4A7C15u >> 32 & mask;
    while (slots_[at].merge.rank >= 0 && slots_[at].key != key) at = (at + 1) & mask;
    return at;
  }

  std::vector<Slot> slots_ = std::vector<Slot>(1);
};

/// The ids of two tokens and of their merge; -1: none.
struct MergedIds {
  std::int32_t left = -1, right = -1, both = -1;
};

/// Throws ValueError for a merge "left right", number `rank` of a list, with parts that are not
/// tokens. `ids_of(left, right)` returns the ids for their spelling.
template <class IdsOf>
void add_merge(MergeTable& merges, std::string_view merge, std::size_t rank, IdsOf&& ids_of) {
  const std::size_t space = merge.find(' ', 1);
  MergedIds ids;
  if (space != merge.npos) ids = ids_of(merge.substr(0, space), merge.substr(space + 1));
  if (ids.left < 0 || ids.right < 0 || ids.both < 0) {
    check_vocabulary(false, "merge " + std::to_string(rank), "be two tokens that together are one",
                     "\"" + valid_utf8(merge.substr(0, 100)) + "\"");
  }
  merges.add(ids.left, ids.right, {static_cast<std::int32_t>(rank), ids.both});
}

/// The tokens of a word during merging; its memory is reused for the next word.
class MergedWord {
 public:
  struct Symbol {
    std::int32_t id;  ///< -1: a character without a token
    std::int32_t begin,
        size;  ///< its bytes within the word; size 0 once it is merged into another
    std::int32_t before, next;  ///< -1: none
  };

  void clear() {
    symbols_.clear();
    heap_.clear();
  }
  /// Adds the next symbol.
  void add(std::int32_t id, std::size_t begin, std::size_t size) {
    const auto at = static_cast<std::int32_t>(symbols_.size());
    if (at > 0) symbols_.back().next = at;
    symbols_.push_back({.id = id,
                        .begin = static_cast<std::int32_t>(begin),
                        .size = static_cast<std::int32_t>(size),
                        .before = at - 1,
                        .next = -1});
  }

  /// merge(left, right) returns the Merge of two symbols. Of equal priorities the leftmost pair
  /// comes first.
  template <class F>
  void merge(F&& merge) {
    const auto symbol = [&](std::int32_t at) -> Symbol& {
      return symbols_[static_cast<std::size_t>(at)];
    };
    const auto propose = [&](std::int32_t at) {
      if (at < 0 || symbol(at).next < 0) return;
      const Symbol &left = symbol(at), &right = symbol(left.next);
      const Merge found = merge(left, right);
      if (found.rank < 0) return;
      heap_.push_back(
          {.rank = found.rank, .left = at, .token = found.token, .size = left.size + right.size});
      std::push_heap(heap_.begin(), heap_.end());
    };
    for (std::int32_t at = 0; at + 1 < static_cast<std::int32_t>(symbols_.size()); ++at)
      propose(at);
    while (!heap_.empty()) {
      const Candidate best = heap_.front();
      std::pop_heap(heap_.begin(), heap_.end());
      heap_.pop_back();
      Symbol& left = symbol(best.left);
      // Skips a candidate if a symbol was merged or has a new neighbour: lengths only grow.
      if (left.size == 0 || left.next < 0 || left.size + symbol(left.next).size != best.size)
        continue;
      Symbol& right = symbol(left.next);
      left.id = best.token;
      left.size = best.size;
      right.size = 0;
      left.next = right.next;
      if (left.next >= 0) symbol(left.next).before = best.left;
      propose(left.before);
      propose(best.left);
    }
  }

  /// Calls f(symbol) for all remaining symbols, in order.
  template <class F>
  void for_each(F&& f) const {
    for (std::int32_t at = symbols_.empty() ? -1 : 0; at >= 0;
         at = symbols_[static_cast<std::size_t>(at)].next) {
      f(symbols_[static_cast<std::size_t>(at)]);
    }
  }

 private:
  /// A candidate pair, unless one side has changed since.
  struct Candidate {
    std::int32_t rank, left, token, size;

    /// Order of a heap: highest priority on top, the leftmost of equals.
    friend bool operator<(const Candidate& a, const Candidate& b) {
      return a.rank != b.rank ? a.rank > b.rank : a.left > b.left;
    }
  };

  std::vector<Symbol> symbols_;
  std::vector<Candidate> heap_;
};

}  // namespace detail

ATTN_NAMESPACE_END
