// TreeStack: adds the leaves of a binary tree in order, whose shape depends on their number alone.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <utility>
#include <vector>

#include "attn/core/shape.hpp"

ATTN_NAMESPACE_BEGIN

namespace detail {

/// A node of the tree: the sum of micro-batches [index << level, (index + 1) << level), without
/// those past the last one.
struct TreeNode {
  index_t level, index;

  bool is_left_of(const TreeNode& other) const {
    return level == other.level && index % 2 == 0 && other.index == index + 1;
  }
};

/// Nodes in order; two adjacent siblings are replaced by their parent.
template <class Sum>
struct TreeStack {
  struct Entry {
    TreeNode node;
    Sum sum;
  };
  index_t count;  ///< micro-batches of the tree
  std::vector<Entry> entries = {};

  /// add(left, right): left += right.
  template <class Add>
  void push(const TreeNode& node, Sum sum, Add add) {
    entries.push_back({node, std::move(sum)});
    for (;;) {
      TreeNode& last = entries.back().node;
      // A left node without a right sibling becomes its own parent.
      while (last.index > 0 && last.index % 2 == 0 && (last.index + 1) << last.level >= count) {
        last = {last.level + 1, last.index / 2};
      }
      if (entries.size() < 2) return;
      Entry& left = entries[entries.size() - 2];
      if (!left.node.is_left_of(last)) return;
      add(left.sum, entries.back().sum);
      left.node = {last.level + 1, last.index / 2};
      entries.pop_back();
    }
  }
};

}  // namespace detail

ATTN_NAMESPACE_END
