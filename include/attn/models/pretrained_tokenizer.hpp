// Tokenizer, special tokens and chat template of a Hugging Face folder: tokenizer.json and the files beside it.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>

#include "attn/io/config_file.hpp"
#include "attn/models/special_tokens.hpp"
#include "attn/text/bpe.hpp"
#include "attn/text/chat_template.hpp"

ATTN_NAMESPACE_BEGIN

/// What a folder says of texts.
struct PretrainedText {
  BpeTokenizer tokenizer;
  SpecialTokens special = {};
  /// If it has one that is recognised.
  std::optional<ChatTemplate> chat_template = {};
};

namespace detail {

/// The steps of a Sequence, or the one step that there is, or none.
inline std::vector<ConfigFile> tokenizer_steps(const ConfigFile& file, std::string_view key,
                                               std::string_view list) {
  if (!file.has(key)) return {};
  const ConfigFile one = file.object(key);
  if (one.get<std::string>("type") != "Sequence") return {one};
  return one.objects(list);
}

inline PreTokenizer pre_tokenizer_of(const ConfigFile& file) {
  constexpr std::string_view kKey = "pre_tokenizer";
  // Two spellings of the contractions, which take the same texts.
  constexpr std::string_view kContractions[] = {"(?i:'s|'t|'re|'ve|'m|'ll|'d)",
                                                "'(?i:[sdmt]|ll|ve|re)"};
  constexpr std::string_view kLetters = R"(|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N})",
                             kRest = R"(| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
  std::string found;
  std::optional<PreTokenizer> kind;  // of what stands before ByteLevel
  for (const ConfigFile& step : tokenizer_steps(file, kKey, "pretokenizers")) {
    const auto type = step.get<std::string>("type");
    found += (found.empty() ? "" : ", ") + type;
    if (type == "ByteLevel") {
      if (step.get<bool>("add_prefix_space", true)) {
        step.fail("add_prefix_space", "be false", "true");
      }
      const bool cuts = step.get<bool>("use_regex", true);
      if (!kind && cuts) return PreTokenizer::gpt2;
      if (kind && cuts == (*kind == PreTokenizer::smollm)) return *kind;
      found += cuts ? " with its own pattern" : " without a pattern";
    } else if (type == "Digits" && !kind && step.get<bool>("individual_digits", false)) {
      kind = PreTokenizer::smollm;
    } else if (type == "Split" && !kind) {
      const auto pattern = step.object("pattern").get<std::string>("Regex", "");
      for (const std::string_view contractions : kContractions) {
        if (pattern == concat(contractions, kLetters, kRest)) kind = PreTokenizer::qwen2;
        if (pattern == concat(contractions, kLetters, "{1,3}", kRest))
          kind = PreTokenizer::llama_bpe;
      }
      if (!kind || step.get<std::string>("behavior") != "Isolated" ||
          step.get<bool>("invert", false)) {
        step.fail("pattern", "be Llama 3's or Qwen2's, each match a word", quote(pattern));
      }
    }
  }
  file.fail(kKey,
            "be ByteLevel, alone or behind Digits or a Split by the pattern of Llama 3 or Qwen2",
            quote(found.empty() ? "none" : found));
}

/// Whether texts become form C.
inline bool has_nfc(const ConfigFile& file) {
  const auto steps = tokenizer_steps(file, "normalizer", "normalizers");
  for (const ConfigFile& step : steps) {
    if (const auto type = step.get<std::string>("type"); type != "NFC") {
      file.fail("normalizer", "be NFC or none", quote(type));
    }
  }
  return !steps.empty();
}

/// The token that a post-processor writes before a text, if it does.
inline std::optional<std::string> token_before_texts(const ConfigFile& file) {
  std::optional<std::string> result;
  for (const ConfigFile& step : tokenizer_steps(file, "post_processor", "processors")) {
    const auto type = step.get<std::string>("type");
    if (type == "ByteLevel") continue;  // which is about offsets
    if (type != "TemplateProcessing") {
      file.fail("post_processor", "be ByteLevel or TemplateProcessing", quote(type));
    }
    bool has_text = false;
    for (const ConfigFile& part : step.objects("single")) {
      if (part.has("Sequence")) {
        has_text = true;
      } else if (!has_text && !result) {
        result = part.object("SpecialToken").get<std::string>("id");
      } else {
        step.fail("single", "be a text, or one token and a text", "more");
      }
    }
  }
  return result;
}

/// The parts of tokenizer.json that BpeVocabulary views.
struct TokenizerTexts {
  std::vector<std::string> tokens, merges;
  std::vector<TokenKind> kinds;

