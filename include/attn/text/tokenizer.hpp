// Tokenizer: text to token ids and back, by byte-level BPE or SentencePiece.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "attn/text/byte_level_bpe.hpp"
#include "attn/text/sentencepiece.hpp"

ATTN_NAMESPACE_BEGIN

/// Converts a text to ids: special tokens are split off, the longest first, and the kind of
/// vocabulary determines the rest.
///
/// Byte-level BPE: the text is split into words; in each word's bytes the pair of highest priority
/// merges, the leftmost of equals, until none can. Bytes without a token become the unknown token,
/// or are left out if the vocabulary has none. decode() restores any other text, UTF-8 or not,
/// possibly in normalisation form C; if tokens mark the ends of words, in lower case and with a
/// space after every word.
///
/// SentencePiece: the text may be normalised first; spaces become the letter U+2581, which may also
/// be written before the text; then pairs of symbols merge, or the most likely tokens are found. A
/// character without a token becomes its bytes if the vocabulary has them, otherwise the unknown
/// token. decode() restores any bytes, except for unknown characters, U+2581 itself, which becomes
/// a space, spaces that it removes, and normalised characters.
///
/// Ids equal those of Hugging Face's `tokenizers`. const member functions are thread-safe. Source:
/// Sennrich et al., "Neural Machine Translation of Rare Words with Subword Units" (2016); bytes:
/// Radford et al. (2019), section 2.2; Kudo and Richardson, "SentencePiece" (2018).
class Tokenizer {
 public:
  Tokenizer() = default;

  /// Throws ValueError if kinds and tokens differ in number, a token occurs twice, a merge names a
  /// text that is not a token, or `unknown` is not a token.
  explicit Tokenizer(const BpeVocabulary& vocabulary) {
    std::vector<bool> is_text;
    start(vocabulary);
    for (std::size_t i = 0; i < vocabulary.tokens.size(); ++i) {
      const std::string_view token = vocabulary.tokens[i];
      const TokenKind kind = kind_of(vocabulary, i);
      const bool is_special = kind == TokenKind::control || kind == TokenKind::user_defined;
      std::string bytes;
      const bool is_bytes =
          !is_special && detail::append_bytes_of_token(token, vocabulary.end_of_word, bytes);
      add(is_bytes ? std::move(bytes) : std::string(token), kind == TokenKind::control);
      if (is_special) add_special(token, vocabulary);
      is_text.push_back(!is_special && kind != TokenKind::unused);
    }
    sort_specials();
    model_.emplace<detail::ByteLevelBpe>(vocabulary, pieces_, is_text);
  }

  /// Throws ValueError for the reasons of the other constructor, and unless scores are one finite
  /// number per token and bytes are spelled correctly.
  explicit Tokenizer(const SentencePieceVocabulary& vocabulary) : strip_(vocabulary.strip) {
    // Merging by scores is specific to SentencePiece: user-defined tokens are not merged into
    // others. They are searched after spaces have become letters.
    const bool is_own = vocabulary.kind == SentencePieceKind::bpe && vocabulary.merges.empty();
    folds_spaces_ = is_own;
    std::vector<bool> is_text;
    start(vocabulary);
    for (std::size_t i = 0; i < vocabulary.tokens.size(); ++i) {
      const std::string_view token = vocabulary.tokens[i];
      const TokenKind kind = kind_of(vocabulary, i);
      const bool is_control = kind == TokenKind::control || kind == TokenKind::unknown;
      const bool is_user_defined = kind == TokenKind::user_defined;
      const int byte = kind == TokenKind::byte ? detail::byte_of_token(token) : -1;
      add(byte >= 0 ? std::string(1, static_cast<char>(byte))
                    : detail::replaced(token, detail::kSpaceLetter, " "),
          is_control);
      if (is_control || is_user_defined)
        add_special(is_own ? std::string_view(pieces_.back()) : token, vocabulary);
      is_text.push_back(kind == TokenKind::normal || (is_user_defined && !is_own));
    }
    sort_specials();
    model_.emplace<detail::SentencePiece>(vocabulary, is_text);
  }

