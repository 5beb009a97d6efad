// SentencePiece: BPE by scores or merges, and Unigram.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>
#include <optional>
#include <span>
#include <vector>

#include "attn/text/charsmap.hpp"
#include "attn/text/merges.hpp"
#include "attn/text/pre_tokenizer.hpp"

ATTN_NAMESPACE_BEGIN

/// How a text, or the part between its special tokens, is split into tokens.
enum class SentencePieceKind {
  bpe,      ///< merges the pair whose token has the highest score
  unigram,  ///< the tokens whose scores, logarithms of probabilities, have the largest sum
};

/// Where a space is written before a text.
enum class SpacePrefix {
  none,
  every,       ///< before every part between special tokens
  every_word,  ///< before every part that does not begin with a space
  first_word,  ///< before the first part, unless it begins with one
};

/// Spaces that decode() removes at the beginning of a text.
enum class SpaceStrip { none, one, first_token /**< all that its first token has */ };

/// How a text, or the part between its special tokens, is normalised before it is split: in this
/// order.
struct SentencePieceNormal {
  bool lowercase = false;                          ///< write the text in lower case
  std::string removed = {};                        ///< ASCII characters to leave out
  bool joins_white_space = false;                  ///< each run of white space becomes a space
  std::optional<Charsmap> charsmap = {};           ///< none: characters stay
  bool strips_left = false, strips_right = false;  ///< white space at its beginning and end
  /// The replacement of two or more spaces in a row; none: they stay.
  std::optional<std::string> several_spaces = {};
};

/// The parts of a SentencePiece tokenizer; read by its constructor, and not kept.
struct SentencePieceVocabulary {
  std::vector<std::string_view> tokens;      ///< by id, with U+2581 for spaces and <0x0A> for bytes
  std::vector<TokenKind> kinds = {};         ///< by id; empty: all normal
  std::map<index_t, TokenEdges> edges = {};  ///< of special tokens, by id; none: all false
  std::vector<double> scores = {};           ///< by id; for BPE instead of merges
  std::vector<std::string_view> merges = {};  ///< "left right", highest priority first
  SentencePieceKind kind = SentencePieceKind::bpe;
  SpacePrefix prefix = SpacePrefix::every;
  bool cuts_words = false;     ///< no token stretches over a space within the text
  bool drops_space = false;    ///< texts are the parts between white space, each with its prefix
  bool ignore_merges = false;  ///< a whole text or word that is a token is not split
  /// The token of characters that have neither token nor bytes; none: they are left out.
  std::optional<index_t> unknown = {};
  bool fuse_unknown = true;  ///< consecutive unknown characters become one token
  SpaceStrip strip = SpaceStrip::one;
  /// How texts are normalised first, except for special tokens.
  SentencePieceNormal normal = {};
};

namespace detail {

inline constexpr std::string_view kSpaceLetter = "\xE2\x96\x81";  // U+2581

/// The text with each run of two or more spaces replaced by `to`.
inline std::string joined_spaces(std::string_view text, std::string_view to) {
  std::string result;
  while (!text.empty()) {
    const std::size_t count = (std::min)(text.find_first_not_of(' '), text.size());
    result.append(count > 1 ? to : text.substr(0, count));
    text.remove_prefix(count);
    const std::size_t size = (std::min)(text.find(' '), text.size());
    result.append(text.substr(0, size));
    text.remove_prefix(size);
  }
  return result;
}

/// The text without these ASCII characters.
inline std::string without(std::string_view text, std::string_view characters) {
  std::string result(text);
  std::erase_if(result, [&](char c) { return characters.find(c) != characters.npos; });
  return result;
}

/// The text with a space for each run of white space.
inline std::string joined_white_space(std::string_view text) {
  std::string result;
  while (!text.empty()) {
    const std::size_t spaces = space_begins(text);
    if (spaces > 0) result += ' ';
    text.remove_prefix(spaces);
    const std::size_t size = word_ends(text);
    result.append(text.substr(0, size));
    text.remove_prefix(size);
  }
  return result;
}

/// The byte that <0x0A> stands for, or -1.
inline int byte_of_token(std::string_view token) {
  if (token.size() != 6 || !token.starts_with("<0x") || token[5] != '>') return -1;
  int value = 0;
  for (const char c : token.substr(3, 2)) {
    const int digit = c >= '0' && c <= '9' ? c - '0' : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
    if (digit < 0) return -1;
    value = value * 16 + digit;
  }
  return value;
}

/// Tokens sorted by their bytes, to find all that a text begins with.
class SortedTokens {
 public:
  SortedTokens() = default;
  explicit SortedTokens(std::vector<std::pair<std::string, std::int32_t>> tokens)
      : tokens_(std::move(tokens)) {
    std::sort(tokens_.begin(), tokens_.end());
  }

