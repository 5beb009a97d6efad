// WordPieceTokenizer: the tokenizer of uncased BERT models.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include <utf8proc.h>

#include "attn/core/error.hpp"
#include "attn/text/utf8.hpp"

ATTN_NAMESPACE_BEGIN

/// The special tokens of a vocabulary; BERT's by default; MPNet has `<s>` and `</s>` for cls and
/// sep.
struct WordPieceTokens {
  std::string pad = "[PAD]", unknown = "[UNK]", cls = "[CLS]", sep = "[SEP]", mask = "[MASK]";
};

/// Converts one text to ids in four steps, in the order of `tokenizers` (the order affects the
/// result: a compatibility ideograph must be separated before the decomposition, an accent stripped
/// before its capital letter is lowered):
///   1. a special token spelled out in the text, such as "[MASK]", is split off and becomes its id;
///   2. the rest is normalised: control characters are removed, white space becomes ' ', ideographs
///      get spaces around them, canonical decomposition (NFD) and removal of non-spacing marks
///      strip the accents, letters become lower case;
///   3. it is split into words at spaces, and every punctuation character is a word of its own;
///   4. a word becomes the longest pieces of the vocabulary, read from the left, or [UNK] as a
///      whole.
///
/// Unicode properties come from utf8proc. `tokenizers` uses the general categories of Unicode 8
/// (2015) and the lower case of Unicode 17, so about 600 characters added or changed since, nearly
/// all of historic or minority scripts, may be treated differently; over the whole of Unicode every
/// other character was found to agree.
///
/// const member functions are thread-safe.
class WordPieceTokenizer {
 public:
  /// From the text of a vocabulary: one piece per line, whose id is the line number from 0 on;
  /// `name` stands for it in errors. Throws ValueError if a token occurs twice, or one of the five
  /// special tokens is missing.
  explicit WordPieceTokenizer(std::string_view vocabulary, std::string_view name = "memory",
                              const WordPieceTokens& special = {})
      : specials_{special.pad, special.unknown, special.cls, special.sep, special.mask} {
    for (std::int32_t id = 0; !vocabulary.empty(); ++id) {
      std::string_view line = vocabulary.substr(0, vocabulary.find('\n'));
      vocabulary.remove_prefix((std::min)(line.size() + 1, vocabulary.size()));
      if (line.ends_with('\r')) line.remove_suffix(1);
      const auto [first, is_new] = vocab_.try_emplace(std::string(line), id);
      if (!is_new) {
        throw ValueError(message(
            "WordPieceTokenizer", name, "hold each token once",
            "the same with ids " + std::to_string(first->second) + " and " + std::to_string(id)));
      }
      pieces_.emplace_back(line);
    }
    for (std::size_t i = 0; i < kCount; ++i) {
      const auto found = vocab_.find(specials_[i]);
      if (found == vocab_.end() || specials_[i].empty()) {
        throw ValueError(
            message("WordPieceTokenizer", name, "hold the token " + specials_[i], "none"));
      }
      special_ids_[i] = found->second;
    }
  }

  std::size_t vocab_size() const { return vocab_.size(); }

  /// The piece of an id below vocab_size(), as the vocabulary spells it: "##ing" within a word.
  const std::string& piece(std::int32_t id) const {
    return pieces_.at(static_cast<std::size_t>(id));
  }

  /// The ids of `text` (UTF-8) between [CLS] and [SEP], at most max_tokens including these two: the
  /// pieces beyond are truncated. Bytes that are not valid UTF-8 are skipped: as if each were
  /// U+FFFD, which step 2 removes. Throws ValueError if max_tokens leaves no room for [CLS] and
  /// [SEP].
  std::vector<std::int32_t> encode(std::string_view text, std::size_t max_tokens = 256) const {
    if (max_tokens < 2) {
      throw ValueError(
          message("WordPieceTokenizer", "max_tokens", "be at least 2", std::to_string(max_tokens)));
    }
    const std::size_t limit = max_tokens - 1;  // the last position is for [SEP]
    std::vector<std::int32_t> ids = {special_ids_[kCls]};
    while (!text.empty() && ids.size() < limit) {
      const auto [position, special] = find_special(text);
      append_words(normalize(text.substr(0, position)), limit, ids);
      if (special == kNone) break;
      if (ids.size() < limit) ids.push_back(special_ids_[special]);
      text.remove_prefix(position + specials_[special].size());
    }
    ids.push_back(special_ids_[kSep]);
    return ids;
  }

