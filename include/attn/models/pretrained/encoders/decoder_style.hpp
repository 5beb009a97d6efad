// Encoders whose layers are a decoder's: EuroBERT (Llama) and EmbeddingGemma (Gemma 3).
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attn/models/pretrained/decoders/gemma.hpp"
#include "attn/models/pretrained/decoders/llama.hpp"
#include "attn/models/pretrained/encoders/encoder_type.hpp"

ATTN_NAMESPACE_BEGIN

namespace detail {

inline LoadOptions eurobert_names(const std::string& prefix) {
  return decoder_style_names(prefix, llama_names(""));
}

inline BertOptions eurobert_options(const ConfigFile& config, const PretrainedOptions& given) {
  GptOptions decoder = llama_options(config, given);
  decoder.layer.layer_norm_eps = config.get<double>("rms_norm_eps", 1e-5);
  return bidirectional(decoder);
}

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

inline constexpr EncoderType kDecoderStyleTypes[] = {{.model_type = "eurobert",
                                                      .options = eurobert_options,
                                                      .names = eurobert_names,
                                                      .prefix = "model.",
                                                      .words = "embed_tokens.weight"},
                                                     {.model_type = "gemma3_text",
                                                      .options = embedding_gemma_options,
                                                      .names = embedding_gemma_names,
                                                      .prefix = "model.",
                                                      .words = "embed_tokens.weight"}};

}  // namespace detail

ATTN_NAMESPACE_END
