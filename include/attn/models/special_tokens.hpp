// SpecialTokens: beginning and end tokens.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <optional>
#include <vector>

#include "attn/core/shape.hpp"

ATTN_NAMESPACE_BEGIN

/// Ids of the special tokens that a tokenizer's file names.
struct SpecialTokens {
  std::optional<index_t> bos;
  std::vector<index_t> ends;           ///< each of them ends an answer or a text
  bool add_bos = false;                ///< before texts; chat templates write it themselves
  std::optional<index_t> behind = {};  ///< written after texts of encoders

  bool is_end(index_t id) const { return std::find(ends.begin(), ends.end(), id) != ends.end(); }
  /// Adds an id to `ends` unless it is already there.
  void add_end(index_t id) {
    if (!is_end(id)) ends.push_back(id);
  }
};

ATTN_NAMESPACE_END
