// The tokenizer and the chat template that a GGUF file holds.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attn/io/gguf.hpp"
#include "attn/models/special_tokens.hpp"
#include "attn/text/bpe.hpp"
#include "attn/text/chat_template.hpp"

ATTN_NAMESPACE_BEGIN

/// The tokenizer of a file, from its keys tokenizer.ggml.*. Throws ValueError for one that is not
/// byte-level BPE or whose pre-tokenizer is not known, and as GgufFile::get().
inline BpeTokenizer gguf_tokenizer(const GgufFile& file) {
  const auto fail = [&](std::string_view key, std::string_view expected, std::string_view found) {
    throw ValueError(
        message("gguf_tokenizer",
                detail::concat(detail::quote(file.file_name()), ": key ", detail::quote(key)),
                expected, detail::quote(found)));
  };
  const auto model = file.get<std::string_view>("tokenizer.ggml.model");
  if (model != "gpt2") {
    fail("tokenizer.ggml.model", "be gpt2: byte-level BPE is the one kind that is read", model);
  }
  const auto name = file.get<std::string_view>("tokenizer.ggml.pre", "default");
  const auto kind = pre_tokenizer(name);
  if (!kind) fail("tokenizer.ggml.pre", "be smollm, gpt-2, llama-bpe or qwen2", name);
  BpeVocabulary vocabulary{.tokens = file.array<std::string_view>("tokenizer.ggml.tokens"),
                           .merges = file.array<std::string_view>("tokenizer.ggml.merges"),
                           .pre_tokenizer = *kind,
                           .ignore_merges = *kind == PreTokenizer::llama_bpe};
  if (file.has("tokenizer.ggml.token_type")) {
    for (const auto number : file.array<std::int32_t>("tokenizer.ggml.token_type")) {
      vocabulary.kinds.push_back(static_cast<TokenKind>(number));
    }
  }
  return BpeTokenizer(vocabulary);
}

/// Its special tokens, from tokenizer.ggml.*. Throws ValueError for an id that is none of the
/// tokenizer's.
inline SpecialTokens gguf_special_tokens(const GgufFile& file, const BpeTokenizer& tokenizer) {
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
  // A file without the key leaves it to the pre-tokenizer: Llama 3's texts begin with it.
  const bool is_llama3 = file.get<std::string_view>("tokenizer.ggml.pre", "") == "llama-bpe";
  result.add_bos = result.bos && file.get<bool>("tokenizer.ggml.add_bos_token", is_llama3);
  return result;
}

/// The file's chat template, if it has one that is recognised.
inline std::optional<ChatTemplate> gguf_chat_template(const GgufFile& file,
                                                      const BpeTokenizer& tokenizer,
                                                      const SpecialTokens& special) {
  constexpr std::string_view kKey = "tokenizer.chat_template";
  if (!file.has(kKey)) return std::nullopt;
  return ChatTemplate::recognise(file.get<std::string_view>(kKey),
                                 special.bos ? tokenizer.piece(*special.bos) : "");
}

ATTN_NAMESPACE_END
