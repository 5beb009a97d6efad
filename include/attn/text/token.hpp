// Tokens: what kinds of them vocabularies have, pieces of texts, and the ids of tokens by their bytes.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <unordered_map>

#include "attn/core/shape.hpp"
#include "attn/text/utf8.hpp"

ATTN_NAMESPACE_BEGIN

/// By the numbers that GGUF files have for them.
enum class TokenKind : std::int32_t {
  normal = 1,
  unknown = 2,
  control = 3,       ///< a special token: parsed only where a text is told to hold such
  user_defined = 4,  ///< a word of its own wherever it stands
  unused = 5,        ///< no text becomes it
  byte = 6,          ///< one byte, spelled <0x0A>: for characters without a token, in SentencePiece
};

/// A piece of a text. What a user wrote must not become control tokens, whatever it looks like.
struct TextPiece {
  std::string text;
  bool parse_special = false;  ///< whether control tokens written out in it are these tokens
};

namespace detail {

struct TextHash {
  using is_transparent = void;  // a string_view is looked up without making a string of it
  std::size_t operator()(std::string_view text) const {
    return std::hash<std::string_view>{}(text);
  }
};

/// Ids by the bytes of tokens.
class TokenIds {
 public:
  void reserve(std::size_t count) { ids_.reserve(count); }
  /// False where another has these bytes.
  bool add(std::string_view bytes, std::int32_t id) {
    return ids_.emplace(std::string(bytes), id).second;
  }
  /// -1: none.
  std::int32_t operator()(std::string_view bytes) const {
    const auto found = ids_.find(bytes);
    return found == ids_.end() ? -1 : found->second;
  }

 private:
  std::unordered_map<std::string, std::int32_t, TextHash, std::equal_to<>> ids_;
};

inline void check_vocabulary(bool good, std::string_view argument, const std::string& expected,
                             const std::string& found) {
  if (!good) throw ValueError(message("Tokenizer", argument, expected, found));
}
[[noreturn]] inline void fail_repeated(std::string_view token) {
  throw ValueError(message("Tokenizer", "every token", "occur once",
                           "\"" + valid_utf8(token.substr(0, 100)) + "\" again"));
}

}  // namespace detail

ATTN_NAMESPACE_END
