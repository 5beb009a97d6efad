// GPT-OSS: experts with clamped gated units, attention sinks, windows in every second layer.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attn/models/pretrained/decoders/experts.hpp"

ATTN_NAMESPACE_BEGIN

namespace detail {

inline GptOptions gpt_oss_options(const ConfigFile& config, const PretrainedOptions& given) {
  GptOptions options = llama_style_options(
      config, given, {.default_norm_eps = 1e-5, .head_dim = 64, .rotary = {.theta = 150000}});
  const bool bias = config.get<bool>("attention_bias", true);
  set_attention_bias(options, bias, bias);
  options.layer.attention.sinks = true;
  options.windows =
      windows_of(config, options.num_layers, true, [](index_t n) { return n % 2 == 0; });
  // Experts have this activation whatever hidden_act is.
  check_only(config, "swiglu_alpha", 1.702, "1.702");
  options.layer.activation = Activation::quick_gelu;
  options.layer.experts = experts_of(config, "intermediate_size", true);
  options.layer.experts.bias = true;
  options.layer.experts.glu_limit = config.get<double>("swiglu_limit", 7);
  if (!(options.layer.experts.glu_limit > 0)) {
    config.fail("swiglu_limit", "be positive", attn::to_string(options.layer.experts.glu_limit));
  }
  options.layer.experts.glu_offset = 1;
  // Other spellings of num_experts_per_tok and of the trained length of yarn.
  check_only(config, "experts_per_token", options.layer.experts.experts_per_token,
             "num_experts_per_tok");
  static_cast<void>(config.has("initial_context_length"));
  // The types of tensors in the file tell how they are stored.
  if (config.has("quantization_config")) {
    const ConfigFile quantization = config.object("quantization_config");
    check_only<std::string>(quantization, "quant_method", "mxfp4", "mxfp4");
    static_cast<void>(quantization.has("modules_to_not_convert"));
    check_all_read(quantization, given);
  }
  return options;
}

inline LoadOptions gpt_oss_names(const std::string& prefix, const ConfigFile&) {
  return llama_names_with(prefix, {{".moe.", ".mlp."}});
}

inline constexpr DecoderType kGptOssTypes[] = {
    {.model_type = "gpt_oss",
     .options = gpt_oss_options,
     .names = gpt_oss_names,
     .fused = {.gate_up = ".experts.gate_up_proj",
               .down = ".experts.down_proj",
               .gate_up_bias = ".experts.gate_up_proj_bias",
               .down_bias = ".experts.down_proj_bias",
               .transposed = true,
               .interleaved = true}}};

}  // namespace detail

ATTN_NAMESPACE_END
