// GLM and GLM 4: half of each head rotated, one name for gate and up.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attn/models/pretrained/decoders/decoder_type.hpp"

ATTN_NAMESPACE_BEGIN

namespace detail {

inline LoadOptions glm4_names(const std::string& prefix, const ConfigFile&) {
  return llama_names_but(prefix, {{".norm1_behind.", ".post_self_attn_layernorm."},
                                  {".norm2_behind.", ".post_mlp_layernorm."}});
}

inline GptOptions glm_options(const ConfigFile& config, const PretrainedOptions& given) {
  GptOptions options =
      llama_style_options(config, given,
                          {.default_norm_eps = 1.5625e-7,
                           .head_dim = 128,
                           .rotary = {.partial = 0.5, .pairs = RotaryPairs::interleaved}});
  options.layer.joint_gate = true;
  set_attention_bias(options, config.get<bool>("attention_bias", false), false);
  return options;
}

inline GptOptions glm4_options(const ConfigFile& config, const PretrainedOptions& given) {
  GptOptions options = glm_options(config, given);
  options.layer.norm_behind = true;
  return options;
}

inline constexpr DecoderType kGlmTypes[] = {
    {.model_type = "glm", .options = glm_options},
    {.model_type = "glm4", .options = glm4_options, .names = glm4_names}};

}  // namespace detail

ATTN_NAMESPACE_END
