// ModernBERT: windows in most layers, rotary embedding, GeGLU.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attn/models/pretrained/encoders/encoder_type.hpp"

ATTN_NAMESPACE_BEGIN

namespace detail {

inline LoadOptions modernbert_names(const std::string& prefix) {
  return {.prefix = prefix,
          .rename = rename_by({{"embeddings.words.", "embeddings.tok_embeddings."},
                               {"encoder.norm.", "final_norm."},
                               {"encoder.layers.", "layers."},
                               {".self_attn.in_proj_", ".attn.Wqkv."},
                               {".self_attn.out_proj.", ".attn.Wo."},
                               {".norm1.", ".attn_norm."},
                               {".norm2.", ".mlp_norm."},
                               {".gate_up_proj.", ".mlp.Wi."},
                               {".down_proj.", ".mlp.Wo."}})};
}

/// Every global_attn_every_n_layers-th layer sees all tokens; the others see local_attention / 2
/// tokens on each side and have a rotary base of their own. The first attention has no norm.
inline BertOptions modernbert_options(const ConfigFile& config, const PretrainedOptions& given) {
  for (const std::string_view key : {"rope_theta", "head_dim", "num_key_value_heads"}) {
    if (config.has(key)) config.fail(key, "be missing", "one");
  }
  for (const std::string_view key : {"layer_norm_eps", "position_embedding_type"}) {
    static_cast<void>(config.has(key));  // of BERT, without effect here
  }
  const double local_theta = config.get<double>("local_rope_theta", 10000);
  GptOptions decoder =
      llama_style_options(config, given,
                          {.norm_eps = "norm_eps",
                           .default_norm_eps = 1e-5,
                           .activation = "hidden_activation",
                           .activation_default = "gelu",
                           .rotary = {.theta = config.get<double>("global_rope_theta", 160000)}});
  const RotaryOptions global = *decoder.layer.attention.rotary;
  RotaryOptions local = rotary_of(config, given, decoder.layer.attention.head_dim,
                                  {.theta = local_theta}, "sliding_attention");
  local.max_positions = global.max_positions;
  const index_t pattern = config.count("global_attn_every_n_layers", 3);
  decoder.windows =
      windows_of_size(config, decoder.num_layers, config.count("local_attention", 128) / 2,
                      [&](index_t n) { return n % pattern != 0; });
  set_rotary_by_window(decoder, local, global);
  set_layer_norm(decoder, config.get<bool>("norm_bias", false));
  const bool bias = config.get<bool>("attention_bias", false);
  set_attention_bias(decoder, bias, bias);
  decoder.layer.bias = config.get<bool>("mlp_bias", false);
  decoder.layer.joint_gate = true;
  decoder.layer.attention.separate_in_proj = false;
  BertOptions options = bidirectional(decoder);
  options.embedding_norm = true;
  options.embedding_norm_bias = *decoder.layer.norm_bias;
  options.encoder.first_norm = false;
  return options;
}

inline constexpr EncoderType kModernBertTypes[] = {{.model_type = "modernbert",
                                                    .options = modernbert_options,
                                                    .names = modernbert_names,
                                                    .prefix = "model.",
                                                    .words = "embeddings.tok_embeddings.weight"}};

}  // namespace detail

ATTN_NAMESPACE_END
