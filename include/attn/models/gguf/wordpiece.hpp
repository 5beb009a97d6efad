// The WordPiece tokenizer of a GGUF file.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attn/models/gguf/tokenizer.hpp"
#include "attn/text/wordpiece.hpp"

ATTN_NAMESPACE_BEGIN

namespace detail {

/// The piece of vocab.txt that a token of a GGUF file stands for. In GGUF files, a token at the
/// beginning of a word begins with U+2581, and one within a word has no "##". Special tokens are
/// the same in both; older files do not mark them.
inline std::string wordpiece_of_gguf(std::string_view token, TokenKind kind) {
  const bool is_special = kind == TokenKind::control || kind == TokenKind::unknown ||
                          (token.size() > 1 && token.starts_with('[') && token.ends_with(']'));
  if (token.starts_with(kSpaceLetter)) return std::string(token.substr(kSpaceLetter.size()));
  return is_special ? std::string(token) : concat("##", token);
}

/// From the keys tokenizer.ggml.*. Throws ValueError, naming file and key, for another tokenizer,
/// unknown keys and unsupported values; keys in `ignore_keys` count as missing.
inline WordPieceTokenizer gguf_wordpiece(const GgufFile& file,
                                         std::span<const std::string> ignore_keys) {
  const GgufKeys keys(file, std::string(kGgufTokenizerPrefix), "SentenceEncoder", ignore_keys);
  if (const auto model = keys.get<std::string_view>("model"); model != "bert") {
    keys.fail("model", "be bert (WordPiece): no other is supported", quote(model));
  }
  for (const std::string_view key : {"normalizer.lowercase", "normalizer.strip_accents"}) {
    if (!keys.get<bool>(key, true)) {
      keys.fail(key, "be true or missing: cased models are not supported", "false");
    }
  }
  static_cast<void>(keys.has("add_sep_token"));  // texts always end with it
  const auto tokens = keys.array<std::string_view>("tokens");
  const std::vector<TokenKind> kinds = gguf_token_kinds(keys);
  if (!kinds.empty() && kinds.size() != tokens.size()) {
    keys.fail("token_type", concat("be one per token, ", tokens.size()),
              std::to_string(kinds.size()));
  }
  std::vector<std::string> pieces;
  std::string vocabulary;
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    pieces.push_back(wordpiece_of_gguf(tokens[i], kinds.empty() ? TokenKind::normal : kinds[i]));
    if (tokens[i].find_first_of("\r\n") != tokens[i].npos) {
      keys.fail("tokens", "have no line ends", quote(tokens[i]));
    }
    vocabulary.append(pieces.back()).append("\n");
  }
  WordPieceTokens special;
  const auto read = [&](std::initializer_list<std::string_view> names, std::string& token) {
    for (const std::string_view key : names) {
      if (!keys.has(key)) continue;
      const auto id = keys.get<std::uint32_t>(key);
      if (id >= pieces.size()) {
        keys.fail(key, concat("be less than ", pieces.size()), std::to_string(id));
      }
      token = pieces[id];
    }
  };
  read({"padding_token_id"}, special.pad);
  read({"unknown_token_id"}, special.unknown);
  read({"bos_token_id", "cls_token_id"}, special.cls);
  read({"separator_token_id", "seperator_token_id"}, special.sep);
  read({"mask_token_id"}, special.mask);
  keys.check_all_read(gguf_unread_tokenizer_keys());
  const std::string name =
      concat(quote(file.file_name()), ": key ", quote(concat(kGgufTokenizerPrefix, "tokens")));
  return WordPieceTokenizer(vocabulary, name, special);
}

}  // namespace detail

ATTN_NAMESPACE_END
