// LFM2: short convolutions in most layers, attention in the others.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attn/models/pretrained/decoders/recurrent.hpp"

ATTN_NAMESPACE_BEGIN

namespace detail {

/// layer_types, or full_attn_idxs in older files; with neither, every layer has attention.
inline std::vector<TokenMixer> lfm2_mixers(const ConfigFile& config, index_t layers) {
  std::vector<TokenMixer> mixers(static_cast<std::size_t>(layers), TokenMixer::attention);
  const bool has_types = config.has("layer_types"), has_indices = config.has("full_attn_idxs");
  if (has_indices) {
    std::fill(mixers.begin(), mixers.end(), TokenMixer::short_convolution);
    for (const index_t n : config.indices("full_attn_idxs")) {
      if (n >= layers) {
        config.fail("full_attn_idxs", concat("lie in 0 .. ", layers - 1), std::to_string(n));
      }
      mixers[static_cast<std::size_t>(n)] = TokenMixer::attention;
    }
  }
  if (!has_types) return mixers;
  const auto types = mixers_of(config, layers, "conv", TokenMixer::short_convolution);
  if (has_indices && types != mixers) {
    config.fail("full_attn_idxs", "agree with layer_types", "others");
  }
  return types;
}

/// The size of the feed-forward: two thirds of the config's, times a factor, rounded up.
inline index_t lfm2_feed_forward(const ConfigFile& config, index_t size) {
  if (!config.get<bool>("block_auto_adjust_ff_dim", true)) return size;
  size = 2 * size / 3;
  constexpr const char* kFactor = "block_ffn_dim_multiplier";
  if (!config.has(kFactor) && !config.lacks(kFactor)) return size;
  const auto factor = config.get<double>(kFactor, 1);
  const index_t multiple = config.count("block_multiple_of", 256);
  const double scaled = std::floor(factor * static_cast<double>(size));
  if (!(scaled >= 1 && scaled <= 1 << 24)) {
    config.fail(kFactor, "give a size of 1 .. 2^24", attn::to_string(scaled));
  }
  return (static_cast<index_t>(scaled) + multiple - 1) / multiple * multiple;
}

inline GptOptions lfm2_options(const ConfigFile& config, const PretrainedOptions& given) {
  // Older files have other names for some keys.
  const bool is_old = config.has("block_ff_dim");
  if (is_old) static_cast<void>(config.has("intermediate_size"));
  GptOptions options =
      llama_style_options(config, given,
                          {.norm_eps = "norm_eps",
                           .default_norm_eps = 1e-5,
                           .dim_feedforward = is_old ? "block_ff_dim" : "intermediate_size",
                           .tied = true,
                           .rotary = {.theta = 1000000}});
  options.tied = config.get<bool>("tie_embedding", options.tied);
  TransformerLayerOptions& layer = options.layer;
  check_only<std::string>(config, "hidden_act", "silu", "silu");
  set_query_key_norm(options);
  layer.dim_feedforward = lfm2_feed_forward(config, layer.dim_feedforward);
  options.mixers = lfm2_mixers(config, options.num_layers);
  layer.convolution = {.width = config.count("conv_L_cache", 3),
                       .bias = config.get<bool>("conv_bias", false)};
  if (layer.convolution.width < 2) config.fail("conv_L_cache", "be at least 2", "1");
  for (const char* width : {"block_dim", "conv_dim", "conv_dim_out"}) {
    check_only(config, width, layer.d_model, "hidden_size");
  }
  check_only(config, "num_heads", layer.nhead, "num_attention_heads");
  check_only(config, "block_norm_eps", layer.layer_norm_eps, "norm_eps");
  check_only(config, "block_use_swiglu", true, "true");
  check_only(config, "use_pos_enc", true, "true");
  for (const char* of_initialization : {"block_mlp_init_scale", "block_out_init_scale",
                                        "block_use_xavier_init", "conv_use_xavier_init"}) {
    static_cast<void>(config.has(of_initialization));
  }
  return options;
}

inline LoadOptions lfm2_names(const std::string& prefix, const ConfigFile&) {
  return {.rename = rename_by({{"embedding.words.", prefix + "embed_tokens."},
                               {"blocks.norm.", prefix + "embedding_norm."},
                               {"blocks.layers.", prefix + "layers."},
                               {".self_attn.q_proj_", ".self_attn.q_proj."},
                               {".self_attn.k_proj_", ".self_attn.k_proj."},
                               {".self_attn.v_proj_", ".self_attn.v_proj."},
                               {".q_norm.", ".q_layernorm."},
                               {".k_norm.", ".k_layernorm."},
                               {".short_conv.", ".conv."},
                               {".norm1.", ".operator_norm."},
                               {".norm2.", ".ffn_norm."},
                               {".gate_proj.", ".feed_forward.w1."},
                               {".up_proj.", ".feed_forward.w3."},
                               {".down_proj.", ".feed_forward.w2."}})};
}

inline constexpr DecoderType kLfm2Types[] = {
    {.model_type = "lfm2", .options = lfm2_options, .names = lfm2_names}};

}  // namespace detail

ATTN_NAMESPACE_END