  index_t vocab_size() const { return std::ssize(pieces_); }

  /// The bytes of a token, which may be part of a character. Throws ValueError for an id outside
  /// the vocabulary.
  const std::string& piece(index_t id) const {
    if (id < 0 || id >= vocab_size()) {
      throw ValueError(message("Tokenizer::piece", "id",
                               "lie in 0 .. " + std::to_string(vocab_size() - 1),
                               std::to_string(id)));
    }
    return pieces_[static_cast<std::size_t>(id)];
  }

  /// Whether it is a control token, which is not text.
  bool is_control(index_t id) const {
    static_cast<void>(piece(id));
    return is_control_[static_cast<std::size_t>(id)];
  }

  /// The token of these bytes, or the control or user-defined token of this spelling.
  std::optional<index_t> token(std::string_view text) const {
    std::int32_t id = special_ids_(text);
    if (id < 0) id = std::visit([&](const auto& model) { return model.id(text); }, model_);
    return id < 0 ? std::nullopt : std::optional<index_t>(id);
  }

  std::vector<index_t> encode(std::string_view text, bool parse_special = false) const {
    std::vector<index_t> ids;
    Rest rest;
    encode_piece(text, parse_special, rest, ids);
    encode_rest(rest.text, ids);
    return ids;
  }

  /// The ids of the joined text of the pieces; a control token never spans two pieces.
  std::vector<index_t> encode(std::span<const TextPiece> pieces) const {
    std::vector<index_t> ids;
    Rest rest;
    for (const TextPiece& piece : pieces) encode_piece(piece.text, piece.parse_special, rest, ids);
    encode_rest(rest.text, ids);
    return ids;
  }

  /// The bytes of all tokens, control tokens spelled out or left out, without the space that
  /// encode() may have added before the text. Throws ValueError for an id outside the vocabulary.
  std::string decode(std::span<const index_t> ids, bool with_control = true) const {
    std::string text;
    bool is_first = true;
    for (const index_t id : ids) {
      if (!with_control && is_control(id)) continue;
      text += piece(id);
      if (is_first && strip_ == SpaceStrip::first_token) std::erase(text, ' ');
      is_first = false;
    }
    if (strip_ == SpaceStrip::one && text.starts_with(' ')) text.erase(0, 1);
    return text;
  }

 private:
  struct Special {
    std::string text;
    std::int32_t id;
    TokenEdges edges;
  };
  /// The text of the pieces so far that is not encoded yet.
  struct Rest {
    std::string text;
    bool strips = false;  ///< the last special token removes white space after it
  };

  template <class Vocabulary>
  static TokenKind kind_of(const Vocabulary& vocabulary, std::size_t id) {
    return vocabulary.kinds.empty() ? TokenKind::normal : vocabulary.kinds[id];
  }

  template <class Vocabulary>
  void start(const Vocabulary& vocabulary) {
    const auto count = vocabulary.tokens.size();
    detail::check_vocabulary(vocabulary.kinds.empty() || vocabulary.kinds.size() == count, "kinds",
                             "be as many as tokens, " + std::to_string(count),
                             std::to_string(vocabulary.kinds.size()));
    detail::check_vocabulary(count < std::size_t{1} << 31, "tokens", "be fewer than 2^31",
                             std::to_string(count));
    const index_t unknown = vocabulary.unknown.value_or(-1), size = std::ssize(vocabulary.tokens);
    detail::check_vocabulary(!vocabulary.unknown || (unknown >= 0 && unknown < size), "unknown",
                             "lie in 0 .. " + std::to_string(size - 1), std::to_string(unknown));
    pieces_.reserve(count);
    is_control_.reserve(count);
  }
  void add(std::string piece, bool is_control) {
    pieces_.push_back(std::move(piece));
    is_control_.push_back(is_control);
  }
  /// Makes the last token a special token that this text names.
  template <class Vocabulary>
  void add_special(std::string_view text, const Vocabulary& vocabulary) {
    const auto id = static_cast<std::int32_t>(pieces_.size() - 1);
    if (!special_ids_.add(text, id)) detail::fail_repeated(text);
    if (text.empty()) return;
    const auto edges = vocabulary.edges.find(id);
    specials_[static_cast<unsigned char>(text.front())].push_back(
        {std::string(text), id, edges == vocabulary.edges.end() ? TokenEdges{} : edges->second});
    has_late_ |= specials_[static_cast<unsigned char>(text.front())].back().edges.is_late;
  }
  void sort_specials() {
    for (auto& list : specials_) {
      std::stable_sort(list.begin(), list.end(), [](const Special& a, const Special& b) {
        return a.text.size() > b.text.size();
      });
    }
  }