  /// Throws ValueError for an id that is far from all others, or another token's.
  void add(const ConfigFile& file, const std::string& token, index_t id, TokenKind kind) {
    const auto at = static_cast<std::size_t>(id);
    if (id >= index_t{1} << 24) file.fail("id", "be below 2^24", std::to_string(id));
    if (at >= tokens.size()) {
      tokens.resize(at + 1);
      kinds.resize(at + 1, TokenKind::unused);
    }
    if (kinds[at] != TokenKind::unused && tokens[at] != token) {
      file.fail("id", concat("be that of one token, ", quote(tokens[at])), quote(token));
    }
    tokens[at] = token;
    kinds[at] = kind;
  }
};

inline void add_added_tokens(const ConfigFile& file, bool is_normal, TokenizerTexts& texts) {
  if (!file.has("added_tokens")) return;
  for (const ConfigFile& token : file.objects("added_tokens")) {
    for (const std::string_view key : {"single_word", "lstrip", "rstrip"}) {
      if (token.get<bool>(key, false)) token.fail(key, "be false", "true");
    }
    const bool is_special = token.get<bool>("special", false);
    if (is_normal && token.get<bool>("normalized", !is_special)) {
      token.fail("normalized", "be false beside a normalizer", "true");
    }
    texts.add(token, token.get<std::string>("content"), token.get<index_t>("id"),
              is_special ? TokenKind::control : TokenKind::user_defined);
  }
}

/// tokenizer.json; `vocab_size` rows of a model may be more than it has tokens.
inline BpeTokenizer tokenizer_of(const ConfigFile& file, index_t vocab_size) {
  const ConfigFile model = file.object("model");
  const auto type = model.get<std::string>("type", "BPE");
  if (type != "BPE") {
    model.fail("type", "be BPE: byte-level BPE is the one kind that is read", quote(type));
  }
  if (model.get<bool>("byte_fallback", false)) {
    model.fail(
        "byte_fallback",
        "be false: SentencePiece's BPE, with tokens of bytes beside those of letters, is not "
        "read",
        "true");
  }
  if (model.get<double>("dropout", 0) != 0) model.fail("dropout", "be 0 or none", "another");
  for (const std::string_view key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    const auto text = model.get<std::string>(key, "");
    if (!text.empty()) model.fail(key, "be empty or none", quote(text));
  }
  BpeVocabulary vocabulary{.tokens = {},
                           .pre_tokenizer = pre_tokenizer_of(file),
                           .ignore_merges = model.get<bool>("ignore_merges", false),
                           .nfc = has_nfc(file)};
  for (const ConfigFile& step : tokenizer_steps(file, "decoder", "decoders")) {
    if (const auto name = step.get<std::string>("type"); name != "ByteLevel") {
      file.fail("decoder", "be ByteLevel", quote(name));
    }
  }
  TokenizerTexts texts;
  for (const auto& [token, id] : model.named_indices("vocab"))
    texts.add(model, token, id, TokenKind::normal);
  if (model.has("unk_token")) {
    const auto name = model.get<std::string>("unk_token");
    const auto at = std::find(texts.tokens.begin(), texts.tokens.end(), name);
    if (at == texts.tokens.end()) model.fail("unk_token", "be a token", quote(name));
    vocabulary.unknown = at - texts.tokens.begin();
  }
  add_added_tokens(file, vocabulary.nfc, texts);
  if (std::ssize(texts.tokens) < vocab_size) {
    texts.tokens.resize(static_cast<std::size_t>(vocab_size));
    texts.kinds.resize(static_cast<std::size_t>(vocab_size), TokenKind::unused);
  }
  if (model.holds_text("merges")) {
    texts.merges = model.texts("merges");
  } else {
    for (const std::vector<std::string>& pair : model.text_lists("merges")) {
      if (pair.size() != 2) model.fail("merges", "be pairs of tokens", std::to_string(pair.size()));
      texts.merges.push_back(concat(pair[0], " ", pair[1]));
    }
  }
  const bool fuses = model.get<bool>("fuse_unk", false);
  if (const auto unread = model.unread(); !unread.empty()) {
    throw ValueError(message("pretrained_text", quote(file.file_name()),
                             "have no keys that are not known", list_text(unread, "of them")));
  }
  vocabulary.tokens.assign(texts.tokens.begin(), texts.tokens.end());
  vocabulary.merges.assign(texts.merges.begin(), texts.merges.end());
  vocabulary.kinds = std::move(texts.kinds);
  BpeTokenizer tokenizer(vocabulary);
  for (int byte = 0; byte < 256 && fuses && vocabulary.unknown; ++byte) {
    if (tokenizer.token(std::string(1, static_cast<char>(byte)))) continue;
    model.fail("fuse_unk", "be false where a byte has no token", "true");
  }
  return tokenizer;
}

/// A JSON file of a folder that need not be there.
inline std::optional<ConfigFile> optional_config(const std::filesystem::path& path) {
  std::error_code error;
  if (!std::filesystem::exists(path, error)) return std::nullopt;
  return ConfigFile(path);
}

/// A token of tokenizer_config.json, which is a text or an object that holds one.
inline std::optional<std::string> named_token(const ConfigFile& config, std::string_view key) {
  if (!config.has(key)) return std::nullopt;
  if (config.holds_text(key)) return config.get<std::string>(key);
  return config.object(key).get<std::string>("content");
}

/// chat_template.jinja, or that of tokenizer_config.json; of several the one called "default".
inline std::optional<std::string> chat_template_text(const std::filesystem::path& folder,
                                                     const std::optional<ConfigFile>& config) {
  constexpr std::string_view kKey = "chat_template";
  std::error_code error;
  if (const auto path = folder / "chat_template.jinja"; std::filesystem::exists(path, error)) {
    return std::string(text_of(MappedFile(path)));
  }
  if (!config || !config->has(kKey)) return std::nullopt;
  if (config->holds_text(kKey)) return config->get<std::string>(kKey);
  for (const ConfigFile& one : config->objects(kKey)) {
    if (one.get<std::string>("name") == "default") return one.get<std::string>("template");
  }
  return std::nullopt;
}

}  // namespace detail

