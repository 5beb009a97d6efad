// Byte-level byte-pair encoding, as in GPT-2.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <map>
#include <optional>
#include <span>
#include <vector>

#include "attn/text/merges.hpp"
#include "attn/text/pre_tokenizer.hpp"

ATTN_NAMESPACE_BEGIN

/// The parts of a byte-level tokenizer; read by its constructor, and not kept.
struct BpeVocabulary {
  std::vector<std::string_view> tokens;      ///< by id, spelled in the letters that stand for bytes
  std::vector<TokenKind> kinds = {};         ///< by id; empty: all normal
  std::map<index_t, TokenEdges> edges = {};  ///< of special tokens, by id; none: all false
  std::vector<std::string_view> merges = {};  ///< "left right", highest priority first
  PreTokenizer pre_tokenizer = PreTokenizer::gpt2;
  bool ignore_merges = false;  ///< a whole word that is a token is not split, as in Llama 3
  bool nfc = false;            ///< normalise texts to Unicode form C first, except special tokens
  bool lowercase = false;      ///< then convert them to lower case
  /// The end of the spelling of tokens that end a word, such as "</w>" of CLIP, which decode()
  /// writes as a space; empty: tokens do not mark the ends of words.
  std::string_view end_of_word = {};
  std::optional<index_t> unknown = {};  ///< token for bytes that have none; not given: they are
                                        ///< left out
};

namespace detail {

/// The letter that stands for each byte in vocabularies: itself if printable, otherwise one from
/// U+0100 on.
inline std::array<std::int32_t, 256> byte_letters() {
  std::array<std::int32_t, 256> letters{};
  std::int32_t next = 0x100;
  for (std::int32_t b = 0; b < 256; ++b) {
    const bool prints = (b >= 0x21 && b <= 0x7E) || (b >= 0xA1 && b <= 0xAC) || b >= 0xAE;
    letters[static_cast<std::size_t>(b)] = prints ? b : next++;
  }
  return letters;
}

/// Appends the bytes of a token's spelling; returns false if it contains another letter.
inline bool append_bytes_of_letters(std::string_view spelling, std::string& to) {
  static const auto bytes = [] {
    std::array<int, 0x180> table{};
    table.fill(-1);
    const auto letters = byte_letters();
    for (std::size_t b = 0; b < 256; ++b) {
      table[static_cast<std::size_t>(letters[b])] = static_cast<int>(b);
    }
    return table;
  }();
  while (!spelling.empty()) {
    const Utf8Char c = first_char(spelling);
    const int byte = c.code >= 0 && c.code < 0x180 ? bytes[static_cast<std::size_t>(c.code)] : -1;
    if (byte < 0) return false;
    to += static_cast<char>(byte);
    spelling.remove_prefix(c.size);
  }
  return true;
}
/// Appends the bytes of a token's spelling, with a space for its `end_of_word`; returns false if it
/// contains another letter.
inline bool append_bytes_of_token(std::string_view spelling, std::string_view end_of_word,
                                  std::string& to) {
  const bool ends = !end_of_word.empty() && spelling.ends_with(end_of_word);
  if (ends) spelling.remove_suffix(end_of_word.size());
  if (!append_bytes_of_letters(spelling, to)) return false;
  if (ends) to += ' ';
  return true;
}

/// Converts texts without special tokens to ids: splits a text into words, and merges pairs of
/// bytes in each word.
class ByteLevelBpe {
 public:
  ByteLevelBpe() = default;

  /// `pieces` are the bytes of all tokens, `is_text` marks those that texts may become.
  ByteLevelBpe(const BpeVocabulary& vocabulary, std::span<const std::string> pieces,
               const std::vector<bool>& is_text)
      : merges_(vocabulary.merges.size()),
        pre_tokenizer_(vocabulary.pre_tokenizer),
        ignore_merges_(vocabulary.ignore_merges),
        nfc_(vocabulary.nfc),
        lowercase_(vocabulary.lowercase),
        marks_ends_(!vocabulary.end_of_word.empty()) {
    ids_.reserve(pieces.size());
    for (std::size_t i = 0; i < pieces.size(); ++i) {
      if (is_text[i] && !ids_.add(pieces[i], static_cast<std::int32_t>(i)))
        fail_repeated(vocabulary.tokens[i]);
    }
    for (std::size_t b = 0; b < 256; ++b) {
      const auto id_of = [&](std::string_view bytes) {
        const std::int32_t id = ids_(bytes);
        return id >= 0 ? id : static_cast<std::int32_t>(vocabulary.unknown.value_or(-1));
      };
      const char byte[] = {static_cast<char>(b), ' '};
      byte_ids_[b] = id_of({byte, 1});
      last_byte_ids_[b] = marks_ends_ ? id_of({byte, 2}) : byte_ids_[b];
    }
    std::string bytes;
    for (std::size_t rank = 0; rank < vocabulary.merges.size(); ++rank) {
      add_merge(merges_, vocabulary.merges[rank], rank,
                [&](std::string_view left, std::string_view right) -> MergedIds {
                  bytes.clear();
                  if (!append_bytes_of_letters(left, bytes)) return {};
                  const std::size_t size = bytes.size();
                  if (!append_bytes_of_token(right, vocabulary.end_of_word, bytes)) return {};
                  const std::string_view both = bytes;
                  return {ids_(both.substr(0, size)), ids_(both.substr(size)), ids_(both)};
                });
    }
  }

  /// -1: none.
  std::int32_t id(std::string_view bytes) const { return ids_(bytes); }

  void encode(std::string_view text, std::vector<index_t>& ids) const {
    std::string normal;
    if (nfc_) text = normal = attn::nfc(text);
    if (lowercase_) text = normal = attn::lowercase(text);
    MergedWord merged;
    for_each_word(pre_tokenizer_, text, [&](std::string_view word) {
      if (ignore_merges_) {
        if (const std::int32_t id = ids_(word); id >= 0) {
          ids.push_back(id);
          return;
        }
      }
      merged.clear();
      for (std::size_t at = 0; at < word.size(); ++at) {
        const auto& byte_ids = at + 1 < word.size() ? byte_ids_ : last_byte_ids_;
        const std::int32_t id = byte_ids[static_cast<unsigned char>(word[at])];
        if (id >= 0) merged.add(id, at, 1);
      }
      merged.merge([&](const MergedWord::Symbol& left, const MergedWord::Symbol& right) {
        return merges_(left.id, right.id);
      });
      merged.for_each([&](const MergedWord::Symbol& symbol) { ids.push_back(symbol.id); });
    });
  }

 private:
  TokenIds ids_;
  std::array<std::int32_t, 256> byte_ids_{}, last_byte_ids_{};  ///< within a word, and at its end
  MergeTable merges_;
  PreTokenizer pre_tokenizer_ = PreTokenizer::gpt2;
  bool ignore_merges_ = false, nfc_ = false, lowercase_ = false, marks_ends_ = false;
};

}  // namespace detail

ATTN_NAMESPACE_END
