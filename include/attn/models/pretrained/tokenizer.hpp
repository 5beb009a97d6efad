// Tokenizer, special tokens and chat template of a Hugging Face folder.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>

#include "attn/models/pretrained/spaces.hpp"
#include "attn/models/special_tokens.hpp"
#include "attn/text/chat_template.hpp"
#include "attn/text/tokenizer.hpp"

ATTN_NAMESPACE_BEGIN

/// The tokenizer, special tokens and chat template of a folder.
struct PretrainedText {
  Tokenizer tokenizer;
  SpecialTokens special = {};
  /// The folder's template, if it has a known one.
  std::optional<ChatTemplate> chat_template = {};
};

namespace detail {

inline PreTokenizer pre_tokenizer_of(const ConfigFile& file) {
  constexpr std::string_view kKey = "pre_tokenizer";
  // Two spellings of the contractions that match the same texts.
  constexpr std::string_view kContractions[] = {"(?i:'s|'t|'re|'ve|'m|'ll|'d)",
                                                "'(?i:[sdmt]|ll|ve|re)"};
  constexpr std::string_view kLetters = R"(|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N})",
                             kRest = R"(| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
  // CLIP's pattern. Newer files put the special tokens before it, which ByteLevel splits again.
  constexpr std::string_view kClip = R"('s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+)";
  std::string found;
  std::optional<PreTokenizer> kind;  // of the step before ByteLevel
  for (const ConfigFile& step : tokenizer_steps(file, kKey, "pretokenizers")) {
    const auto type = step.get<std::string>("type");
    found += (found.empty() ? "" : ", ") + type;
    if (type == "ByteLevel") {
      if (step.get<bool>("add_prefix_space", true)) {
        step.fail("add_prefix_space", "be false", "true");
      }
      const bool cuts = step.get<bool>("use_regex", true);
      if (!kind && cuts) return PreTokenizer::gpt2;
      const bool needs_cuts = kind == PreTokenizer::smollm || kind == PreTokenizer::clip;
      if (kind && cuts == needs_cuts) return *kind;
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
      for (const std::string_view specials : {"", R"(<\|startoftext\|>|<\|endoftext\|>|)"}) {
        if (pattern == concat(specials, kClip)) kind = PreTokenizer::clip;
      }
      const bool is_clip = kind == PreTokenizer::clip;
      if (!kind || step.get<std::string>("behavior") != (is_clip ? "Removed" : "Isolated") ||
          step.get<bool>("invert", false) != is_clip) {
        step.fail("pattern", "be Llama 3's, Qwen2's or CLIP's, with each match a word",
                  quote(pattern));
      }
    }
  }
  file.fail(
      kKey,
      "be ByteLevel, optionally after Digits or a Split with the pattern of Llama 3, Qwen2 or "
      "CLIP",
      quote(found.empty() ? "none" : found));
}

/// Sets how texts are normalised: form C or not, or form C and lower case, as in CLIP, whose words
/// have no white space.
inline void set_normalizer(const ConfigFile& file, BpeVocabulary& vocabulary) {
  const auto steps = tokenizer_steps(file, "normalizer", "normalizers");
  const std::string types = step_types(steps);
  const bool is_clip = vocabulary.pre_tokenizer == PreTokenizer::clip;
  if (is_clip && types == "NFC, Replace, Lowercase") {
    const auto pattern = steps[1].object("pattern").get<std::string>("Regex", "");
    if (pattern != "\\s+") steps[1].fail("pattern", "be \"\\s+\"", quote(pattern));
    if (steps[1].get<std::string>("content") != " ") {
      steps[1].fail("content", "be a space", quote(steps[1].get<std::string>("content")));
    }
    vocabulary.lowercase = true;
  } else if (types != "NFC" && !types.empty()) {
    file.fail("normalizer",
              is_clip ? "be NFC, Replace and Lowercase, or NFC, or none" : "be NFC or none",
              quote(types));
  }
  vocabulary.nfc = !types.empty();
}

/// The tokens that a post-processor writes before and after a text, if it does.
struct TokensAround {
  std::optional<std::string> before = {}, behind = {};
};

inline TokensAround tokens_around_texts(const ConfigFile& file) {
  TokensAround result;
  for (const ConfigFile& step : tokenizer_steps(file, "post_processor", "processors")) {
    const auto type = step.get<std::string>("type");
    if (type == "ByteLevel") continue;  // which concerns offsets
    if (type == "RobertaProcessing" || type == "BertProcessing") {
      result = {.before = step.numbered_text("cls").first,
                .behind = step.numbered_text("sep").first};
      continue;
    }
    if (type != "TemplateProcessing") {
      file.fail("post_processor",
                "be ByteLevel, TemplateProcessing, RobertaProcessing or BertProcessing",
                quote(type));
    }
    bool has_text = false;
    for (const ConfigFile& part : step.objects("single")) {
      if (part.has("Sequence")) {
        has_text = true;
        continue;
      }
      auto& token = has_text ? result.behind : result.before;
      if (token)
        step.fail("single", "be a text with at most one token before and one after it", "more");
      token = part.object("SpecialToken").get<std::string>("id");
    }
  }
  return result;
}

/// Texts of tokenizer.json that BpeVocabulary refers to.
struct TokenizerTexts {
  std::vector<std::string> tokens, merges;
  std::vector<TokenKind> kinds;
  std::map<index_t, TokenEdges> edges;

