// EmbeddingGemma: Gemma 3 with bidirectional attention.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attn/models/pretrained/decoders/gemma.hpp"
#include "attn/models/pretrained/encoders/encoder_type.hpp"

ATTN_NAMESPACE_BEGIN

namespace detail {

inline LoadOptions embedding_gemma_names(const std::string& prefix) {
  return decoder_style_names(prefix, gemma2_names(""));
}

/// A token sees sliding_window / 2 tokens on each side.
inline BertOptions embedding_gemma_options(const ConfigFile& config,
                                           const PretrainedOptions& given) {
  if (!config.get<bool>("use_bidirectional_attention", false)) {
    config.fail("use_bidirectional_attention", "be true for Bert (Gpt reads causal models)",
                "false");
  }
  GptOptions decoder = gemma3_base_options(config, given);
  for (index_t& window : decoder.windows) {
    if (window >= 0) window = (window + 1) / 2;
  }
  return bidirectional(decoder);
}

inline constexpr EncoderType kEmbeddingGemmaTypes[] = {{.model_type = "gemma3_text",
                                                        .options = embedding_gemma_options,
                                                        .names = embedding_gemma_names,
                                                        .prefix = "model.",
                                                        .words = "embed_tokens.weight"}};

}  // namespace detail

ATTN_NAMESPACE_END