 private:
  static constexpr std::size_t kUnk = 1, kCls = 2, kSep = 3, kCount = 5, kNone = kCount;
  static constexpr std::size_t kMaxCharsPerWord =
      100;  // a longer word is [UNK], which bounds the cost of step 4

  struct Hash {
    using is_transparent = void;  // so that a string_view can be looked up without a copy
    std::size_t operator()(std::string_view text) const {
      return std::hash<std::string_view>{}(text);
    }
  };

  // The first special token in `text`, of several there the longest: its position and its index in
  // specials_, or (npos, kNone).
  std::pair<std::size_t, std::size_t> find_special(std::string_view text) const {
    const std::string starts{specials_[0][0], specials_[1][0], specials_[2][0], specials_[3][0],
                             specials_[4][0]};
    std::size_t found = kNone;
    for (std::size_t at = text.find_first_of(starts); at != text.npos;
         at = text.find_first_of(starts, at + 1)) {
      for (std::size_t i = 0; i < kCount; ++i) {
        const bool is_longer = found == kNone || specials_[i].size() > specials_[found].size();
        if (is_longer && text.substr(at).starts_with(specials_[i])) found = i;
      }
      if (found != kNone) return {at, found};
    }
    return {text.npos, kNone};
  }

  // CJK ideographs as BERT defines them: kana and Hangul are written with spaces or in longer words
  // and are excluded, and so are later extensions.
  static bool is_ideograph(utf8proc_int32_t c) {
    return (c >= 0x4E00 && c <= 0x9FFF) || (c >= 0x3400 && c <= 0x4DBF) ||
           (c >= 0x20000 && c <= 0x2A6DF) || (c >= 0x2A700 && c <= 0x2B73F) ||
           (c >= 0x2B740 && c <= 0x2B81F) || (c >= 0x2B920 && c <= 0x2CEAF) ||
           (c >= 0xF900 && c <= 0xFAFF) || (c >= 0x2F800 && c <= 0x2FA1F);
  }

  // Unicode punctuation, and all of ASCII that is neither letter, digit nor space: '$' and '~' are
  // symbols in Unicode.
  static bool is_punctuation(utf8proc_int32_t c) {
    if (c < 0x80)
      return (c > 0x20 && c < '0') || (c > '9' && c < 'A') || (c > 'Z' && c < 'a') ||
             (c > 'z' && c < 0x7F);
    const utf8proc_category_t category = utf8proc_category(c);
    return category >= UTF8PROC_CATEGORY_PC && category <= UTF8PROC_CATEGORY_PO;
  }

  // The result of cleaning a character: itself, ' ' for white space, or 0 if it is removed. U+000B,
  // U+000C and U+0085 are white space elsewhere, but here their category, control character, takes
  // precedence.
  static utf8proc_int32_t clean(utf8proc_int32_t c) {
    if (c == '\t' || c == '\n' || c == '\r') return ' ';
    if (c == 0xFFFD) return 0;
    const utf8proc_category_t category = utf8proc_category(c);
    if (category == UTF8PROC_CATEGORY_CC || category == UTF8PROC_CATEGORY_CF ||
        category == UTF8PROC_CATEGORY_CO) {
      return 0;
    }
    return category >= UTF8PROC_CATEGORY_ZS && category <= UTF8PROC_CATEGORY_ZP ? ' ' : c;
  }

  // Appends the canonical decomposition of one character.
  static void append_decomposed(utf8proc_int32_t c, std::vector<utf8proc_int32_t>& points) {
    std::array<utf8proc_int32_t, 8> parts{};  // four at most
    const utf8proc_ssize_t count = utf8proc_decompose_char(
        c, parts.data(), static_cast<utf8proc_ssize_t>(parts.size()), UTF8PROC_DECOMPOSE, nullptr);
    if (count < 0)
      throw std::runtime_error(std::string("[WordPieceTokenizer] ") + utf8proc_errmsg(count));
    points.insert(points.end(), parts.begin(), parts.begin() + count);
  }