  /// Throws ValueError for an id that is far from all others, or belongs to another token.
  void add(const ConfigFile& file, const std::string& token, index_t id, TokenKind kind) {
    const auto at = static_cast<std::size_t>(id);
    if (id < 0 || id >= index_t{1} << 24) {
      file.fail("id", "lie in 0 .. 2^24 - 1", std::to_string(id));
    }
    if (at >= tokens.size()) {
      tokens.resize(at + 1);
      kinds.resize(at + 1, TokenKind::unused);
    }
    if (kinds[at] != TokenKind::unused && tokens[at] != token) {
      file.fail("id", concat("belong to one token, ", quote(tokens[at])), quote(token));
    }
    tokens[at] = token;
    kinds[at] = kind;
  }
};

/// Whether a text in normalisation form C contains a token exactly where the text before does: the
/// token is ASCII, no other character normalises to a part of it, and its end composes with no
/// character.
inline bool is_stable_in_nfc(std::string_view token) {
  const auto is_letter = [](char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); };
  return !token.empty() && token.find_first_of("K`;") == token.npos &&
         std::ranges::all_of(token, [](char c) { return static_cast<unsigned char>(c) < 0x80; }) &&
         !is_letter(token.back()) && token.find_last_of("<=>") != token.size() - 1;
}

/// `is_nfc`: the only normalizer is form C.
inline void add_added_tokens(const ConfigFile& file, bool is_normal, bool is_nfc,
                             TokenizerTexts& texts) {
  if (!file.has("added_tokens")) return;
  for (const ConfigFile& token : file.objects("added_tokens")) {
    TokenEdges edges{.single_word = token.get<bool>("single_word", false),
                     .lstrip = token.get<bool>("lstrip", false),
                     .rstrip = token.get<bool>("rstrip", false)};
    const bool is_special = token.get<bool>("special", false);
    const auto content = token.get<std::string>("content");
    edges.is_late = is_normal && token.get<bool>("normalized", !is_special);
    if (edges.is_late && (is_special || !is_nfc || !is_stable_in_nfc(content))) {
      token.fail("normalized", "be false with a normalizer", "true");
    }
    const auto id = token.get<index_t>("id");
    texts.add(token, content, id, is_special ? TokenKind::control : TokenKind::user_defined);
    texts.edges[id] = edges;
  }
}

/// Missing in old files.
inline std::string model_type(const ConfigFile& model) {
  if (model.has("type")) return model.get<std::string>("type");
  return model.has("unk_id") ? "Unigram" : "BPE";
}

/// `end_of_word`: of CLIP's tokens, or empty.
inline void check_bpe(const ConfigFile& model, std::string_view end_of_word = "") {
  if (model.get<double>("dropout", 0) != 0) model.fail("dropout", "be 0 or none", "another");
  const auto check = [&](std::string_view key, std::string_view expected) {
    const auto text = model.get<std::string>(key, "");
    if (text == expected) return;
    model.fail(key, expected.empty() ? "be empty or none" : concat("be ", quote(expected)),
               quote(text));
  };
  check("continuing_subword_prefix", "");
  check("end_of_word_suffix", end_of_word);
}

/// Tokens, merges and unknown token of "model".
inline TokenizerTexts bpe_texts(const ConfigFile& model, std::optional<index_t>& unknown) {
  TokenizerTexts texts;
  for (const auto& [token, id] : model.named_indices("vocab"))
    texts.add(model, token, id, TokenKind::normal);
  if (model.has("unk_token")) {
    const auto name = model.get<std::string>("unk_token");
    const auto at = std::find(texts.tokens.begin(), texts.tokens.end(), name);
    if (at == texts.tokens.end()) model.fail("unk_token", "be a token", quote(name));
    unknown = at - texts.tokens.begin();
  }
  if (model.holds_text("merges")) {
    texts.merges = model.texts("merges");
  } else {
    for (const std::vector<std::string>& pair : model.text_lists("merges")) {
      if (pair.size() != 2) model.fail("merges", "be pairs of tokens", std::to_string(pair.size()));
      texts.merges.push_back(concat(pair[0], " ", pair[1]));
    }
  }
  return texts;
}

