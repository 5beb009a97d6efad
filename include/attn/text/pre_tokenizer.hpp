// Pre-tokenizers of byte-level BPE: split text into words.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <optional>
#include <string_view>
#include <utility>

#include "attn/text/utf8.hpp"

ATTN_NAMESPACE_BEGIN

/// Named as in GGUF files (tokenizer.ggml.pre), except clip, which no GGUF file has.
enum class PreTokenizer {
  gpt2,       ///< contractions, letters, digits, other signs; the last three with a preceding space
  smollm,     ///< gpt2 with each digit a separate word
  llama_bpe,  ///< letters with a preceding sign, digits in threes, line ends after signs
  qwen2,      ///< llama_bpe with each digit a separate word
  clip,       ///< contractions, letters, digits one by one, other signs; white space is left out
};

/// The pre-tokenizer of a name such as "llama-bpe", if it is known.
inline std::optional<PreTokenizer> pre_tokenizer(std::string_view name) {
  constexpr std::pair<std::string_view, PreTokenizer> kNames[] = {
      {"gpt2", PreTokenizer::gpt2},           {"gpt-2", PreTokenizer::gpt2},
      {"olmo", PreTokenizer::gpt2},           {"smollm", PreTokenizer::smollm},
      {"refact", PreTokenizer::smollm},       {"llama-bpe", PreTokenizer::llama_bpe},
      {"llama3", PreTokenizer::llama_bpe},    {"llama-v3", PreTokenizer::llama_bpe},
      {"smaug-bpe", PreTokenizer::llama_bpe}, {"dbrx", PreTokenizer::llama_bpe},
      {"lfm2", PreTokenizer::llama_bpe},      {"qwen2", PreTokenizer::qwen2}};
  const auto* found =
      std::ranges::find(kNames, name, &std::pair<std::string_view, PreTokenizer>::first);
  return found == std::ranges::end(kNames) ? std::nullopt : std::optional(found->second);
}

namespace detail {

/// The classes of characters that the patterns distinguish.
enum class CharKind : std::uint8_t { letter, number, newline, space, other, none };

inline CharKind unicode_kind(std::int32_t code) {
  // Subclasses of one general category (L, N) have consecutive numbers.
  const utf8proc_category_t category = utf8proc_category(code);
  const auto lies = [category](utf8proc_category_t first, utf8proc_category_t last) {
    return category >= first && category <= last;
  };
  if (lies(UTF8PROC_CATEGORY_LU, UTF8PROC_CATEGORY_LO)) return CharKind::letter;
  if (lies(UTF8PROC_CATEGORY_ND, UTF8PROC_CATEGORY_NO)) return CharKind::number;
  return is_white_space(code) ? CharKind::space : CharKind::other;
}

/// Number of bytes of white space at the start of a text.
inline std::size_t space_begins(std::string_view text) {
  std::size_t at = 0;
  while (at < text.size()) {
    const Utf8Char c = first_char(text.substr(at));
    if (!is_white_space(c.code)) break;
    at += c.size;
  }
  return at;
}
/// Number of bytes before the first white space.
inline std::size_t word_ends(std::string_view text) {
  std::size_t at = 0;
  while (at < text.size()) {
    const Utf8Char c = first_char(text.substr(at));
    if (is_white_space(c.code)) break;
    at += c.size;
  }
  return at;
}
/// Start of the white space at a text's end.
inline std::size_t space_ends(std::string_view text) {
  while (!text.empty() && is_white_space(last_char(text).code)) {
    text.remove_suffix(last_char(text).size);
  }
  return text.size();
}

/// Word characters in the sense of \w in regular expressions.
inline bool is_word_char(std::int32_t code) {
  if (code < 0) return false;
  const utf8proc_category_t category = utf8proc_category(code);
  const auto lies = [code](std::int32_t first, std::int32_t last) {
    return code >= first && code <= last;
  };
  // Joiners, and letters in circles and squares.
  return (category >= UTF8PROC_CATEGORY_LU && category <= UTF8PROC_CATEGORY_ND) ||
         category == UTF8PROC_CATEGORY_NL || category == UTF8PROC_CATEGORY_PC ||
         lies(0x200C, 0x200D) || lies(0x24B6, 0x24E9) || lies(0x1F130, 0x1F149) ||
         lies(0x1F150, 0x1F169) || lies(0x1F170, 0x1F189);
}

/// The characters of a text from `at` on, each with its class. A byte that is not a character is
/// `other`.
class WordScanner {
 public:
  struct Char {
    CharKind kind;
    std::int32_t code;
    std::size_t end;  ///< where the next one begins
  };

