// Granite, which scales embeddings, residuals, scores and logits.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attn/models/pretrained/decoders/decoder_type.hpp"

ATTN_NAMESPACE_BEGIN

namespace detail {

inline GptOptions granite_options(const ConfigFile& config, const PretrainedOptions& given) {
  GptOptions options = llama_style_options(config, given);
  options.layer.bias = config.get<bool>("mlp_bias", false);
  const bool bias = config.get<bool>("attention_bias", false);
  set_attention_bias(options, bias, bias);
  options.embedding_factor = config.get<double>("embedding_multiplier", 1);
  options.layer.residual_scale = config.get<double>("residual_multiplier", 1);
  options.layer.attention.scale = config.get<double>("attention_multiplier", 1);
  options.logit_scale = 1 / config.get<double>("logits_scaling", 1);
  return options;
}

inline constexpr DecoderType kGraniteTypes[] = {
    {.model_type = "granite", .options = granite_options}};

}  // namespace detail

ATTN_NAMESPACE_END