  /// Appends special tokens, the late ones or the others, and the text before them including
  /// `rest`, to ids; the remaining text to `rest`.
  void encode_piece(std::string_view text, bool parse_control, Rest& rest,
                    std::vector<index_t>& ids, bool late = false) const {
    std::string with_spaces;
    if (folds_spaces_) text = with_spaces = detail::replaced(text, detail::kSpaceLetter, " ");
    std::size_t begin = rest.strips ? detail::space_begins(text) : 0;
    if (begin < text.size()) rest.strips = false;
    for (std::size_t at = begin; at < text.size();) {
      const Special* special = special_at(text.substr(at), parse_control, late);
      if (special == nullptr) {
        ++at;
        continue;
      }
      const std::string_view behind = text.substr(at + special->text.size());
      const std::string_view before = at > 0 ? text.substr(0, at) : std::string_view(rest.text);
      if (special->edges.single_word && (ends_in_word(before) || begins_word(behind))) {
        at += special->text.size();
        continue;
      }
      rest.text.append(text.substr(begin, at - begin));
      if (special->edges.lstrip) rest.text.resize(detail::space_ends(rest.text));
      if (late) {
        encode_plain(rest.text, ids);
      } else {
        encode_rest(rest.text, ids);
      }
      rest.text.clear();
      ids.push_back(special->id);
      const std::size_t spaces = special->edges.rstrip ? detail::space_begins(behind) : 0;
      rest.strips = special->edges.rstrip && spaces == behind.size();
      at += special->text.size() + spaces;
      begin = at;
    }
    rest.text.append(text.substr((std::min)(begin, text.size())));
  }

  static bool begins_word(std::string_view text) {
    return !text.empty() && detail::is_word_char(first_char(text).code);
  }
  static bool ends_in_word(std::string_view text) {
    return !text.empty() && detail::is_word_char(last_char(text).code);
  }

  const Special* special_at(std::string_view text, bool parse_control, bool late) const {
    for (const Special& special : specials_[static_cast<unsigned char>(text.front())]) {
      if (special.edges.is_late != late) continue;
      if (!parse_control && is_control_[static_cast<std::size_t>(special.id)]) continue;
      if (text.starts_with(special.text)) return &special;
    }
    return nullptr;
  }

  /// Text between special tokens, which may hold late ones.
  void encode_rest(std::string_view text, std::vector<index_t>& ids) const {
    Rest rest;
    if (has_late_) encode_piece(text, true, rest, ids, true);
    encode_plain(has_late_ ? std::string_view(rest.text) : text, ids);
  }

  void encode_plain(std::string_view text, std::vector<index_t>& ids) const {
    if (const auto* sentencepiece = std::get_if<detail::SentencePiece>(&model_)) {
      sentencepiece->encode(text, ids.empty(), ids);
    } else {
      std::get<detail::ByteLevelBpe>(model_).encode(text, ids);
    }
  }

  std::vector<std::string> pieces_;  ///< by id: bytes
  std::vector<bool> is_control_;
  detail::TokenIds special_ids_;                    ///< control and user-defined, of text
  std::array<std::vector<Special>, 256> specials_;  ///< by first byte, the longest first
  std::variant<detail::ByteLevelBpe, detail::SentencePiece> model_;
  SpaceStrip strip_ = SpaceStrip::none;
  bool has_late_ = false;      ///< some special tokens are searched in the text between others
  bool folds_spaces_ = false;  ///< U+2581 in texts is a space from the beginning
};

ATTN_NAMESPACE_END