  explicit WordScanner(std::string_view text) : text_(text) {}

  /// `none` after the end.
  Char at(std::size_t place) const {
    if (place >= text_.size()) return {CharKind::none, -1, place};
    const Utf8Char c = first_char(text_.substr(place));
    CharKind kind = CharKind::other;
    if (c.code >= 0x80) {
      kind = unicode_kind(c.code);
    } else if (c.code >= 0) {
      const auto byte = static_cast<unsigned char>(c.code);
      if ((byte | 0x20) >= 'a' && (byte | 0x20) <= 'z') {
        kind = CharKind::letter;
      } else if (byte >= '0' && byte <= '9') {
        kind = CharKind::number;
      } else if (byte == '\n' || byte == '\r') {
        kind = CharKind::newline;
      } else if (byte == ' ' || byte == '\t' || byte == 0x0B || byte == 0x0C) {
        kind = CharKind::space;
      }
    }
    return {kind, c.code, place + c.size};
  }

  /// The end of the characters of this class from `place` on, at most `most` of them.
  std::size_t run(std::size_t place, CharKind kind,
                  std::size_t most = std::string_view::npos) const {
    for (Char c = at(place); c.kind == kind && most > 0; c = at(place), --most) place = c.end;
    return place;
  }

  /// The end of the white space from `place` on, including line ends.
  std::size_t run_of_space(std::size_t place) const {
    for (Char c = at(place); c.kind == CharKind::space || c.kind == CharKind::newline;
         c = at(place)) {
      place = c.end;
    }
    return place;
  }

  /// The end of 's, 't, 're, 've, 'm, 'll or 'd at `place`, or `place`. If upper case counts, so
  /// does the long s (U+017F), whose upper case is S.
  std::size_t contraction(std::size_t place, bool any_case) const {
    if (place >= text_.size() || text_[place] != '\'') return place;
    const auto letter = [&](std::size_t from) {
      const Char c = at(from);
      std::int32_t code = c.code;
      if (any_case && code == 0x17F) code = 's';
      if (any_case && code >= 'A' && code <= 'Z') code += 'a' - 'A';
      return Char{c.kind, code, c.end};
    };
    const Char first = letter(place + 1);
    switch (first.code) {
      case 's':
      case 't':
      case 'm':
      case 'd':
        return first.end;
      case 'r':
      case 'v':
      case 'l': {
        const Char second = letter(first.end);
        return second.code == (first.code == 'l' ? 'l' : 'e') ? second.end : place;
      }
      default:
        return place;
    }
  }

  std::string_view text() const { return text_; }

