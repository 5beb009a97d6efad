// Qwen3-Next: the gated delta rule in most layers, gated attention in the others; experts.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attn/models/pretrained/decoders/experts.hpp"
#include "attn/models/pretrained/decoders/recurrent.hpp"

ATTN_NAMESPACE_BEGIN

namespace detail {

inline GptOptions qwen3_next_options(const ConfigFile& config, const PretrainedOptions& given) {
  GptOptions options =
      llama_style_options(config, given, {.head_dim = 256, .rotary = {.partial = 0.25}});
  check_only<std::string>(config, "hidden_act", "silu", "silu");
  check_only(config, "use_sliding_window", false, "false");
  const bool bias = config.get<bool>("attention_bias", false);
  set_attention_bias(options, bias, bias);
  set_query_key_norm(options);
  TransformerLayerOptions& layer = options.layer;
  layer.attention.output_gate = true;
  layer.experts = qwen_experts(config, true);
  layer.experts.dim_shared = config.count("shared_expert_intermediate_size", 512);
  layer.experts.shared_gate = true;
  layer.gated_delta = {.num_key_heads = config.count("linear_num_key_heads", 16),
                       .num_value_heads = config.count("linear_num_value_heads", 32),
                       .key_dim = config.count("linear_key_head_dim", 128),
                       .value_dim = config.count("linear_value_head_dim", 128),
                       .width = config.count("linear_conv_kernel_dim", 4),
                       .norm_eps = layer.layer_norm_eps};
  const GatedDeltaOptions& delta = layer.gated_delta;
  if (delta.width < 2) config.fail("linear_conv_kernel_dim", "be at least 2", "1");
  if (delta.num_value_heads % delta.num_key_heads != 0) {
    config.fail("linear_num_value_heads",
                concat("be a multiple of linear_num_key_heads = ", delta.num_key_heads),
                std::to_string(delta.num_value_heads));
  }
  const index_t interval = config.count("full_attention_interval", 4);
  if (config.has("layer_types")) {
    options.mixers =
        mixers_of(config, options.num_layers, "linear_attention", TokenMixer::gated_delta);
    return options;
  }
  for (index_t n = 1; n <= options.num_layers; ++n) {
    options.mixers.push_back(n % interval == 0 ? TokenMixer::attention : TokenMixer::gated_delta);
  }
  return options;
}

/// All norms but those of gated delta layers scale by 1 + weight. Ignores layers that predict
/// further tokens.
inline LoadOptions qwen3_next_names(const std::string& prefix, const ConfigFile& config) {
  LoadOptions names = moe_names(prefix, config);
  names.add_one = {".input_layernorm.weight", ".post_attention_layernorm.weight",
                   prefix + "norm.weight", ".q_norm.weight", ".k_norm.weight"};
  names.ignore.push_back("mtp.");
  return names;
}

inline constexpr DecoderType kQwen3NextTypes[] = {
    {.model_type = "qwen3_next", .options = qwen3_next_options, .names = qwen3_next_names}};

}  // namespace detail

ATTN_NAMESPACE_END
