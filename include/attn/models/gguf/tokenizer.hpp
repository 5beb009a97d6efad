// Tokenizer, special tokens and chat template of a GGUF file.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attn/models/gguf/keys.hpp"
#include "attn/models/special_tokens.hpp"
#include "attn/text/chat_template.hpp"
#include "attn/text/tokenizer.hpp"

ATTN_NAMESPACE_BEGIN

namespace detail {

inline constexpr std::string_view kGgufTokenizerPrefix = "tokenizer.ggml.";

inline std::vector<TokenKind> gguf_token_kinds(const GgufKeys& keys) {
  std::vector<TokenKind> kinds;
  if (!keys.has("token_type")) return kinds;
  for (const auto number : keys.array<std::int32_t>("token_type"))
    kinds.push_back(static_cast<TokenKind>(number));
  return kinds;
}

/// Whether the tokenizer is Llama 3's in full: it does not merge words that are tokens, and by
/// default begins texts with a token. Other tokenizers only split text as Llama 3 does.
inline bool is_llama3(std::string_view name) {
  return pre_tokenizer(name) == PreTokenizer::llama_bpe && name != "smaug-bpe" && name != "dbrx";
}

inline Tokenizer gguf_byte_level_bpe(const GgufKeys& keys) {
  const auto name = keys.get<std::string_view>("pre", "default");
  const auto kind = pre_tokenizer(name);
  if (!kind) {
    keys.fail("pre", "be smollm, gpt-2, llama-bpe, qwen2, refact, olmo, smaug-bpe or dbrx",
              quote(name));
  }
  return Tokenizer(BpeVocabulary{.tokens = keys.array<std::string_view>("tokens"),
                                 .kinds = gguf_token_kinds(keys),
                                 .merges = keys.array<std::string_view>("merges"),
                                 .pre_tokenizer = *kind,
                                 .ignore_merges = is_llama3(name)});
}

inline Tokenizer gguf_sentencepiece(const GgufKeys& keys) {
  const bool has_prefix = keys.get<bool>("add_space_prefix", true);
  SentencePieceVocabulary vocabulary{.tokens = keys.array<std::string_view>("tokens"),
                                     .kinds = gguf_token_kinds(keys),
                                     .prefix = has_prefix ? SpacePrefix::every : SpacePrefix::none,
                                     .strip = has_prefix ? SpaceStrip::one : SpaceStrip::none};
  if (vocabulary.kinds.empty()) {
    keys.fail("token_type", "mark the tokens that are bytes", "none");
  }
  const auto scores = keys.array<float>("scores");
  vocabulary.scores.assign(scores.begin(), scores.end());
  if (keys.has("unknown_token_id"))
    vocabulary.unknown = index_t{keys.get<std::uint32_t>("unknown_token_id")};
  return Tokenizer(vocabulary);
}

/// Keys tokenizer.ggml.* that do not define the tokenizer.
inline const GgufUnreadKeys& gguf_unread_tokenizer_keys() {
  static const GgufUnreadKeys kKeys = {
      // Read by gguf_special_tokens().
      {"add_bos_token", {}},
      {"add_eos_token", {}},
      {"bos_token_id", {}},
      {"eos_token_id", {}},
      {"eos_token_ids", {}},
      {"eot_token_id", {}},
      {"eom_token_id", {}},
      // Byte-level BPE writes no space before a text and has neither scores nor an unknown token;
      // SentencePiece has no merges, and only one pre-tokenizer.
      {"add_space_prefix", {}},
      {"merges", {}},
      {"pre", {}},
      {"scores", {}},
      {"unknown_token_id", {}},
      // Names of tokens, and additions to texts for encoders.
      {"add_mask_token", {}},
      {"add_padding_token", {}},
      {"add_unknown_token", {}},
      {"added_tokens", {}},
      {"cls_token_id", {}},
      {"fim_mid_token_id", {}},
      {"fim_pad_token_id", {}},
      {"fim_pre_token_id", {}},
      {"fim_rep_token_id", {}},
      {"fim_sep_token_id", {}},
      {"fim_suf_token_id", {}},
      {"mask_token_id", {}},
      {"middle_token_id", {}},
      {"padding_token_id", {}},
      {"prefix_token_id", {}},
      {"separator_token_id", {}},
      {"seperator_token_id", {}},  // llama.cpp's spelling
      {"suffix_token_id", {}},
      {"token_type_count", {}},
      // These would change the ids of texts.
      {"add_sep_token", {0}},
      {"normalizer.lowercase", {0}},
      {"normalizer.strip_accents", {0}},
      {"remove_extra_whitespaces", {0}},
  };
  return kKeys;
}

/// Control tokens with these names end answers, whether or not a key names them: after them a model
/// would continue with another text. The names are those of llama.cpp that occur in the
/// architectures above. llama.cpp accepts tokens of any kind; but </s> is ordinary text in files of
/// Qwen and Gemma.
inline constexpr std::string_view kGgufEndNames[] = {"<|endoftext|>",
                                                     "<|im_end|>",
                                                     "<|eot_id|>",
                                                     "<|eom_id|>",
                                                     "<|end|>",
                                                     "<|end_of_text|>",
                                                     "<end_of_turn>",
                                                     "<end_of_utterance>",
                                                     "<eos>",
                                                     "</s>",
                                                     "<EOT>",
                                                     "[EOS]",
                                                     "<\uff5cend\u2581of\u2581sentence\uff5c>"};

}  // namespace detail

