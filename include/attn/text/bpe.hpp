// BpeTokenizer: byte-level byte-pair encoding, as GPT-2 and most models since then have it.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "attn/core/shape.hpp"
#include "attn/text/pre_tokenizer.hpp"

ATTN_NAMESPACE_BEGIN

/// By the numbers that GGUF files have for them.
enum class TokenKind : std::int32_t {
  normal = 1,
  unknown = 2,
  control = 3,       ///< a special token: parsed only where a text is told to hold such
  user_defined = 4,  ///< a word of its own wherever it stands
  unused = 5,        ///< no text becomes it
  byte = 6,
};

/// What a tokenizer is made of; read by its constructor, and not kept.
struct BpeVocabulary {
  std::vector<std::string_view> tokens;  ///< by id, spelled in the letters that stand for bytes
  std::vector<TokenKind> kinds = {};     ///< by id; empty: all normal
  std::vector<std::string_view> merges = {};  ///< "left right", the most urgent first
  PreTokenizer pre_tokenizer = PreTokenizer::gpt2;
  bool ignore_merges = false;  ///< a word that is a token is that token, as in Llama 3
  bool nfc = false;  ///< texts become Unicode's form C first, special tokens in them apart
  std::optional<index_t> unknown = {};  ///< of bytes that have no token; none: they are left out
};

/// A piece of a text. What a user wrote must not become control tokens, whatever it looks like.
struct TextPiece {
  std::string text;
  bool parse_special = false;  ///< whether control tokens written out in it are these tokens
};

namespace detail {

/// The letter that stands for each byte in vocabularies: itself if it prints, else one from U+0100
/// on.
inline std::array<std::int32_t, 256> byte_letters() {
  std::array<std::int32_t, 256> letters{};
  std::int32_t next = 0x100;
  for (std::int32_t b = 0; b < 256; ++b) {
    const bool prints = (b >= 0x21 && b <= 0x7E) || (b >= 0xA1 && b <= 0xAC) || b >= 0xAE;
    letters[static_cast<std::size_t>(b)] = prints ? b : next++;
  }
  return letters;
}

/// The bytes of a token's spelling, or nothing where it holds another letter.
inline std::optional<std::string> bytes_of_letters(std::string_view spelling) {
  static const auto bytes = [] {
    std::array<int, 0x180> table{};
    table.fill(-1);
    const auto letters = byte_letters();
    for (std::size_t b = 0; b < 256; ++b) {
      table[static_cast<std::size_t>(letters[b])] = static_cast<int>(b);
    }
    return table;
  }();
  std::string result;
  while (!spelling.empty()) {
    const Utf8Char c = first_char(spelling);
    const int byte = c.code >= 0 && c.code < 0x180 ? bytes[static_cast<std::size_t>(c.code)] : -1;
    if (byte < 0) return std::nullopt;
    result += static_cast<char>(byte);
    spelling.remove_prefix(c.size);
  }
  return result;
}

/// What two neighbouring tokens merge into, and how urgently: an open-addressing table, in which a
/// lookup mostly touches one line.
class MergeTable {
 public:
  struct Merge {
    std::int32_t rank = -1;  ///< -1: these two do not merge
    std::int32_t token = -1;
  };

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

}  // namespace detail

/// Turns a text into ids in three steps: special tokens are cut out, the longest first; the rest is
/// cut into words; in each word's bytes the most urgent pair merges, the leftmost of equals, as
/// long as one can. Ids are those of Hugging Face's `tokenizers`. Bytes that have no token in the
/// vocabulary are left out, as there. Any other text, UTF-8 or not, is what decode() makes of its
/// ids, or that in form C.
///
/// const member functions are safe to call from many threads at once. Source: Sennrich et al.,
/// "Neural Machine Translation of Rare Words with Subword Units" (2016); bytes: Radford et al.
/// (2019), section 2.2.
class BpeTokenizer {
 public:
  BpeTokenizer() = default;

