// SentenceTokenizer: the tokenizer of a sentence-transformers folder or a GGUF file.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "attn/models/gguf/wordpiece.hpp"
#include "attn/models/pretrained/config.hpp"
#include "attn/models/pretrained/tokenizer.hpp"
#include "attn/text/wordpiece.hpp"

ATTN_NAMESPACE_BEGIN

namespace detail {

/// The settings of a JSON file, or none if there is no such file.
inline ConfigFile config_if_there(const std::filesystem::path& path) {
  return optional_config(path).value_or(ConfigFile("{}", detail::utf8(path)));
}

/// The vocabulary of tokenizer.json in the format of vocab.txt.
inline std::string wordpiece_vocabulary(const ConfigFile& file) {
  const ConfigFile model = file.object("model");
  check_only<std::string>(model, "continuing_subword_prefix", "##", "##");
  check_only<std::string>(model, "unk_token", "[UNK]", "[UNK]");
  check_only<index_t>(model, "max_input_chars_per_word", 100, "100");
  if (file.has("normalizer")) {
    const ConfigFile normalizer = file.object("normalizer");
    check_only<std::string>(normalizer, "type", "BertNormalizer", "BertNormalizer");
    check_only(normalizer, "clean_text", true, "true");
    check_only(normalizer, "handle_chinese_chars", true, "true");
    check_only(normalizer, "lowercase", true, "true");
    check_only(normalizer, "strip_accents", true, "true");
  }
  const auto vocabulary = model.named_indices("vocab");
  std::vector<const std::string*> by_id(vocabulary.size(), nullptr);
  for (const auto& [piece, id] : vocabulary) {
    const auto at = static_cast<std::size_t>(id);
    if (at >= by_id.size() || by_id[at] != nullptr || piece.find_first_of("\r\n") != piece.npos) {
      model.fail("vocab", "give pieces without line ends different ids without gaps",
                 concat(quote(piece), ": ", id));
    }
    by_id[at] = &piece;
  }
  std::string text;
  for (const std::string* piece : by_id) text.append(*piece).append("\n");
  return text;
}

/// From the text of a vocab.txt; the folder must request BERT's uncased tokenizer, with any special
/// tokens (MPNet has RoBERTa's).
inline WordPieceTokenizer wordpiece_of(const std::filesystem::path& folder,
                                       std::string_view vocabulary,
                                       const std::filesystem::path& path) {
  const ConfigFile config = config_if_there(folder / "tokenizer_config.json");
  check_only(config, "do_lower_case", true, "true: cased models are not supported");
  check_only(config, "strip_accents", true, "true");
  check_only(config, "tokenize_chinese_chars", true, "true");
  WordPieceTokens tokens;
  const auto read = [&](std::string_view key, std::string& token) {
    token = named_token(config, key).value_or(token);
  };
  read("pad_token", tokens.pad);
  read("unk_token", tokens.unknown);
  read("cls_token", tokens.cls);
  read("sep_token", tokens.sep);
  read("mask_token", tokens.mask);
  return WordPieceTokenizer(vocabulary, detail::utf8(path), tokens);
}

}  // namespace detail

/// Converts texts to the ids that an encoder takes, with the special tokens before and after them:
/// [CLS] and [SEP] of BERT, `<s>` and `</s>` of RoBERTa. Special tokens such as [MASK] or `<mask>`
/// that are spelled out in a text are recognised, as in sentence-transformers. const member
/// functions are thread-safe.
class SentenceTokenizer {
 public:
  /// Reads vocab.txt of uncased WordPiece or, if there is none, tokenizer.json of uncased WordPiece
  /// or of the tokenizers of pretrained_text(): byte-level BPE (RoBERTa) or SentencePiece
  /// (XLM-RoBERTa). Throws IoError for files that cannot be read, ValueError for another tokenizer,
  /// naming file and key.
  explicit SentenceTokenizer(const std::filesystem::path& folder) : model_(model_of(folder)) {}

  /// Reads the keys tokenizer.ggml.* of uncased WordPiece. Throws ValueError for another tokenizer,
  /// unknown keys and unsupported values, naming file and key, unless `ignore_keys` contains it,
  /// with or without "tokenizer.ggml.".
  explicit SentenceTokenizer(const GgufFile& file, std::span<const std::string> ignore_keys = {})
      : model_(detail::gguf_wordpiece(file, ignore_keys)) {}

  index_t vocab_size() const {
    if (const auto* text = std::get_if<PretrainedText>(&model_))
      return text->tokenizer.vocab_size();
    return static_cast<index_t>(std::get<WordPieceTokenizer>(model_).vocab_size());
  }

  /// The text of an id below vocab_size(): "##ing" within a word of WordPiece, otherwise its bytes.
  const std::string& piece(std::int32_t id) const {
    if (const auto* text = std::get_if<PretrainedText>(&model_)) return text->tokenizer.piece(id);
    return std::get<WordPieceTokenizer>(model_).piece(id);
  }

  /// Number of special tokens after each text.
  index_t num_behind() const {
    const auto* text = std::get_if<PretrainedText>(&model_);
    return text == nullptr || text->special.behind ? 1 : 0;
  }

  /// At most max_tokens, including the special tokens: the rest of the text is truncated. Throws
  /// ValueError if max_tokens leaves no room for the special tokens.
  std::vector<std::int32_t> encode(std::string_view text, std::size_t max_tokens = 256) const {
    if (const auto* wordpiece = std::get_if<WordPieceTokenizer>(&model_))
      return wordpiece->encode(text, max_tokens);
    const auto& [tokenizer, special, chat_template] = std::get<PretrainedText>(model_);
    const std::size_t before = special.add_bos ? 1 : 0, behind = special.behind ? 1 : 0;
    if (max_tokens < before + behind) {
      throw ValueError(message("SentenceTokenizer", "max_tokens",
                               "be at least " + std::to_string(before + behind),
                               std::to_string(max_tokens)));
    }
    const std::vector<index_t> all = tokenizer.encode(text, true);
    const std::size_t count = (std::min)(all.size(), max_tokens - before - behind);
    std::vector<std::int32_t> ids;
    ids.reserve(count + before + behind);
    if (special.add_bos) ids.push_back(static_cast<std::int32_t>(*special.bos));
    for (std::size_t i = 0; i < count; ++i) ids.push_back(static_cast<std::int32_t>(all[i]));
    if (special.behind) ids.push_back(static_cast<std::int32_t>(*special.behind));
    return ids;
  }

 private:
  using Model = std::variant<WordPieceTokenizer, PretrainedText>;

  static Model model_of(const std::filesystem::path& folder) {
    std::error_code error;
    const std::filesystem::path list = folder / "vocab.txt", json = folder / "tokenizer.json";
    if (std::filesystem::exists(list, error) || !std::filesystem::exists(json, error)) {
      const MappedFile file(list);
      return detail::wordpiece_of(folder, detail::text_of(file), list);
    }
    const ConfigFile file(json);
    if (detail::model_type(file.object("model")) != "WordPiece")
      return detail::pretrained_text_of(file, folder);
    return detail::wordpiece_of(folder, detail::wordpiece_vocabulary(file), json);
  }

  Model model_;
};

ATTN_NAMESPACE_END
