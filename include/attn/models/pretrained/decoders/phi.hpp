// Phi (parallel, biases everywhere) and Phi 3 (joint projections).
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attn/models/pretrained/decoders/decoder_type.hpp"

ATTN_NAMESPACE_BEGIN

namespace detail {

inline LoadOptions phi_names(const std::string& prefix, const ConfigFile&) {
  return llama_names_but(prefix, {{"blocks.norm.", prefix + "final_layernorm."},
                                  {".self_attn.out_proj.", ".self_attn.dense."},
                                  {".linear1.", ".mlp.fc1."},
                                  {".linear2.", ".mlp.fc2."}});
}

inline GptOptions phi_options(const ConfigFile& config, const PretrainedOptions& given) {
  GptOptions options = llama_style_options(config, given,
                                           {.norm_eps = "layer_norm_eps",
                                            .default_norm_eps = 1e-5,
                                            .activation_default = "gelu_new",
                                            .rotary = {.partial = 0.5}});
  set_layer_norm(options, true);
  options.layer.parallel = options.layer.shared_norm = true;
  options.layer.gated = false;
  options.layer.bias = options.head_bias = true;
  check_only(config, "qk_layernorm", false, "false");
  return options;
}

inline LoadOptions phi3_names(const std::string& prefix, const ConfigFile&) {
  return llama_names_but(prefix, {{".self_attn.in_proj_", ".self_attn.qkv_proj."}});
}

inline GptOptions phi3_options(const ConfigFile& config, const PretrainedOptions& given) {
  GptOptions options =
      llama_style_options(config, given, {.default_norm_eps = 1e-5, .rotary = {.partial = 1}});
  options.layer.joint_gate = true;
  options.layer.attention.separate_in_proj = false;
  options.windows = windows_of(config, options.num_layers, config.has("sliding_window"),
                               [](index_t) { return true; });
  // Keys of Phi-4-mini: only these values are known.
  check_only<index_t>(config, "full_attn_mod", 1, "1");
  check_only<index_t>(config, "interpolate_factor", 1, "1");
  check_only(config, "lm_head_bias", false, "false");
  // Used by rotary scaling, which rope_scaling describes.
  if (config.has("original_max_position_embeddings")) {
    static_cast<void>(config.count("original_max_position_embeddings"));
  }
  return options;
}

inline constexpr DecoderType kPhiTypes[] = {
    {.model_type = "phi", .options = phi_options, .names = phi_names},
    {.model_type = "phi3", .options = phi3_options, .names = phi3_names}};

}  // namespace detail

ATTN_NAMESPACE_END