  /// Calls f(bytes, id) for each token that the text begins with, the shortest first.
  template <class F>
  void for_each_prefix(std::string_view text, F&& f) const {
    auto begin = tokens_.begin(), end = tokens_.end();
    for (std::size_t n = 0; n < text.size() && begin != end; ++n) {
      const auto byte = [n](const auto& token) {
        return token.first.size() > n ? static_cast<unsigned char>(token.first[n]) : -1;
      };
      const int wanted = static_cast<unsigned char>(text[n]);
      begin = std::partition_point(begin, end, [&](const auto& t) { return byte(t) < wanted; });
      end = std::partition_point(begin, end, [&](const auto& t) { return byte(t) == wanted; });
      if (begin != end && begin->first.size() == n + 1) f(n + 1, begin->second);
    }
  }

 private:
  std::vector<std::pair<std::string, std::int32_t>> tokens_;
};

/// Converts texts without special tokens to ids.
class SentencePiece {
 public:
  SentencePiece() = default;

  /// `is_text` marks the tokens that texts may become.
  SentencePiece(const SentencePieceVocabulary& vocabulary, const std::vector<bool>& is_text)
      : merges_(vocabulary.merges.size()),
        kind_(vocabulary.kind),
        prefix_(vocabulary.prefix),
        cuts_words_(vocabulary.cuts_words),
        drops_space_(vocabulary.drops_space),
        ignore_merges_(vocabulary.ignore_merges),
        by_scores_(vocabulary.merges.empty()),
        fuse_unknown_(vocabulary.fuse_unknown),
        unknown_(static_cast<std::int32_t>(vocabulary.unknown.value_or(-1))),
        normal_(vocabulary.normal) {
    const auto& tokens = vocabulary.tokens;
    const bool has_scores = kind_ == SentencePieceKind::unigram || by_scores_;
    check_vocabulary(!has_scores || vocabulary.scores.size() == tokens.size(), "scores",
                     "be as many as tokens, " + std::to_string(tokens.size()),
                     std::to_string(vocabulary.scores.size()));
    for (const double score : vocabulary.scores)
      check_vocabulary(std::isfinite(score), "scores", "be finite", std::to_string(score));
    byte_ids_.fill(-1);
    ids_.reserve(tokens.size());
    std::vector<std::pair<std::string, std::int32_t>> sorted;
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      const auto id = static_cast<std::int32_t>(i);
      const bool is_byte = !vocabulary.kinds.empty() && vocabulary.kinds[i] == TokenKind::byte;
      if (is_byte) {
        const int byte = byte_of_token(tokens[i]);
        check_vocabulary(byte >= 0, "token " + std::to_string(i), "be a byte, as <0x0A>",
                         "\"" + valid_utf8(tokens[i].substr(0, 100)) + "\"");
        byte_ids_[static_cast<std::size_t>(byte)] = id;
      } else if (is_text[i] && !tokens[i].empty()) {
        if (!ids_.add(tokens[i], id)) fail_repeated(tokens[i]);
      }
      // Unigram in `tokenizers` treats a spelled-out byte token as that byte.
      if (kind_ == SentencePieceKind::unigram && (is_byte || is_text[i]))
        sorted.emplace_back(tokens[i], id);
    }
    if (kind_ == SentencePieceKind::unigram) {
      sorted_ = SortedTokens(std::move(sorted));
      scores_ = vocabulary.scores;
      constexpr double kBelow = 10;  // the penalty in `tokenizers` and SentencePiece
      unknown_score_ =
          scores_.empty() ? -kBelow : *std::min_element(scores_.begin(), scores_.end()) - kBelow;
    } else if (by_scores_) {
      ranks_ = ranks_of(vocabulary.scores);
    }
    std::string both;
    for (std::size_t rank = 0; rank < vocabulary.merges.size(); ++rank) {
      add_merge(merges_, vocabulary.merges[rank], rank,
                [&](std::string_view left, std::string_view right) -> MergedIds {
                  both.assign(left).append(right);
                  return {ids_(left), ids_(right), ids_(both)};
                });
    }
  }

