// Tokenizer, special tokens and chat template of a GGUF file.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attn/io/gguf.hpp"
#include "attn/models/special_tokens.hpp"
#include "attn/text/chat_template.hpp"
#include "attn/text/tokenizer.hpp"

ATTN_NAMESPACE_BEGIN

namespace detail {

[[noreturn]] inline void fail_gguf_tokenizer(const GgufFile& file, std::string_view key,
                                             std::string_view expected, std::string_view found) {
  throw ValueError(message("gguf_tokenizer", concat(quote(file.file_name()), ": key ", quote(key)),
                           expected, quote(found)));
}

inline std::vector<TokenKind> gguf_token_kinds(const GgufFile& file) {
  std::vector<TokenKind> kinds;
  if (!file.has("tokenizer.ggml.token_type")) return kinds;
  for (const auto number : file.array<std::int32_t>("tokenizer.ggml.token_type"))
    kinds.push_back(static_cast<TokenKind>(number));
  return kinds;
}

inline Tokenizer gguf_byte_level_bpe(const GgufFile& file) {
  const auto name = file.get<std::string_view>("tokenizer.ggml.pre", "default");
  const auto kind = pre_tokenizer(name);
  if (!kind) {
    fail_gguf_tokenizer(file, "tokenizer.ggml.pre", "be smollm, gpt-2, llama-bpe or qwen2", name);
  }
  return Tokenizer(BpeVocabulary{.tokens = file.array<std::string_view>("tokenizer.ggml.tokens"),
                                 .kinds = gguf_token_kinds(file),
                                 .merges = file.array<std::string_view>("tokenizer.ggml.merges"),
                                 .pre_tokenizer = *kind,
                                 .ignore_merges = *kind == PreTokenizer::llama_bpe});
}

inline Tokenizer gguf_sentencepiece(const GgufFile& file) {
  constexpr std::string_view kTrims = "tokenizer.ggml.remove_extra_whitespaces",
                             kUnknown = "tokenizer.ggml.unknown_token_id",
                             kMap = "tokenizer.ggml.precompiled_charsmap";
  if (file.get<bool>(kTrims, false)) fail_gguf_tokenizer(file, kTrims, "be false", "true");
  if (file.has(kMap)) fail_gguf_tokenizer(file, kMap, "be missing", "given");
  const bool has_prefix = file.get<bool>("tokenizer.ggml.add_space_prefix", true);
  SentencePieceVocabulary vocabulary{
      .tokens = file.array<std::string_view>("tokenizer.ggml.tokens"),
      .kinds = gguf_token_kinds(file),
      .prefix = has_prefix ? SpacePrefix::every : SpacePrefix::none,
      .strip = has_prefix ? SpaceStrip::one : SpaceStrip::none};
  if (vocabulary.kinds.empty()) {
    fail_gguf_tokenizer(file, "tokenizer.ggml.token_type", "say which tokens are bytes", "none");
  }
  const auto scores = file.array<float>("tokenizer.ggml.scores");
  vocabulary.scores.assign(scores.begin(), scores.end());
  if (file.has(kUnknown)) vocabulary.unknown = index_t{file.get<std::uint32_t>(kUnknown)};
  return Tokenizer(vocabulary);
}

}  // namespace detail

/// The tokenizer of a file, from its keys tokenizer.ggml.*: byte-level BPE, or SentencePiece's BPE.
/// Throws ValueError for another, or one whose pre-tokenizer is not known, and as Tokenizer() and
/// GgufFile::get().
inline Tokenizer gguf_tokenizer(const GgufFile& file) {
  constexpr std::string_view kModel = "tokenizer.ggml.model";
  const auto model = file.get<std::string_view>(kModel);
  if (model == "gpt2") return detail::gguf_byte_level_bpe(file);
  if (model == "llama") return detail::gguf_sentencepiece(file);
  detail::fail_gguf_tokenizer(
      file, kModel, "be gpt2 (byte-level BPE) or llama (SentencePiece's BPE): no other is read",
      model);
}

namespace detail {

/// Texts of control tokens that end an answer, whichever of them the file calls its eos. Source:
/// llama.cpp, src/llama-vocab.cpp.
inline constexpr std::string_view kEndTokens[] = {
    "<|endoftext|>", "<|end_of_text|>", "<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|end|>",
    "<|return|>",    "<end_of_turn>",   "<eos>",      "</s>",       "<EOT>",      "<|EOT|>",
};

}  // namespace detail

/// The special tokens of a file: tokenizer.ggml.bos_token_id; as ends the ids of eos, eot and eom
/// and control tokens with well-known names. Throws ValueError for an id outside the vocabulary,
/// and for add_eos_token, which would end a prompt before its answer.
inline SpecialTokens gguf_special_tokens(const GgufFile& file, const Tokenizer& tokenizer) {
  SpecialTokens result;
  const auto id = [&](std::string_view key) -> std::optional<index_t> {
    const std::string full = detail::concat("tokenizer.ggml.", key);
    if (!file.has(full)) return std::nullopt;
    const auto value = file.get<std::uint32_t>(full);
    if (value < static_cast<std::uint64_t>(tokenizer.vocab_size())) return index_t{value};
    throw ValueError(
        message("gguf_special_tokens",
                detail::concat(detail::quote(file.file_name()), ": key ", detail::quote(full)),
                detail::concat("lie in 0 .. ", tokenizer.vocab_size() - 1), std::to_string(value)));
  };
  result.bos = id("bos_token_id");
  for (const std::string_view key : {"eos_token_id", "eot_token_id", "eom_token_id"}) {
    if (const auto end = id(key)) result.add_end(*end);
  }
  for (const std::string_view text : detail::kEndTokens) {
    const auto end = tokenizer.token(text);
    if (end && tokenizer.is_control(*end)) result.add_end(*end);
  }
  // A file without the key leaves it to the tokenizer: texts of SentencePiece and of Llama 3 begin
  // with it.
  const bool begins = file.get<std::string_view>("tokenizer.ggml.model", "") == "llama" ||
                      file.get<std::string_view>("tokenizer.ggml.pre", "") == "llama-bpe";
  result.add_bos = result.bos && file.get<bool>("tokenizer.ggml.add_bos_token", begins);
  return result;
}

/// The file's chat template, if it has one that is recognised.
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
