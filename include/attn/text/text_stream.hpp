// TextStream: decodes tokens incrementally into whole characters.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attn/text/tokenizer.hpp"

ATTN_NAMESPACE_BEGIN

/// What push() and finish() give, one after the other, is what the tokens add to a text: the bytes
/// of all but control tokens as valid_utf8() makes them, valid UTF-8 in each piece. The tokenizer
/// must outlive the stream.
class TextStream {
 public:
  explicit TextStream(const Tokenizer& tokenizer) : tokenizer_(&tokenizer) {}
  explicit TextStream(Tokenizer&&) = delete;  // would be gone

  /// The text that this token completes; nothing for a control token. Throws ValueError for an id
  /// that is none.
  std::string push(index_t id) {
    if (!tokenizer_->is_control(id)) pending_ += tokenizer_->piece(id);
    const std::size_t whole = pending_.size() - unfinished_bytes(pending_);
    std::string text = valid_utf8(std::string_view(pending_).substr(0, whole));
    pending_.erase(0, whole);
    return text;
  }

  /// What is left of a character that was not completed: U+FFFD for each of its bytes.
  std::string finish() { return valid_utf8(std::exchange(pending_, {})); }

 private:
  const Tokenizer* tokenizer_;
  std::string pending_;
};

ATTN_NAMESPACE_END