  /// Throws ValueError where kinds and tokens differ in number, a token occurs twice, a merge names
  /// what is no token, or `unknown` is none.
  explicit BpeTokenizer(const BpeVocabulary& vocabulary)
      : merges_(vocabulary.merges.size()),
        pre_tokenizer_(vocabulary.pre_tokenizer),
        ignore_merges_(vocabulary.ignore_merges),
        nfc_(vocabulary.nfc) {
    const auto count = vocabulary.tokens.size();
    check(vocabulary.kinds.empty() || vocabulary.kinds.size() == count, "kinds",
          "number as many as tokens, " + std::to_string(count),
          std::to_string(vocabulary.kinds.size()));
    check(count < std::size_t{1} << 31, "tokens", "number less than 2^31", std::to_string(count));
    pieces_.reserve(count);
    ids_.reserve(count);
    for (std::size_t i = 0; i < count; ++i) {
      const std::string_view token = vocabulary.tokens[i];
      const TokenKind kind = vocabulary.kinds.empty() ? TokenKind::normal : vocabulary.kinds[i];
      const bool is_text = kind == TokenKind::control || kind == TokenKind::user_defined;
      auto bytes = is_text ? std::nullopt : detail::bytes_of_letters(token);
      pieces_.push_back(bytes ? *std::move(bytes) : std::string(token));
      const auto id = static_cast<std::int32_t>(i);
      is_control_.push_back(kind == TokenKind::control);
      if (is_text) {
        if (!token.empty()) specials_[static_cast<unsigned char>(token.front())].push_back(id);
        if (!special_ids_.emplace(std::string(token), id).second) fail_repeated(token);
      } else if (kind != TokenKind::unused && !ids_.emplace(pieces_.back(), id).second) {
        fail_repeated(token);
      }
    }
    for (auto& list : specials_) {
      std::stable_sort(list.begin(), list.end(), [&](std::int32_t a, std::int32_t b) {
        return piece(a).size() > piece(b).size();
      });
    }
    const index_t unknown = vocabulary.unknown.value_or(-1);
    check(!vocabulary.unknown || (unknown >= 0 && unknown < vocab_size()), "unknown",
          "lie in 0 .. " + std::to_string(vocab_size() - 1), std::to_string(unknown));
    for (std::size_t b = 0; b < 256; ++b) {
      const std::int32_t id = normal_id(std::string(1, static_cast<char>(b)));
      byte_ids_[b] = id >= 0 ? id : static_cast<std::int32_t>(unknown);
    }
    for (std::size_t rank = 0; rank < vocabulary.merges.size(); ++rank)
      add_merge(vocabulary.merges[rank], rank);
  }

  index_t vocab_size() const { return std::ssize(pieces_); }

  /// The bytes of a token, which need not be whole characters. Throws ValueError for an id that is
  /// none.
  const std::string& piece(index_t id) const {
    if (id < 0 || id >= vocab_size()) {
      throw ValueError(message("BpeTokenizer::piece", "id",
                               "lie in 0 .. " + std::to_string(vocab_size() - 1),
                               std::to_string(id)));
    }
    return pieces_[static_cast<std::size_t>(id)];
  }

  /// Whether it is a control token, which is no text.
  bool is_control(index_t id) const {
    static_cast<void>(piece(id));
    return is_control_[static_cast<std::size_t>(id)];
  }

  /// The token of these bytes, or the control or user-defined token of this spelling.
  std::optional<index_t> token(std::string_view text) const {
    if (const auto found = special_ids_.find(text); found != special_ids_.end())
      return found->second;
    const std::int32_t id = normal_id(text);
    return id < 0 ? std::nullopt : std::optional<index_t>(id);
  }

  std::vector<index_t> encode(std::string_view text, bool parse_special = false) const {
    std::vector<index_t> ids;
    std::string plain;
    encode_piece(text, parse_special, plain, ids);
    encode_plain(plain, ids);
    return ids;
  }

  /// The ids of the pieces' whole text, in which a control token never stretches over two pieces.
  std::vector<index_t> encode(std::span<const TextPiece> pieces) const {
    std::vector<index_t> ids;
    std::string plain;
    for (const TextPiece& piece : pieces) encode_piece(piece.text, piece.parse_special, plain, ids);
    encode_plain(plain, ids);
    return ids;
  }

  /// The bytes of all tokens, control tokens spelled out or left out. Throws ValueError for an id
  /// that is none.
  std::string decode(std::span<const index_t> ids, bool with_control = true) const {
    std::string text;
    for (const index_t id : ids) {
      if (with_control || !is_control(id)) text += piece(id);
    }
    return text;
  }

 private:
  struct Hash {
    using is_transparent = void;  // a string_view is looked up without making a string of it
    std::size_t operator()(std::string_view text) const {
      return std::hash<std::string_view>{}(text);
    }
  };
  using Ids = std::unordered_map<std::string, std::int32_t, Hash, std::equal_to<>>;

  /// A token within a word, and the next one.
  struct Symbol {
    std::int32_t id;
    std::int32_t before, next;  ///< -1: none
  };
  /// A pair that may merge, unless it has changed since then.
  struct Candidate {
    std::int32_t rank, left, token;

    /// For a heap whose top is the most urgent, the leftmost of equals.
    friend bool operator<(const Candidate& a, const Candidate& b) {
      return a.rank != b.rank ? a.rank > b.rank : a.left > b.left;
    }
  };

  static void check(bool good, std::string_view argument, const std::string& expected,
                    const std::string& found) {
    if (!good) throw ValueError(message("BpeTokenizer", argument, expected, found));
  }
  [[noreturn]] static void fail_repeated(std::string_view token) {
    throw ValueError(message("BpeTokenizer", "every token", "occur once",
                             "\"" + valid_utf8(token.substr(0, 100)) + "\" again"));
  }

  std::int32_t normal_id(std::string_view bytes) const {
    const auto found = ids_.find(bytes);
    return found == ids_.end() ? -1 : found->second;
  }

