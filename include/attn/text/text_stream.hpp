// TextStream: decodes tokens incrementally into whole characters.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attn/text/tokenizer.hpp"

ATTN_NAMESPACE_BEGIN

/// Decodes tokens incrementally: the results of push() and finish(), joined, are the bytes of all
/// tokens but control tokens, made valid by valid_utf8(); each piece is valid UTF-8. The tokenizer
/// must outlive the stream.
class TextStream {
 public:
  explicit TextStream(const Tokenizer& tokenizer) : tokenizer_(&tokenizer) {}
  explicit TextStream(Tokenizer&&) = delete;  // would be destroyed

  /// The text that this token completes; empty for a control token. Throws ValueError for an id
  /// outside the vocabulary.
  std::string push(index_t id) {
    if (!tokenizer_->is_control(id)) pending_ += tokenizer_->piece(id);
    const std::size_t whole = pending_.size() - unfinished_bytes(pending_);
    std::string text = valid_utf8(std::string_view(pending_).substr(0, whole));
    pending_.erase(0, whole);
    return text;
  }

  /// The rest of an incomplete character: U+FFFD for each of its bytes.
  std::string finish() { return valid_utf8(std::exchange(pending_, {})); }

 private:
  const Tokenizer* tokenizer_;
  std::string pending_;
};

ATTN_NAMESPACE_END