 private:
  std::string_view text_;
};

/// White space from `begin` to `end` before `next`: its last character belongs to the following
/// word, if there is one.
inline std::size_t space_before_word(const WordScanner& scan, std::size_t begin, std::size_t end) {
  if (end == scan.text().size()) return end;
  std::size_t last = end - 1;
  while (last > begin && (static_cast<unsigned char>(scan.text()[last]) & 0xC0) == 0x80) --last;
  return last > begin ? last : end;
}

/// The end of the word at `place` by
/// `'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+`.
inline std::size_t gpt2_word(const WordScanner& scan, std::size_t place) {
  if (const std::size_t end = scan.contraction(place, false); end != place) return end;
  WordScanner::Char first = scan.at(place);
  if (first.code == ' ') {
    const WordScanner::Char next = scan.at(first.end);
    const CharKind kind = next.kind;
    if (kind == CharKind::letter || kind == CharKind::number || kind == CharKind::other)
      first = next;
  }
  if (first.kind == CharKind::letter || first.kind == CharKind::number ||
      first.kind == CharKind::other) {
    return scan.run(first.end, first.kind);
  }
  return space_before_word(scan, place, scan.run_of_space(place));
}

/// The end of the word at `place` by
/// `(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|
/// ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`, where numbers have up to `digits` digits.
inline std::size_t llama3_word(const WordScanner& scan, std::size_t place, std::size_t digits) {
  if (const std::size_t end = scan.contraction(place, true); end != place) return end;
  const WordScanner::Char first = scan.at(place), second = scan.at(first.end);
  if (first.kind == CharKind::letter) return scan.run(first.end, CharKind::letter);
  if (first.kind == CharKind::number) return scan.run(place, CharKind::number, digits);
  if (first.kind != CharKind::newline && second.kind == CharKind::letter) {
    return scan.run(second.end, CharKind::letter);
  }
  if (first.kind == CharKind::other || (first.code == ' ' && second.kind == CharKind::other)) {
    const std::size_t signs = first.kind == CharKind::other ? place : first.end;
    return scan.run(scan.run(signs, CharKind::other), CharKind::newline);
  }
  const std::size_t end = scan.run_of_space(place);
  // Up to the last line end in this white space.
  for (std::size_t last = end; last > place; --last) {
    if (scan.text()[last - 1] == '\n' || scan.text()[last - 1] == '\r') return last;
  }
  return space_before_word(scan, place, end);
}

/// The end of the word at `place`, which is not white space, by
/// `'s|'t|'re|'ve|'m|'ll|'d|\p{L}+|\p{N}|[^\s\p{L}\p{N}]+`.
inline std::size_t clip_word(const WordScanner& scan, std::size_t place) {
  if (const std::size_t end = scan.contraction(place, false); end != place) return end;
  const WordScanner::Char first = scan.at(place);
  return first.kind == CharKind::number ? first.end : scan.run(place, first.kind);
}

}  // namespace detail

/// Calls f(word) for every word of `text`; the words together are the text, except for clip. Bytes
/// that are not UTF-8 count as symbols. Categories are those of utf8proc's Unicode version. Source
/// of the patterns: `tokenizers` files of GPT-2, SmolLM2, Llama 3, Qwen2 (whose normalisation is
/// BpeVocabulary::nfc) and CLIP.
template <class F>
void for_each_word(PreTokenizer kind, std::string_view text, F&& f) {
  using detail::CharKind;
  if (kind == PreTokenizer::smollm) {
    // Digits are split off first: white space before one is not divided.
    const detail::WordScanner digits(text);
    for (std::size_t begin = 0; begin < text.size();) {
      std::size_t end = begin;
      for (auto c = digits.at(end); c.kind != CharKind::number && c.kind != CharKind::none;
           c = digits.at(end)) {
        end = c.end;
      }
      for_each_word(PreTokenizer::gpt2, text.substr(begin, end - begin), f);
      begin = end;
      if (begin < text.size()) {
        end = digits.at(begin).end;
        f(text.substr(begin, end - begin));
        begin = end;
      }
    }
    return;
  }
  const detail::WordScanner scan(text);
  for (std::size_t begin = 0; begin < text.size();) {
    if (kind == PreTokenizer::clip) {
      begin = scan.run_of_space(begin);
      if (begin == text.size()) return;
    }
    const std::size_t end = kind == PreTokenizer::gpt2    ? detail::gpt2_word(scan, begin)
                            : kind == PreTokenizer::clip  ? detail::clip_word(scan, begin)
                            : kind == PreTokenizer::qwen2 ? detail::llama3_word(scan, begin, 1)
                                                          : detail::llama3_word(scan, begin, 3);
    f(text.substr(begin, end - begin));
    begin = end;
  }
}

ATTN_NAMESPACE_END