  void add_merge(std::string_view merge, std::size_t rank) {
    const std::size_t space = merge.find(' ', 1);
    std::int32_t left = -1, right = -1, both = -1;
    if (space != merge.npos) {
      const auto l = detail::bytes_of_letters(merge.substr(0, space));
      const auto r = detail::bytes_of_letters(merge.substr(space + 1));
      if (l && r) {
        left = normal_id(*l);
        right = normal_id(*r);
        both = normal_id(*l + *r);
      }
    }
    check(left >= 0 && right >= 0 && both >= 0, "merge " + std::to_string(rank),
          "be two tokens that together are one", "\"" + valid_utf8(merge.substr(0, 100)) + "\"");
    merges_.add(left, right, {static_cast<std::int32_t>(rank), both});
  }

  /// Appends special tokens, and what stands before them in `plain` too, to ids; the rest of the
  /// text to `plain`.
  void encode_piece(std::string_view text, bool parse_control, std::string& plain,
                    std::vector<index_t>& ids) const {
    std::size_t begin = 0;
    for (std::size_t at = 0; at < text.size();) {
      const std::int32_t id = special_at(text.substr(at), parse_control);
      if (id < 0) {
        ++at;
        continue;
      }
      plain.append(text.substr(begin, at - begin));
      encode_plain(plain, ids);
      plain.clear();
      ids.push_back(id);
      at += piece(id).size();
      begin = at;
    }
    plain.append(text.substr(begin));
  }

  std::int32_t special_at(std::string_view text, bool parse_control) const {
    for (const std::int32_t id : specials_[static_cast<unsigned char>(text.front())]) {
      if (!parse_control && is_control_[static_cast<std::size_t>(id)]) continue;
      if (text.starts_with(pieces_[static_cast<std::size_t>(id)])) return id;
    }
    return -1;
  }

  void encode_plain(std::string_view text, std::vector<index_t>& ids) const {
    std::string normal;
    if (nfc_) text = normal = attn::nfc(text);
    std::vector<Symbol> symbols;
    std::vector<Candidate> heap;
    for_each_word(pre_tokenizer_, text, [&](std::string_view word) {
      if (ignore_merges_) {
        if (const std::int32_t id = normal_id(word); id >= 0) {
          ids.push_back(id);
          return;
        }
      }
      encode_word(word, symbols, heap, ids);
    });
  }

  void encode_word(std::string_view word, std::vector<Symbol>& symbols,
                   std::vector<Candidate>& heap, std::vector<index_t>& ids) const {
    symbols.clear();
    heap.clear();
    for (const char byte : word) {
      const std::int32_t id = byte_ids_[static_cast<unsigned char>(byte)];
      if (id < 0) continue;
      const auto at = static_cast<std::int32_t>(symbols.size());
      if (at > 0) symbols.back().next = at;
      symbols.push_back({id, at - 1, -1});
    }
    const auto symbol = [&](std::int32_t at) -> Symbol& {
      return symbols[static_cast<std::size_t>(at)];
    };
    const auto propose = [&](std::int32_t left) {
      if (left < 0 || symbol(left).next < 0) return;
      const auto merge = merges_(symbol(left).id, symbol(symbol(left).next).id);
      if (merge.rank < 0) return;
      heap.push_back({merge.rank, left, merge.token});
      std::push_heap(heap.begin(), heap.end());
    };
    for (std::int32_t at = 0; at + 1 < static_cast<std::int32_t>(symbols.size()); ++at) propose(at);
    while (!heap.empty()) {
      const Candidate best = heap.front();
      std::pop_heap(heap.begin(), heap.end());
      heap.pop_back();
      Symbol& left = symbol(best.left);
      // Merged away, or with another neighbour than it had.
      if (left.id < 0 || left.next < 0 ||
          merges_(left.id, symbol(left.next).id).rank != best.rank) {
        continue;
      }
      Symbol& right = symbol(left.next);
      left.id = best.token;
      right.id = -1;
      left.next = right.next;
      if (left.next >= 0) symbol(left.next).before = best.left;
      propose(left.before);
      propose(best.left);
    }
    for (std::int32_t at = symbols.empty() ? -1 : 0; at >= 0; at = symbol(at).next) {
      ids.push_back(symbol(at).id);
    }
  }

  std::vector<std::string> pieces_;  ///< by id: bytes
  std::vector<bool> is_control_;
  Ids ids_;                                              ///< of bytes
  Ids special_ids_;                                      ///< control and user-defined, of text
  std::array<std::vector<std::int32_t>, 256> specials_;  ///< by first byte, the longest first
  std::array<std::int32_t, 256> byte_ids_{};
  detail::MergeTable merges_;
  PreTokenizer pre_tokenizer_ = PreTokenizer::gpt2;
  bool ignore_merges_ = false, nfc_ = false;
};

ATTN_NAMESPACE_END