/// Checks and fills what remains once the model's own tokens are set.
inline void finish_texts(const ConfigFile& file, const ConfigFile& model, index_t vocab_size,
                         bool is_normal, bool is_nfc, TokenizerTexts& texts) {
  add_added_tokens(file, is_normal, is_nfc, texts);
  if (std::ssize(texts.tokens) < vocab_size) {
    texts.tokens.resize(static_cast<std::size_t>(vocab_size));
    texts.kinds.resize(static_cast<std::size_t>(vocab_size), TokenKind::unused);
  }
  if (const auto unread = model.unread(); !unread.empty()) {
    throw ValueError(message("pretrained_text", quote(file.file_name()), "have no unknown keys",
                             list_text(unread, "of them")));
  }
}

inline Tokenizer byte_level_bpe_of(const ConfigFile& file, const ConfigFile& model,
                                   index_t vocab_size) {
  BpeVocabulary vocabulary{.tokens = {},
                           .pre_tokenizer = pre_tokenizer_of(file),
                           .ignore_merges = model.get<bool>("ignore_merges", false)};
  const bool is_clip = vocabulary.pre_tokenizer == PreTokenizer::clip;
  if (is_clip) {
    vocabulary.end_of_word = "</w>";
    if (vocabulary.ignore_merges) model.fail("ignore_merges", "be false for CLIP", "true");
  }
  check_bpe(model, vocabulary.end_of_word);
  set_normalizer(file, vocabulary);
  for (const ConfigFile& step : tokenizer_steps(file, "decoder", "decoders")) {
    if (const auto name = step.get<std::string>("type"); name != "ByteLevel") {
      file.fail("decoder", "be ByteLevel", quote(name));
    }
  }
  TokenizerTexts texts = bpe_texts(model, vocabulary.unknown);
  const bool fuses = model.get<bool>("fuse_unk", false);
  // CLIP's special tokens are in lower case and form C already.
  finish_texts(file, model, vocab_size, vocabulary.nfc && !is_clip, vocabulary.nfc, texts);
  vocabulary.tokens.assign(texts.tokens.begin(), texts.tokens.end());
  vocabulary.merges.assign(texts.merges.begin(), texts.merges.end());
  vocabulary.kinds = std::move(texts.kinds);
  vocabulary.edges = std::move(texts.edges);
  Tokenizer tokenizer(vocabulary);
  for (int byte = 0; byte < 256 && fuses && vocabulary.unknown; ++byte) {
    if (tokenizer.token(std::string(1, static_cast<char>(byte)))) continue;
    model.fail("fuse_unk", "be false if a byte has no token", "true");
  }
  return tokenizer;
}

inline Tokenizer sentencepiece_of(const ConfigFile& file, const ConfigFile& model,
                                  index_t vocab_size) {
  const bool is_unigram = model_type(model) == "Unigram";
  const bool has_bytes = model.get<bool>("byte_fallback", false);
  const SpaceRules rules = space_rules_of(file, has_bytes);
  SentencePieceVocabulary vocabulary{
      .tokens = {},
      .kind = is_unigram ? SentencePieceKind::unigram : SentencePieceKind::bpe,
      .prefix = rules.prefix,
      .cuts_words = rules.cuts_words,
      .drops_space = rules.drops_space,
      .strip = rules.strip,
      .normal = rules.normal};
  TokenizerTexts texts;
  if (is_unigram) {
    for (const auto& [token, score] : model.numbered_texts("vocab")) {
      texts.add(model, token, std::ssize(texts.tokens), TokenKind::normal);
      vocabulary.scores.push_back(score);
    }
    if (model.has("unk_id")) vocabulary.unknown = model.get<index_t>("unk_id");
  } else {
    check_bpe(model);
    texts = bpe_texts(model, vocabulary.unknown);
    if (texts.merges.empty()) model.fail("merges", "not be empty for SentencePiece", "none");
    vocabulary.ignore_merges = model.get<bool>("ignore_merges", false);
    vocabulary.fuse_unknown = model.get<bool>("fuse_unk", false);
  }
  index_t bytes = 0;
  for (std::size_t i = 0; i < texts.tokens.size() && has_bytes; ++i) {
    if (byte_of_token(texts.tokens[i]) < 0) continue;
    texts.kinds[i] = TokenKind::byte;
    ++bytes;
  }
  if (has_bytes && bytes != 256)
    model.fail("vocab", "have a token for each byte, such as <0x0A>", std::to_string(bytes));
  finish_texts(file, model, vocab_size, file.has("normalizer"), false, texts);
  vocabulary.scores.resize(is_unigram ? texts.tokens.size() : 0);
  vocabulary.tokens.assign(texts.tokens.begin(), texts.tokens.end());
  vocabulary.merges.assign(texts.merges.begin(), texts.merges.end());
  vocabulary.kinds = std::move(texts.kinds);
  vocabulary.edges = std::move(texts.edges);
  return Tokenizer(vocabulary);
}