  /// The id of the token with these bytes, which may contain spaces; -1: none.
  std::int32_t id(std::string_view bytes) const { return ids_(replaced(bytes, " ", kSpaceLetter)); }

  /// `is_first`: nothing precedes it, not even special tokens.
  void encode(std::string_view part, bool is_first, std::vector<index_t>& ids) const {
    std::string normal;
    if (normal_.lowercase) part = normal = lowercase(part);
    if (!normal_.removed.empty()) part = normal = without(part, normal_.removed);
    if (normal_.joins_white_space) part = normal = joined_white_space(part);
    if (normal_.charsmap) part = normal = (*normal_.charsmap)(part);
    if (normal_.strips_left) part.remove_prefix(space_begins(part));
    if (normal_.strips_right) part = part.substr(0, space_ends(part));
    if (normal_.several_spaces) part = normal = joined_spaces(part, *normal_.several_spaces);
    if (!drops_space_) encode_text(part, is_first, ids);
    while (drops_space_ && !part.empty()) {
      part.remove_prefix(space_begins(part));
      const std::string_view word = part.substr(0, word_ends(part));
      encode_text(word, is_first, ids);
      part.remove_prefix(word.size());
    }
  }

 private:
  void encode_text(std::string_view part, bool is_first, std::vector<index_t>& ids) const {
    if (part.empty()) return;
    check_vocabulary(part.size() < std::size_t{1} << 28, "a text", "have less than 2^28 bytes",
                     std::to_string(part.size()));
    std::string text = replaced(part, " ", kSpaceLetter);
    const bool has_space = text.starts_with(kSpaceLetter);
    if (prefix_ == SpacePrefix::every || (prefix_ == SpacePrefix::every_word && !has_space) ||
        (prefix_ == SpacePrefix::first_word && !has_space && is_first)) {
      text.insert(0, kSpaceLetter);
    }
    bool is_known = true;  // whether the last token is unknown
    MergedWord merged;
    std::vector<Step> steps;
    for (std::string_view rest = text; !rest.empty();) {
      const std::size_t end = cuts_words_ ? rest.find(kSpaceLetter, 1) : rest.npos;
      const std::string_view word = rest.substr(0, end);
      rest.remove_prefix(word.size());
      is_known = true;
      if (kind_ == SentencePieceKind::unigram) {
        likeliest(word, steps, is_known, ids);
      } else {
        merge(word, merged, is_known, ids);
      }
    }
  }

