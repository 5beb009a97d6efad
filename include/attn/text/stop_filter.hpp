// StopFilter: incremental text up to the first stop text.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "attn/core/error.hpp"
#include "attn/text/utf8.hpp"

ATTN_NAMESPACE_BEGIN

/// Passes text on, but holds back what may be the beginning of a stop text. A stop text may arrive
/// in any pieces.
class StopFilter {
 public:
  /// Throws ValueError for a stop text that is empty or not UTF-8: part of a character could not be
  /// completed.
  explicit StopFilter(std::vector<std::string> stops) : stops_(std::move(stops)) {
    for (const std::string& stop : stops_) {
      if (stop.empty()) {
        throw ValueError(message("StopFilter", "every stop text", "not be empty", "\"\""));
      }
      if (valid_utf8(stop) != stop) {
        throw ValueError(message("StopFilter", "every stop text", "be UTF-8", "other bytes"));
      }
    }
  }

  /// The text that is certain now. Empty after a stop text.
  std::string push(std::string_view text) {
    if (stopped_) return {};
    pending_ += text;
    // The stop text that is complete first, however the text is divided; of those at one position
    // the longest.
    std::size_t end = pending_.size() - longest_beginning(), complete = pending_.npos;
    for (const std::string& stop : stops_) {
      const std::size_t begin = pending_.find(stop);
      if (begin == pending_.npos || begin + stop.size() > complete) continue;
      end = begin + stop.size() < complete ? begin : (std::min)(begin, end);
      complete = begin + stop.size();
    }
    stopped_ = complete != pending_.npos;
    std::string certain = pending_.substr(0, end);
    pending_.erase(0, end);
    return certain;
  }

  bool stopped() const { return stopped_; }

  /// The text that was still held back.
  std::string finish() { return stopped_ ? std::string() : std::exchange(pending_, {}); }

 private:
  /// The beginning of a stop text at the end of pending_.
  std::size_t longest_beginning() const {
    std::size_t longest = 0;
    for (const std::string& stop : stops_) {
      for (std::size_t size = (std::min)(stop.size() - 1, pending_.size()); size > longest;
           --size) {
        if (std::string_view(pending_).ends_with(std::string_view(stop).substr(0, size))) {
          longest = size;
        }
      }
    }
    return longest;
  }

  std::vector<std::string> stops_;
  std::string pending_;
  bool stopped_ = false;
};

ATTN_NAMESPACE_END