/// Reads tokenizer.json, and where they are there tokenizer_config.json, chat_template.jinja, and
/// the end tokens of generation_config.json and config.json. Ids are those of the Python package
/// tokenizers, Unicode's form C included where the file asks for it; ids from the file's tokens to
/// vocab_size - 1 are tokens without text. Throws IoError for files that cannot be read, ValueError
/// for a tokenizer that is not byte-level BPE, or has parts that are not known, naming file and key.
inline PretrainedText pretrained_text(const std::filesystem::path& folder, index_t vocab_size = 0) {
  const ConfigFile file(folder / "tokenizer.json");
  PretrainedText result{.tokenizer = detail::tokenizer_of(file, vocab_size)};
  const BpeTokenizer& tokenizer = result.tokenizer;
  SpecialTokens& special = result.special;
  const auto id_of = [&](const ConfigFile& of, std::string_view key, const std::string& token) {
    const auto id = tokenizer.token(token);
    if (!id) of.fail(key, "be a token", detail::quote(token));
    return *id;
  };
  const auto config = detail::optional_config(folder / "tokenizer_config.json");
  std::string bos;
  if (config) {
    if (const auto token = detail::named_token(*config, "bos_token")) {
      special.bos = id_of(*config, "bos_token", bos = *token);
      special.add_bos = config->get<bool>("add_bos_token", false);
    }
    if (const auto token = detail::named_token(*config, "eos_token"))
      special.add_end(id_of(*config, "eos_token", *token));
  }
  if (const auto token = detail::token_before_texts(file)) {
    special.bos = id_of(file, "post_processor", *token);
    special.add_bos = true;
  }
  for (const char* name : {"generation_config.json", "config.json"}) {
    const auto of = detail::optional_config(folder / name);
    if (!of || !of->has("eos_token_id")) continue;
    for (const index_t id : of->indices("eos_token_id")) {
      if (id >= tokenizer.vocab_size()) {
        of->fail("eos_token_id", detail::concat("lie in 0 .. ", tokenizer.vocab_size() - 1),
                 std::to_string(id));
      }
      special.add_end(id);
    }
  }
  if (const auto text = detail::chat_template_text(folder, config))
    result.chat_template = ChatTemplate::recognise(*text, bos);
  return result;
}

ATTN_NAMESPACE_END
