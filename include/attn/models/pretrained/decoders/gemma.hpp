// Gemma, Gemma 2, VaultGemma and Gemma 3 (text).
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attn/models/pretrained/decoders/decoder_type.hpp"

ATTN_NAMESPACE_BEGIN

/// Parameter names of Gemma, whose norms scale by 1 + weight.
inline LoadOptions gemma_names(const std::string& prefix = "model.") {
  LoadOptions names = llama_names(prefix);
  names.add_one = {".input_layernorm.weight", ".post_attention_layernorm.weight",
                   prefix + "norm.weight"};
  return names;
}

/// Parameter names of Gemma 2 and Gemma 3, which also have norms after attention and feed-forward;
/// Gemma 3 has norms of queries and keys.
inline LoadOptions gemma2_names(const std::string& prefix = "model.") {
  LoadOptions names =
      detail::llama_names_but(prefix, {{".norm1_behind.", ".post_attention_layernorm."},
                                       {".norm2_behind.", ".post_feedforward_layernorm."},
                                       {".norm2.", ".pre_feedforward_layernorm."}});
  names.add_one = gemma_names(prefix).add_one;
  names.add_one.insert(names.add_one.end(),
                       {".pre_feedforward_layernorm.weight", ".post_feedforward_layernorm.weight",
                        ".q_norm.weight", ".k_norm.weight"});
  return names;
}

namespace detail {

/// Refuses bidirectional models, which Bert reads.
inline void check_causal(const ConfigFile& config) {
  check_only(config, "use_bidirectional_attention", false, "false");
}

/// The options that all kinds of Gemma share.
inline GptOptions gemma_base_options(const ConfigFile& config, const PretrainedOptions& given) {
  GptOptions options = llama_style_options(
      config, given, {.activation_default = "gelu_pytorch_tanh", .tied = true, .head_dim = 256});
  options.scale_embedding = true;
  const bool bias = config.get<bool>("attention_bias", false);
  set_attention_bias(options, bias, bias);
  // What older files call gelu was always the tanh approximation.
  if (options.layer.activation == Activation::gelu)
    options.layer.activation = Activation::gelu_tanh;
  if (config.has("hidden_activation")) {
    options.layer.activation = activation_of(config, "hidden_activation", "");
  }
  return options;
}

inline GptOptions gemma_options(const ConfigFile& config, const PretrainedOptions& given) {
  check_causal(config);
  return gemma_base_options(config, given);
}

/// Options of Gemma 2 and Gemma 3 except for their windows.
inline GptOptions gemma2_base_options(const ConfigFile& config, const PretrainedOptions& given) {
  GptOptions options = gemma_base_options(config, given);
  options.layer.norm_behind = true;
  const double scalar = config.get<double>("query_pre_attn_scalar", 256);
  if (!(scalar > 0)) config.fail("query_pre_attn_scalar", "be positive", to_string(scalar));
  options.layer.attention.scale = 1 / std::sqrt(scalar);
  return options;
}

inline GptOptions gemma2_options(const ConfigFile& config, const PretrainedOptions& given) {
  check_causal(config);
  GptOptions options = gemma2_base_options(config, given);
  options.layer.attention.softcap = config.get<double>("attn_logit_softcapping");
  options.logit_softcap = config.get<double>("final_logit_softcapping");
  options.windows =
      windows_of(config, options.num_layers, true, [](index_t n) { return n % 2 == 0; });
  // Early files repeat sliding_window.
  if (config.has("sliding_window_size")) {
    check_only(config, "sliding_window_size", config.count("sliding_window", 4096),
               "sliding_window");
  }
  return options;
}

/// Gemma 2 without norms behind attention and feed-forward.
inline GptOptions vaultgemma_options(const ConfigFile& config, const PretrainedOptions& given) {
  GptOptions options = gemma2_options(config, given);
  options.layer.norm_behind = false;
  return options;
}
inline LoadOptions vaultgemma_names(const std::string& prefix, const ConfigFile&) {
  LoadOptions names = llama_names_but(prefix, {{".norm2.", ".pre_feedforward_layernorm."}});
  names.add_one = gemma2_names(prefix).add_one;
  return names;
}

/// Every sliding_window_pattern-th layer sees all keys; the others have a rotary base of their own.
inline GptOptions gemma3_base_options(const ConfigFile& config, const PretrainedOptions& given) {
  GptOptions options = gemma2_base_options(config, given);
  set_query_key_norm(options);
  options.layer.attention.softcap = config.get<double>("attn_logit_softcapping", 0);
  options.logit_softcap = config.get<double>("final_logit_softcapping", 0);
  const index_t pattern =
      config.count("sliding_window_pattern", config.count("_sliding_window_pattern", 6));
  options.windows = windows_of(config, options.num_layers, true,
                               [&](index_t n) { return (n + 1) % pattern != 0; });
  set_rotary_of_kinds(options, config, given, {.theta = 1000000},
                      config.get<double>("rope_local_base_freq", 10000));
  return options;
}

inline GptOptions gemma3_options(const ConfigFile& config, const PretrainedOptions& given) {
  check_causal(config);
  return gemma3_base_options(config, given);
}

inline constexpr DecoderType kGemmaTypes[] = {
    {.model_type = "gemma",
     .options = gemma_options,
     .names = [](const std::string& prefix, const ConfigFile&) { return gemma_names(prefix); }},
    {.model_type = "gemma2",
     .options = gemma2_options,
     .names = [](const std::string& prefix, const ConfigFile&) { return gemma2_names(prefix); }},
    {.model_type = "vaultgemma", .options = vaultgemma_options, .names = vaultgemma_names},
    {.model_type = "gemma3_text",
     .options = gemma3_options,
     .names = [](const std::string& prefix, const ConfigFile&) { return gemma2_names(prefix); }}};

}  // namespace detail

ATTN_NAMESPACE_END
