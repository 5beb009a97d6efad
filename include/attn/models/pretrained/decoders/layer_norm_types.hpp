// Types with layer norms instead of RMS norms: StableLM, StarCoder2, Nemotron, Jais 2.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attn/models/pretrained/decoders/gemma.hpp"
#include "attn/models/pretrained/decoders/llama.hpp"

ATTN_NAMESPACE_BEGIN

namespace detail {

inline GptOptions stablelm_options(const ConfigFile& config, const PretrainedOptions& given) {
  GptOptions options = llama_style_options(
      config, given,
      {.norm_eps = "layer_norm_eps", .default_norm_eps = 1e-5, .rotary = {.partial = 0.25}});
  set_layer_norm(options, true);
  options.layer.parallel = options.layer.shared_norm =
      config.get<bool>("use_parallel_residual", false);
  set_attention_bias(options, config.get<bool>("use_qkv_bias", false), false);
  check_only(config, "qk_layernorm", false, "false");
  return options;
}

inline LoadOptions starcoder2_names(const std::string& prefix, const ConfigFile&) {
  return llama_names_but(prefix, {{".linear1.", ".mlp.c_fc."}, {".linear2.", ".mlp.c_proj."}});
}

inline GptOptions starcoder2_options(const ConfigFile& config, const PretrainedOptions& given) {
  GptOptions options = llama_style_options(config, given,
                                           {.norm_eps = "norm_epsilon",
                                            .default_norm_eps = 1e-5,
                                            .activation_default = "gelu_pytorch_tanh",
                                            .tied = true});
  set_layer_norm(options, true);
  options.layer.gated = false;
  options.layer.bias = config.get<bool>("use_bias", true);
  check_only<std::string>(config, "norm_type", "layer_norm", "layer_norm");
  check_only<std::string>(config, "mlp_type", "default", "default");
  check_only(config, "scale_attn_weights", true, "true");
  // Other names of hidden_act and norm_epsilon, which transformers does not read.
  static_cast<void>(config.has("activation_function"));
  static_cast<void>(config.has("layer_norm_epsilon"));
  options.windows = windows_of(config, options.num_layers, config.has("sliding_window"),
                               [](index_t) { return true; });
  return options;
}

/// Norms that scale by 1 + weight.
inline LoadOptions nemotron_names(const std::string& prefix, const ConfigFile& config) {
  LoadOptions names = up_down_names(prefix, config);
  names.add_one = gemma_names(prefix).add_one;
  return names;
}

inline GptOptions nemotron_options(const ConfigFile& config, const PretrainedOptions& given) {
  GptOptions options = llama_style_options(config, given,
                                           {.norm_eps = "norm_eps",
                                            .default_norm_eps = 1e-5,
                                            .activation_default = "relu2",
                                            .rotary = {.partial = 0.5}});
  check_only(config, "kv_channels", options.layer.attention.head_dim, "head_dim");
  set_layer_norm(options, true);
  options.layer.gated = false;
  options.layer.bias = config.get<bool>("mlp_bias", false);
  const bool bias = config.get<bool>("attention_bias", false);
  set_attention_bias(options, bias, bias);
  return options;
}

inline GptOptions jais2_options(const ConfigFile& config, const PretrainedOptions& given) {
  GptOptions options = llama_style_options(
      config, given,
      {.norm_eps = "layer_norm_eps", .default_norm_eps = 1e-5, .activation_default = "relu2"});
  set_layer_norm(options, true);
  options.layer.gated = false;
  options.layer.bias = config.get<bool>("mlp_bias", true);
  const bool bias = config.get<bool>("attention_bias", true);
  set_attention_bias(options, bias, bias);
  return options;
}

inline constexpr DecoderType kLayerNormTypes[] = {
    {.model_type = "stablelm", .options = stablelm_options},
    {.model_type = "starcoder2", .options = starcoder2_options, .names = starcoder2_names},
    {.model_type = "nemotron", .options = nemotron_options, .names = nemotron_names},
    {.model_type = "jais2", .options = jais2_options, .names = up_down_names}};

}  // namespace detail

ATTN_NAMESPACE_END