/// tokenizer.json; a model may have more rows, `vocab_size`, than it has tokens.
inline Tokenizer tokenizer_of(const ConfigFile& file, index_t vocab_size) {
  const ConfigFile model = file.object("model");
  const std::string type = model_type(model);
  if (type != "BPE" && type != "Unigram") model.fail("type", "be BPE or Unigram", quote(type));
  if (type == "Unigram" || model.get<bool>("byte_fallback", false))
    return sentencepiece_of(file, model, vocab_size);
  return byte_level_bpe_of(file, model, vocab_size);
}

/// An optional JSON file of a folder.
inline std::optional<ConfigFile> optional_config(const std::filesystem::path& path) {
  std::error_code error;
  if (!std::filesystem::exists(path, error)) return std::nullopt;
  return ConfigFile(path);
}

/// A token of tokenizer_config.json: a text or an object that contains one.
inline std::optional<std::string> named_token(const ConfigFile& config, std::string_view key) {
  if (!config.has(key)) return std::nullopt;
  if (config.holds_text(key)) return config.get<std::string>(key);
  return config.object(key).get<std::string>("content");
}

/// chat_template.jinja, or the template of tokenizer_config.json; if there are several, "default".
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

/// pretrained_text() with `file`, the folder's tokenizer.json.
inline PretrainedText pretrained_text_of(const ConfigFile& file,
                                         const std::filesystem::path& folder,
                                         index_t vocab_size = 0) {
  PretrainedText result{.tokenizer = tokenizer_of(file, vocab_size)};
  const Tokenizer& tokenizer = result.tokenizer;
  SpecialTokens& special = result.special;
  const auto id_of = [&](const ConfigFile& of, std::string_view key, const std::string& token) {
    const auto id = tokenizer.token(token);
    if (!id) of.fail(key, "be a token", quote(token));
    return *id;
  };
  const auto config = optional_config(folder / "tokenizer_config.json");
  std::string bos, eos;
  if (config) {
    if (const auto token = named_token(*config, "bos_token")) {
      special.bos = id_of(*config, "bos_token", bos = *token);
      special.add_bos = config->get<bool>("add_bos_token", false);
    }
    if (const auto token = named_token(*config, "eos_token"))
      special.add_end(id_of(*config, "eos_token", eos = *token));
  }
  const TokensAround around = tokens_around_texts(file);
  if (around.before) {
    special.bos = id_of(file, "post_processor", *around.before);
    special.add_bos = true;
  }
  if (around.behind) special.behind = id_of(file, "post_processor", *around.behind);
  for (const char* name : {"generation_config.json", "config.json"}) {
    const auto of = optional_config(folder / name);
    if (!of || !of->has("eos_token_id")) continue;
    for (const index_t id : of->indices("eos_token_id")) {
      if (id >= tokenizer.vocab_size()) {
        of->fail("eos_token_id", concat("lie in 0 .. ", tokenizer.vocab_size() - 1),
                 std::to_string(id));
      }
      special.add_end(id);
    }
  }
  if (const auto text = chat_template_text(folder, config))
    result.chat_template = ChatTemplate::recognise(*text, bos, eos);
  return result;
}

}  // namespace detail

/// The tokenizer alone of tokenizer.json, whatever tokens it adds around texts. Throws what
/// pretrained_text() throws.
inline Tokenizer pretrained_tokenizer(const std::filesystem::path& folder, index_t vocab_size = 0) {
  return detail::tokenizer_of(ConfigFile(folder / "tokenizer.json"), vocab_size);
}

/// Reads tokenizer.json and, if they exist, tokenizer_config.json, chat_template.jinja, and the end
/// tokens of generation_config.json and config.json. Ids equal those of the Python package
/// tokenizers, including Unicode normalisation form C and SentencePiece's character tables if the
/// file requests them, but without truncation and padding; ids from the file's tokens to vocab_size
/// - 1 are tokens without text. Throws IoError for files that cannot be read, ValueError for a
/// tokenizer that is neither byte-level BPE nor SentencePiece's BPE or Unigram, or has unknown
/// parts, naming file and key.
inline PretrainedText pretrained_text(const std::filesystem::path& folder, index_t vocab_size = 0) {
  return detail::pretrained_text_of(ConfigFile(folder / "tokenizer.json"), folder, vocab_size);
}

ATTN_NAMESPACE_END