  /// The rank of a score, 0 for the highest; equal scores have equal ranks.
  static std::vector<std::int32_t> ranks_of(std::span<const double> scores) {
    std::vector<std::size_t> order(scores.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::sort(order.begin(), order.end(),
              [&](std::size_t a, std::size_t b) { return scores[a] > scores[b]; });
    std::vector<std::int32_t> ranks(scores.size());
    std::int32_t rank = 0;
    for (std::size_t i = 0; i < order.size(); ++i) {
      if (i > 0 && scores[order[i]] < scores[order[i - 1]]) ++rank;
      ranks[order[i]] = rank;
    }
    return ranks;
  }

  /// A character without a token: its bytes if all have a token, otherwise the unknown token.
  void add_bytes(std::string_view bytes, bool& is_known, std::vector<index_t>& ids) const {
    const auto byte_id = [&](char byte) { return byte_ids_[static_cast<unsigned char>(byte)]; };
    if (std::all_of(bytes.begin(), bytes.end(), [&](char byte) { return byte_id(byte) >= 0; })) {
      for (const char byte : bytes) ids.push_back(byte_id(byte));
      is_known = true;
    } else if (unknown_ >= 0) {
      if (is_known || !fuse_unknown_) ids.push_back(unknown_);
      is_known = false;
    }
  }

  void merge(std::string_view word, MergedWord& merged, bool& is_known,
             std::vector<index_t>& ids) const {
    if (ignore_merges_) {
      if (const std::int32_t id = ids_(word); id >= 0) {
        ids.push_back(id);
        return;
      }
    }
    merged.clear();
    for (std::size_t at = 0; at < word.size();) {
      const std::size_t size = first_char(word.substr(at)).size;
      merged.add(ids_(word.substr(at, size)), at, size);
      at += size;
    }
    const auto bytes = [&](const MergedWord::Symbol& symbol, std::int32_t size) {
      return word.substr(static_cast<std::size_t>(symbol.begin), static_cast<std::size_t>(size));
    };
    merged.merge([&](const MergedWord::Symbol& left, const MergedWord::Symbol& right) {
      if (!by_scores_) return merges_(left.id, right.id);
      const std::int32_t id = ids_(bytes(left, left.size + right.size));
      return id < 0 ? Merge{} : Merge{ranks_[static_cast<std::size_t>(id)], id};
    });
    merged.for_each([&](const MergedWord::Symbol& symbol) {
      if (symbol.id < 0) {
        add_bytes(bytes(symbol, symbol.size), is_known, ids);
      } else {
        ids.push_back(symbol.id);
        is_known = true;
      }
    });
  }

  /// The best segmentation up to a byte: its last token, and where that begins.
  struct Step {
    double score = -std::numeric_limits<double>::infinity();
    std::int32_t id = -1;  ///< -1: a character without a token
    std::size_t begin = 0;
  };

  /// Viterbi's algorithm. Source: Kudo, "Subword Regularization" (2018), section 3.2.
  void likeliest(std::string_view word, std::vector<Step>& steps, bool& is_known,
                 std::vector<index_t>& ids) const {
    steps.assign(word.size() + 1, {});
    steps[0].score = 0;
    const auto propose = [&](std::size_t begin, std::size_t size, std::int32_t id, double score) {
      Step& step = steps[begin + size];
      if (steps[begin].score + score > step.score) step = {steps[begin].score + score, id, begin};
    };
    for (std::size_t at = 0; at < word.size();) {
      const std::size_t size = first_char(word.substr(at)).size;
      bool has_character = false;
      sorted_.for_each_prefix(word.substr(at), [&](std::size_t length, std::int32_t id) {
        propose(at, length, id, scores_[static_cast<std::size_t>(id)]);
        has_character = has_character || length == size;
      });
      if (!has_character) propose(at, size, -1, unknown_score_);
      at += size;
    }
    std::vector<std::size_t> ends;
    for (std::size_t end = word.size(); end > 0; end = steps[end].begin) ends.push_back(end);
    for (; !ends.empty(); ends.pop_back()) {
      const Step& step = steps[ends.back()];
      if (step.id < 0) {
        add_bytes(word.substr(step.begin, ends.back() - step.begin), is_known, ids);
      } else {
        ids.push_back(step.id);
        is_known = true;
      }
    }
  }

  TokenIds ids_;  ///< as they are spelled
  std::array<std::int32_t, 256> byte_ids_{};
  MergeTable merges_;
  std::vector<std::int32_t> ranks_;  ///< of BPE by scores
  SortedTokens sorted_;              ///< of unigram
  std::vector<double> scores_;       ///< scores of the tokens of unigram
  double unknown_score_ = 0;
  SentencePieceKind kind_ = SentencePieceKind::bpe;
  SpacePrefix prefix_ = SpacePrefix::every;
  bool cuts_words_ = false, drops_space_ = false, ignore_merges_ = false, by_scores_ = false,
       fuse_unknown_ = true;
  std::int32_t unknown_ = -1;
  SentencePieceNormal normal_;
};

}  // namespace detail

ATTN_NAMESPACE_END
