// EuroBERT: Llama with bidirectional attention.
// SPDX-License-Identifier: Apache-2.0
#pragma once

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

inline constexpr EncoderType kEuroBertTypes[] = {{.model_type = "eurobert",
                                                  .options = eurobert_options,
                                                  .names = eurobert_names,
                                                  .prefix = "model.",
                                                  .words = "embed_tokens.weight"}};

}  // namespace detail

ATTN_NAMESPACE_END
