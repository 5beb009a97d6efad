// OLMo 1 to 3 and EXAONE 4; all but OLMo 1 normalise the outputs of attention and feed-forward.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attn/models/pretrained/decoders/decoder_type.hpp"

ATTN_NAMESPACE_BEGIN

namespace detail {

/// Layer norms without parameters: those of the module stay 1.
inline LoadOptions olmo_names(const std::string& prefix, const ConfigFile&) {
  LoadOptions names = llama_names(prefix);
  names.optional = {".input_layernorm.weight", ".post_attention_layernorm.weight",
                    prefix + "norm.weight"};
  return names;
}

inline GptOptions olmo_options(const ConfigFile& config, const PretrainedOptions& given) {
  GptOptions options = llama_style_options(config, given);
  set_layer_norm(options, false);
  options.layer.layer_norm_eps = 1e-5;
  const bool bias = config.get<bool>("attention_bias", false);
  set_attention_bias(options, bias, bias);
  set_clip_qkv(options, config);
  return options;
}

inline LoadOptions olmo2_names(const std::string& prefix, const ConfigFile&) {
  return llama_names_but(prefix, {{".norm1_behind.", ".post_attention_layernorm."},
                                  {".norm2_behind.", ".post_feedforward_layernorm."}});
}

inline GptOptions olmo_style_options(const ConfigFile& config, const PretrainedOptions& given,
                                     const DecoderKeys& keys) {
  GptOptions options = llama_style_options(config, given, keys);
  options.layer.norm_first = false;
  options.layer.norm_behind = true;
  const bool bias = config.get<bool>("attention_bias", false);
  set_attention_bias(options, bias, bias);
  set_query_key_norm(options);
  return options;
}

inline GptOptions olmo2_options(const ConfigFile& config, const PretrainedOptions& given) {
  GptOptions options = olmo_style_options(config, given, {.default_norm_eps = 1e-5});
  options.layer.attention.query_key_norm_of_all_heads = true;
  return options;
}

/// Every fourth layer sees all keys; rope_scaling applies to these alone.
inline GptOptions olmo3_options(const ConfigFile& config, const PretrainedOptions& given) {
  GptOptions options = olmo2_options(config, given);
  options.windows =
      windows_of(config, options.num_layers, true, [](index_t n) { return (n + 1) % 4 != 0; });
  set_rotary_of_kinds(options, config, given, {.theta = 500000});
  return options;
}

/// Whether layer n has a window. sliding_window_pattern p stands for all but every p-th layer, a
/// text such as "LLLG" for a window at each L.
inline bool exaone4_slides(const ConfigFile& config, index_t n) {
  constexpr std::string_view kKey = "sliding_window_pattern";
  if (!config.holds_text(kKey)) return (n + 1) % config.count(kKey, 4) != 0;
  const auto pattern = config.get<std::string>(kKey);
  if (pattern.empty() || pattern.find_first_not_of("LG") != pattern.npos) {
    config.fail(kKey, "be a number or a text of L and G", quote(pattern));
  }
  return pattern[static_cast<std::size_t>(n) % pattern.size()] == 'L';
}

/// With windows, only layers that have one have a rotary embedding.
inline GptOptions exaone4_options(const ConfigFile& config, const PretrainedOptions& given) {
  GptOptions options = olmo_style_options(config, given, {.default_norm_eps = 1e-5});
  const bool slides = config.has("sliding_window");
  options.windows = windows_of(config, options.num_layers, slides,
                               [&](index_t n) { return slides && exaone4_slides(config, n); });
  // Without sliding_window the pattern has no effect.
  static_cast<void>(config.has("sliding_window_pattern"));
  if (slides) set_rotary_by_window(options, options.layer.attention.rotary, std::nullopt);
  return options;
}

inline constexpr DecoderType kOlmoTypes[] = {
    {.model_type = "olmo", .options = olmo_options, .names = olmo_names},
    {.model_type = "olmo2", .options = olmo2_options, .names = olmo2_names},
    {.model_type = "olmo3", .options = olmo3_options, .names = olmo2_names},
    {.model_type = "exaone4", .options = exaone4_options, .names = olmo2_names}};

}  // namespace detail

ATTN_NAMESPACE_END
