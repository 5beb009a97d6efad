// Token kinds, pieces of text, and token lookup by bytes.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <bit>
#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "attn/core/shape.hpp"
#include "attn/text/utf8.hpp"

ATTN_NAMESPACE_BEGIN

/// Numbered as in GGUF files.
enum class TokenKind : std::int32_t {
  normal = 1,
  unknown = 2,
  control = 3,       ///< a special token: parsed only in a TextPiece with parse_special
  user_defined = 4,  ///< split off wherever it occurs in a text
  unused = 5,        ///< never produced from a text
  byte = 6,          ///< one byte, spelled <0x0A>: for characters without a token, in SentencePiece
};

/// How a special token treats the text around it, as in the added tokens of tokenizer.json.
struct TokenEdges {
  bool single_word = false;  ///< matches only without a letter, digit or underscore beside it
  bool lstrip = false;       ///< removes white space before it
  bool rstrip = false;       ///< removes white space after it
  bool is_late = false;      ///< searched in the text between other special tokens
};

/// A piece of a text. Text from a user must not become control tokens, whatever it looks like.
struct TextPiece {
  std::string text;
  bool parse_special = false;  ///< whether control tokens spelled out in it are parsed
};

namespace detail {

inline void check_vocabulary(bool good, std::string_view argument, const std::string& expected,
                             const std::string& found) {
  if (!good) throw ValueError(message("Tokenizer", argument, expected, found));
}
/// Ids by the bytes of tokens: an open-addressing table beside the bytes of all tokens. A
/// vocabulary of 49,152 tokens is read at every start, and a table with one node per token takes
/// much longer to build.
class TokenIds {
 public:
  void reserve(std::size_t count) {
    if (const std::size_t slots = std::bit_ceil(2 * count + 1); slots > slots_.size())
      rehash(slots);
  }
  /// Returns false if another token has these bytes.
  bool add(std::string_view bytes, std::int32_t id) {
    check_vocabulary(bytes.size() < (std::numeric_limits<std::uint32_t>::max)() - bytes_.size(),
                     "tokens", "have less than 2^32 bytes together", "more");
    reserve(count_ + 1);
    Slot& slot = slots_[find(bytes, hash(bytes))];
    if (slot.id >= 0) return false;
    slot = {.begin = static_cast<std::uint32_t>(bytes_.size()),
            .size = static_cast<std::uint32_t>(bytes.size()),
            .hash = hash(bytes),
            .id = id};
    bytes_.append(bytes);
    ++count_;
    return true;
  }
  /// -1: none.
  std::int32_t operator()(std::string_view bytes) const {
    return slots_[find(bytes, hash(bytes))].id;
  }

 private:
  struct Slot {
    std::uint32_t begin = 0, size = 0, hash = 0;
    std::int32_t id = -1;
  };

  static std::uint32_t hash(std::string_view bytes) {
    return static_cast<std::uint32_t>(std::hash<std::string_view>{}(bytes));
  }
  /// The slot of these bytes, or the empty slot for them.
  std::size_t find(std::string_view bytes, std::uint32_t hash) const {
    const std::size_t mask = slots_.size() - 1;
    const auto is_at = [&](const Slot& slot) {
      return slot.hash == hash && std::string_view(bytes_).substr(slot.begin, slot.size) == bytes;
    };
    std::size_t at = hash & mask;
    while (slots_[at].id >= 0 && !is_at(slots_[at])) at = (at + 1) & mask;
    return at;
  }
  void rehash(std::size_t count) {
    std::vector<Slot> old(count);
    std::swap(old, slots_);
    for (const Slot& slot : old) {
      if (slot.id < 0) continue;
      slots_[find(std::string_view(bytes_).substr(slot.begin, slot.size), slot.hash)] = slot;
    }
  }

  std::vector<Slot> slots_ = std::vector<Slot>(1);
  std::string bytes_;
  std::size_t count_ = 0;
};

[[noreturn]] inline void fail_repeated(std::string_view token) {
  throw ValueError(message("Tokenizer", "every token", "occur once",
                           "\"" + valid_utf8(token.substr(0, 100)) + "\" again"));
}

}  // namespace detail

ATTN_NAMESPACE_END