  static auto combining_class(utf8proc_int32_t c) {
    return utf8proc_get_property(c)->combining_class;
  }

  // Canonical order of combining marks. utf8proc_decompose() sorts by adjacent swaps, in time
  // quadratic in the number of marks on one letter.
  static void order_marks(std::vector<utf8proc_int32_t>& points) {
    const auto is_mark = [](auto c) { return combining_class(c) != 0; };
    for (auto begin = points.begin(); begin != points.end();) {
      begin = std::find_if(begin, points.end(), is_mark);
      const auto end = std::find_if_not(begin, points.end(), is_mark);
      std::stable_sort(begin, end,
                       [](auto a, auto b) { return combining_class(a) < combining_class(b); });
      begin = end;
    }
  }

  // Step 2. The result is a sequence of code points.
  static std::vector<utf8proc_int32_t> normalize(std::string_view text) {
    std::vector<utf8proc_int32_t> points;
    points.reserve(text.size());
    const auto* next = reinterpret_cast<const utf8proc_uint8_t*>(text.data());
    for (auto left = static_cast<utf8proc_ssize_t>(text.size()); left > 0;) {
      utf8proc_int32_t c = 0;
      const utf8proc_ssize_t count = utf8proc_iterate(next, left, &c);
      // After an invalid byte, continue with the next: the rest of a broken sequence cannot begin a
      // valid one.
      const utf8proc_ssize_t step = count > 0 ? count : 1;
      next += step;
      left -= step;
      if (count <= 0 || (c = clean(c)) == 0) continue;
      const bool apart = is_ideograph(c);
      if (apart) points.push_back(' ');
      append_decomposed(c, points);
      if (apart) points.push_back(' ');
    }
    order_marks(points);
    std::erase_if(points, [](auto c) { return utf8proc_category(c) == UTF8PROC_CATEGORY_MN; });
    // Character by character: a sigma is never final, and the dotted capital I has already lost its
    // dot.
    for (auto& c : points) c = utf8proc_tolower(c);
    return points;
  }

  // Steps 3 and 4; stops after `limit` ids.
  void append_words(const std::vector<utf8proc_int32_t>& points, std::size_t limit,
                    std::vector<std::int32_t>& ids) const {
    std::string word;
    std::size_t num_chars = 0;
    const auto end_word = [&] {
      if (num_chars > 0) append_pieces(word, num_chars, ids);
      word.clear();
      num_chars = 0;
    };
    for (const utf8proc_int32_t c : points) {
      if (ids.size() >= limit) break;
      const bool alone = is_punctuation(c);
      if (alone || c == ' ') end_word();
      if (c == ' ') continue;
      append_utf8(c, word);
      ++num_chars;
      if (alone) end_word();
    }
    end_word();
    if (ids.size() > limit) ids.resize(limit);
  }

  // Step 4 for one word of num_chars characters.
  void append_pieces(const std::string& word, std::size_t num_chars,
                     std::vector<std::int32_t>& ids) const {
    const std::size_t first = ids.size();
    bool known = num_chars <= kMaxCharsPerWord;
    for (std::size_t begin = 0; known && begin < word.size();) {
      const std::size_t prefix =
          begin > 0 ? 2 : 0;  // within a word a piece is spelled "##..." in the vocabulary
      const std::string rest = (begin > 0 ? "##" : "") + word.substr(begin);
      std::size_t size = rest.size();
      auto found = vocab_.end();
      while (size > prefix &&
             (found = vocab_.find(std::string_view(rest).substr(0, size))) == vocab_.end()) {
        --size;
        while (size > prefix && (static_cast<unsigned char>(rest[size]) & 0xC0U) == 0x80U)
          --size;  // whole characters
      }
      known = found != vocab_.end();
      if (known) ids.push_back(found->second);
      begin += size - prefix;
    }
    if (!known) {
      ids.resize(first);
      ids.push_back(special_ids_[kUnk]);
    }
  }

  std::unordered_map<std::string, std::int32_t, Hash, std::equal_to<>> vocab_;
  std::vector<std::string> pieces_;  // by id
  std::array<std::string, kCount> specials_;
  std::array<std::int32_t, kCount> special_ids_{};
};

ATTN_NAMESPACE_END
