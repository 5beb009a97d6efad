// Decoders with experts: Mixtral, Qwen MoE, OLMoE.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attn/models/pretrained/decoders/llama.hpp"

ATTN_NAMESPACE_BEGIN

namespace detail {

/// The number of experts, under one of two keys, and how many a token uses.
inline MixtureOfExpertsOptions experts_of(const ConfigFile& config, std::string_view hidden,
                                          bool normalize) {
  const bool has_local = config.has("num_local_experts");
  MixtureOfExpertsOptions experts{
      .num_experts = config.count(has_local ? "num_local_experts" : "num_experts"),
      .experts_per_token = config.count("num_experts_per_tok"),
      .dim_feedforward = config.count(hidden),
      .normalize = normalize};
  if (has_local) check_only(config, "num_experts", experts.num_experts, "num_local_experts");
  if (experts.experts_per_token > experts.num_experts) {
    config.fail("num_experts_per_tok", concat("be at most ", experts.num_experts),
                std::to_string(experts.experts_per_token));
  }
  return experts;
}

/// Names of Qwen's and OLMoE's experts.
inline LoadOptions moe_names(const std::string& prefix, const ConfigFile&) {
  return llama_names_with(prefix, {{".moe.router.", ".mlp.gate."}, {".moe.", ".mlp."}});
}

inline LoadOptions mixtral_names(const std::string& prefix, const ConfigFile&) {
  return llama_names_with(prefix, {{".moe.router.", ".block_sparse_moe.gate."},
                                   {".moe.", ".block_sparse_moe."},
                                   {".gate_proj.", ".w1."},
                                   {".down_proj.", ".w2."},
                                   {".up_proj.", ".w3."}});
}

inline GptOptions mixtral_options(const ConfigFile& config, const PretrainedOptions& given) {
  GptOptions options =
      llama_style_options(config, given, {.default_norm_eps = 1e-5, .rotary = {.theta = 1000000}});
  options.layer.experts = experts_of(config, "intermediate_size", true);
  options.windows = windows_of(config, options.num_layers, config.has("sliding_window"),
                               [](index_t) { return true; });
  return options;
}

/// Experts in every layer: decoder_sparse_step 1, no mlp_only_layers. The size of an ordinary
/// feed-forward is then of no effect. `normalize`: transformers' default of norm_topk_prob.
inline MixtureOfExpertsOptions qwen_experts(const ConfigFile& config, bool normalize = false) {
  check_only<index_t>(config, "decoder_sparse_step", 1, "1");
  if (config.has("mlp_only_layers") && config.size("mlp_only_layers") > 0) {
    config.fail("mlp_only_layers", "be empty or missing", "some layers");
  }
  return experts_of(config, "moe_intermediate_size", config.get<bool>("norm_topk_prob", normalize));
}

inline GptOptions qwen2_moe_options(const ConfigFile& config, const PretrainedOptions& given) {
  GptOptions options = llama_style_options(config, given);
  set_attention_bias(options, config.get<bool>("qkv_bias", true), false);
  options.layer.experts = qwen_experts(config);
  options.layer.experts.dim_shared = config.count("shared_expert_intermediate_size");
  options.layer.experts.shared_gate = true;
  options.windows = qwen_windows(config, options.num_layers, false);
  return options;
}

inline GptOptions qwen3_moe_options(const ConfigFile& config, const PretrainedOptions& given) {
  GptOptions options = qwen3_options(config, given);
  options.layer.experts = qwen_experts(config);
  if (config.get<bool>("use_sliding_window", false)) {
    options.windows = windows_of(config, options.num_layers, config.has("sliding_window"),
                                 [](index_t) { return true; });
  }
  return options;
}

inline GptOptions olmoe_options(const ConfigFile& config, const PretrainedOptions& given) {
  GptOptions options = llama_style_options(config, given, {.default_norm_eps = 1e-5});
  const bool bias = config.get<bool>("attention_bias", false);
  set_attention_bias(options, bias, bias);
  set_query_key_norm(options);
  options.layer.attention.query_key_norm_of_all_heads = true;
  set_clip_qkv(options, config);
  options.layer.experts =
      experts_of(config, "intermediate_size", config.get<bool>("norm_topk_prob", false));
  return options;
}

inline constexpr DecoderType kExpertTypes[] = {
    {.model_type = "mixtral", .options = mixtral_options, .names = mixtral_names},
    {.model_type = "qwen2_moe", .options = qwen2_moe_options, .names = moe_names},
    {.model_type = "qwen3_moe", .options = qwen3_moe_options, .names = moe_names},
    {.model_type = "olmoe", .options = olmoe_options, .names = moe_names}};

}  // namespace detail

ATTN_NAMESPACE_END
