// Granite and Granite MoE, which scale embeddings, residuals, scores and logits.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attn/models/pretrained/decoders/experts.hpp"

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

inline GptOptions granitemoe_options(const ConfigFile& config, const PretrainedOptions& given) {
  GptOptions options = granite_options(config, given);
  options.layer.experts = experts_of(config, "intermediate_size", true);
  return options;
}
inline LoadOptions granitemoe_names(const std::string& prefix, const ConfigFile&) {
  return llama_names_with(prefix, {{".moe.router.", ".block_sparse_moe.router.layer."},
                                   {".moe.", ".block_sparse_moe."}});
}

inline constexpr DecoderType kGraniteTypes[] = {
    {.model_type = "granite", .options = granite_options},
    {.model_type = "granitemoe",
     .options = granitemoe_options,
     .names = granitemoe_names,
     .fused = {.gate_up = ".input_linear.weight", .down = ".output_linear.weight"}}};

}  // namespace detail

ATTN_NAMESPACE_END