/// The tokenizer of a file, from its keys tokenizer.ggml.*: byte-level BPE, or SentencePiece's BPE.
/// Throws ValueError for another tokenizer, an unknown pre-tokenizer, and unknown keys and
/// unsupported values, unless `ignore_keys` contains the key, with or without "tokenizer.ggml.";
/// ignored keys count as missing. Also throws what Tokenizer() and GgufFile::get() throw.
inline Tokenizer gguf_tokenizer(const GgufFile& file,
                                std::span<const std::string> ignore_keys = {}) {
  const detail::GgufKeys keys(file, std::string(detail::kGgufTokenizerPrefix), "gguf_tokenizer",
                              ignore_keys);
  const auto model = keys.get<std::string_view>("model");
  if (model != "gpt2" && model != "llama") {
    keys.fail("model",
              "be gpt2 (byte-level BPE) or llama (SentencePiece's BPE): no other is supported",
              detail::quote(model));
  }
  Tokenizer result =
      model == "gpt2" ? detail::gguf_byte_level_bpe(keys) : detail::gguf_sentencepiece(keys);
  keys.check_all_read(detail::gguf_unread_tokenizer_keys());
  return result;
}

/// The special tokens, from tokenizer.ggml.*: answers end with the tokens named by keys, and with
/// control tokens with well-known names, such as <|endoftext|>. Throws ValueError for an id outside
/// the vocabulary. `ignore_keys` as for gguf_tokenizer().
inline SpecialTokens gguf_special_tokens(const GgufFile& file, const Tokenizer& tokenizer,
                                         std::span<const std::string> ignore_keys = {}) {
  const detail::GgufKeys keys(file, std::string(detail::kGgufTokenizerPrefix),
                              "gguf_special_tokens", ignore_keys);
  SpecialTokens result;
  const auto checked = [&](std::string_view key, std::uint32_t id) {
    if (id < static_cast<std::uint64_t>(tokenizer.vocab_size())) return index_t{id};
    keys.fail(key, detail::concat("lie in 0 .. ", tokenizer.vocab_size() - 1), std::to_string(id));
  };
  const auto id_of = [&](std::string_view key) -> std::optional<index_t> {
    if (!keys.has(key)) return std::nullopt;
    return checked(key, keys.get<std::uint32_t>(key));
  };
  result.bos = id_of("bos_token_id");
  const std::optional<index_t> eos = id_of("eos_token_id");
  if (eos) result.add_end(*eos);
  for (const std::string_view key : {"eot_token_id", "eom_token_id"}) {
    if (const auto end = id_of(key)) result.add_end(*end);
  }
  if (keys.has("eos_token_ids")) {
    for (const auto id : keys.array<std::uint32_t>("eos_token_ids"))
      result.add_end(checked("eos_token_ids", id));
  }
  for (const std::string_view name : detail::kGgufEndNames) {
    const auto end = tokenizer.token(name);
    if (end && tokenizer.is_control(*end)) result.add_end(*end);
  }
  // Without the key the tokenizer's kind decides: texts of SentencePiece and of Llama 3 begin with
  // the token.
  const bool begins = keys.get<std::string_view>("model", "") == "llama" ||
                      detail::is_llama3(keys.get<std::string_view>("pre", ""));
  result.add_bos = result.bos && keys.get<bool>("add_bos_token", begins);
  if (keys.get<bool>("add_eos_token", false)) result.behind = eos;
  return result;
}

/// The file's chat template, if it has a known one.
inline std::optional<ChatTemplate> gguf_chat_template(const GgufFile& file,
                                                      const Tokenizer& tokenizer,
                                                      const SpecialTokens& special) {
  constexpr std::string_view kKey = "tokenizer.chat_template";
  if (!file.has(kKey)) return std::nullopt;
  return ChatTemplate::recognise(file.get<std::string_view>(kKey),
                                 special.bos ? tokenizer.piece(*special.bos) : "",
                                 special.ends.empty() ? "" : tokenizer.piece(special.ends.front()));
}

ATTN_NAMESPACE_END
