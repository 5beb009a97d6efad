// Llama and types that differ in few options: Mistral, Qwen, Arcee, SmolLM3, Seed-OSS, Ernie, CWM.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attn/models/pretrained/decoders/decoder_type.hpp"

ATTN_NAMESPACE_BEGIN

namespace detail {

inline GptOptions llama_options(const ConfigFile& config, const PretrainedOptions& given) {
  GptOptions options = llama_style_options(config, given);
  options.layer.bias = config.get<bool>("mlp_bias", false);
  const bool bias = config.get<bool>("attention_bias", false);
  set_attention_bias(options, bias, bias);
  return options;
}

inline GptOptions mistral_options(const ConfigFile& config, const PretrainedOptions& given) {
  GptOptions options = llama_style_options(config, given);
  options.windows = windows_of(config, options.num_layers, true, [](index_t) { return true; });
  return options;
}

/// Queries are scaled by a factor that grows with their position.
inline GptOptions ministral3_options(const ConfigFile& config, const PretrainedOptions& given) {
  if (!config.has("rope_parameters") && !config.has("rope_scaling")) {
    config.fail("rope_parameters", "be given", "none");
  }
  GptOptions options = llama_style_options(
      config, given,
      {.default_norm_eps = 1e-5, .head_dim = 128, .rotary = {.scales_queries = true}});
  if (config.has("sliding_window")) options.windows = {config.count("sliding_window") - 1};
  return options;
}

/// Windows of Qwen's types: from layer max_window_layers on, if use_sliding_window.
inline std::vector<index_t> qwen_windows(const ConfigFile& config, index_t num_layers,
                                         bool by_default) {
  const index_t first =
      config.has("max_window_layers") ? config.get<index_t>("max_window_layers") : 28;
  const bool slides = config.get<bool>("use_sliding_window", by_default);
  // Without use_sliding_window its size has no effect.
  static_cast<void>(config.has("sliding_window"));
  return windows_of(config, num_layers, slides, [&](index_t n) { return n >= first; });
}

inline GptOptions qwen2_options(const ConfigFile& config, const PretrainedOptions& given) {
  GptOptions options = llama_style_options(config, given);
  set_attention_bias(options, true, false);
  options.windows = qwen_windows(config, options.num_layers, false);
  return options;
}

inline GptOptions qwen3_options(const ConfigFile& config, const PretrainedOptions& given) {
  GptOptions options = llama_style_options(config, given, {.head_dim = 128});
  const bool bias = config.get<bool>("attention_bias", false);
  set_attention_bias(options, bias, bias);
  set_query_key_norm(options);
  options.windows = qwen_windows(config, options.num_layers, false);
  return options;
}

/// relu(x)^2 between two plain linear layers.
inline GptOptions arcee_options(const ConfigFile& config, const PretrainedOptions& given) {
  GptOptions options =
      llama_style_options(config, given, {.default_norm_eps = 1e-5, .activation_default = "relu2"});
  options.layer.gated = false;
  options.layer.bias = config.get<bool>("mlp_bias", false);
  const bool bias = config.get<bool>("attention_bias", false);
  set_attention_bias(options, bias, bias);
  return options;
}
inline LoadOptions up_down_names(const std::string& prefix, const ConfigFile&) {
  return llama_names_but(prefix, {{".linear1.", ".up_proj."}, {".linear2.", ".down_proj."}});
}

/// Every no_rope_layer_interval-th layer has no rotary embedding.
inline GptOptions smollm3_options(const ConfigFile& config, const PretrainedOptions& given) {
  GptOptions options =
      llama_style_options(config, given, {.tied = true, .rotary = {.theta = 2000000}});
  options.layer.bias = config.get<bool>("mlp_bias", false);
  const bool bias = config.get<bool>("attention_bias", false);
  set_attention_bias(options, bias, bias);
  options.windows = qwen_windows(config, options.num_layers, false);
  const index_t interval = config.count("no_rope_layer_interval", 4);
  std::vector<index_t> rotated(static_cast<std::size_t>(options.num_layers), 1);
  for (std::size_t n = 0; n < rotated.size(); ++n) {
    rotated[n] = (n + 1) % static_cast<std::size_t>(interval) != 0;
  }
  if (config.has("no_rope_layers")) rotated = config.indices("no_rope_layers");
  if (std::ssize(rotated) != options.num_layers) {
    config.fail("no_rope_layers", concat("be one per layer, ", options.num_layers),
                std::to_string(rotated.size()));
  }
  for (const index_t rotates : rotated) {
    options.rotary.push_back(rotates != 0 ? options.layer.attention.rotary : std::nullopt);
  }
  return options;
}

inline GptOptions seed_oss_options(const ConfigFile& config, const PretrainedOptions& given) {
  GptOptions options = llama_style_options(config, given, {.head_dim = 128});
  options.layer.bias = config.get<bool>("mlp_bias", false);
  set_attention_bias(options, config.get<bool>("attention_bias", true),
                     config.get<bool>("attention_out_bias", false));
  return options;
}

inline GptOptions ernie_options(const ConfigFile& config, const PretrainedOptions& given) {
  GptOptions options =
      llama_style_options(config, given,
                          {.default_norm_eps = 1e-5,
                           .tied = true,
                           .head_dim = 128,
                           .rotary = {.theta = 500000, .pairs = RotaryPairs::interleaved}});
  options.layer.bias = config.get<bool>("use_bias", false);
  return options;
}

/// Every fourth layer, from the first on, sees all keys.
inline GptOptions cwm_options(const ConfigFile& config, const PretrainedOptions& given) {
  // Without these keys transformers scales as llama3, with windows of 8192.
  if (!config.has("rope_parameters") && !config.has("rope_scaling")) {
    config.fail("rope_parameters", "be given", "none");
  }
  GptOptions options = llama_style_options(
      config, given, {.default_norm_eps = 1e-5, .head_dim = 128, .rotary = {.theta = 1000000}});
  options.layer.bias = config.get<bool>("mlp_bias", false);
  options.windows = windows_of_size(config, options.num_layers, config.count("sliding_window") - 1,
                                    [](index_t n) { return n % 4 != 0; });
  return options;
}

inline constexpr DecoderType kLlamaTypes[] = {
    {.model_type = "llama", .options = llama_options},
    {.model_type = "mistral", .options = mistral_options},
    {.model_type = "ministral3", .options = ministral3_options},
    {.model_type = "qwen2", .options = qwen2_options},
    {.model_type = "qwen3", .options = qwen3_options},
    {.model_type = "arcee", .options = arcee_options, .names = up_down_names},
    {.model_type = "smollm3", .options = smollm3_options},
    {.model_type = "seed_oss", .options = seed_oss_options},
    {.model_type = "ernie4_5", .options = ernie_options},
    {.model_type = "cwm", .options = cwm_options}};

}  // namespace detail

ATTN_NAMESPACE_END
