// GPT-2, GPT-J, GPT-NeoX and OPT: names and options of their own.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attn/models/pretrained/decoders/decoder_type.hpp"

ATTN_NAMESPACE_BEGIN

/// Parameter names of GPT-2, whose linear weights are stored (in, out), with q, k and v as one.
/// Files of the model without its head have no prefix.
inline LoadOptions gpt2_names(const std::string& prefix = "transformer.") {
  return {.rename = rename_by({{"embedding.words.", prefix + "wte."},
                               {"embedding.positions.", prefix + "wpe."},
                               {"blocks.norm.", prefix + "ln_f."},
                               {"blocks.layers.", prefix + "h."},
                               {".self_attn.in_proj_", ".attn.c_attn."},
                               {".self_attn.out_proj.", ".attn.c_proj."},
                               {".norm1.", ".ln_1."},
                               {".norm2.", ".ln_2."},
                               {".linear1.", ".mlp.c_fc."},
                               {".linear2.", ".mlp.c_proj."}}),
          .ignore = {".attn.bias", ".attn.masked_bias"},
          .transpose = {".c_attn.weight", ".c_proj.weight", ".c_fc.weight"}};
}

namespace detail {

/// Options by the keys of GPT-2 and GPT-J.
inline GptOptions gpt2_style_options(const ConfigFile& config, bool tied) {
  const index_t dim = config.count("n_embd"), heads = config.count("n_head");
  check_heads(config, "n_head", dim, heads);
  if (config.has("n_ctx")) static_cast<void>(config.count("n_ctx"));  // the name in old files
  GptOptions options{.vocab_size = config.count("vocab_size"),
                     .num_layers = config.count("n_layer"),
                     .max_positions = config.count("n_positions"),
                     .tied = config.get<bool>("tie_word_embeddings", tied)};
  options.layer = {.d_model = dim,
                   .nhead = heads,
                   .dim_feedforward = config.count("n_inner", 4 * dim),
                   .dropout = config.get<double>("resid_pdrop", 0.1),
                   .activation = activation_of(config, "activation_function", "gelu_new"),
                   .layer_norm_eps = config.get<double>("layer_norm_epsilon", 1e-5),
                   .norm_first = true};
  if (!config.get<bool>("scale_attn_weights", true)) options.layer.attention.scale = 1;
  return options;
}

inline GptOptions gpt2_options(const ConfigFile& config, const PretrainedOptions&) {
  check_only(config, "add_cross_attention", false, "false");
  check_only(config, "scale_attn_by_inverse_layer_idx", false, "false");
  return gpt2_style_options(config, true);
}

inline LoadOptions gptj_names(const std::string& prefix, const ConfigFile&) {
  return {.rename = rename_by({{"embedding.words.", prefix + "wte."},
                               {"blocks.norm.", prefix + "ln_f."},
                               {"blocks.layers.", prefix + "h."},
                               {".self_attn.q_proj_", ".attn.q_proj."},
                               {".self_attn.k_proj_", ".attn.k_proj."},
                               {".self_attn.v_proj_", ".attn.v_proj."},
                               {".self_attn.out_proj.", ".attn.out_proj."},
                               {".norm1.", ".ln_1."},
                               {".linear1.", ".mlp.fc_in."},
                               {".linear2.", ".mlp.fc_out."}}),
          .ignore = {".attn.bias", ".attn.masked_bias"}};
}

inline GptOptions gptj_options(const ConfigFile& config, const PretrainedOptions& given) {
  check_only(config, "rotary", true, "true");
  check_only(config, "scale_attn_weights", true, "true");
  GptOptions options = gpt2_style_options(config, false);
  options.positions = Positions::none;
  options.head_bias = true;
  options.layer.parallel = options.layer.shared_norm = true;
  if (given.max_positions > 0) options.max_positions = given.max_positions;
  MultiHeadAttentionOptions& attention = options.layer.attention;
  set_attention_bias(options, false, false);
  attention.separate_in_proj = true;
  attention.head_dim = options.layer.d_model / options.layer.nhead;
  const index_t dim = config.count("rotary_dim", 64);
  if (dim > attention.head_dim || dim % 2 != 0) {
    config.fail("rotary_dim", concat("be even and at most ", attention.head_dim),
                std::to_string(dim));
  }
  attention.rotary = RotaryOptions{
      .dim = dim, .pairs = RotaryPairs::interleaved, .max_positions = options.max_positions};
  return options;
}

inline LoadOptions gpt_neox_names(const std::string& prefix, const ConfigFile&) {
  return {.rename = rename_by({{"lm_head.", "embed_out."},
                               {"embedding.words.", prefix + "embed_in."},
                               {"blocks.norm.", prefix + "final_layer_norm."},
                               {"blocks.layers.", prefix + "layers."},
                               {".self_attn.in_proj_", ".attention.query_key_value."},
                               {".self_attn.out_proj.", ".attention.dense."},
                               {".norm1.", ".input_layernorm."},
                               {".norm2.", ".post_attention_layernorm."},
                               {".linear1.", ".mlp.dense_h_to_4h."},
                               {".linear2.", ".mlp.dense_4h_to_h."}}),
          .ignore = {".attention.bias", ".attention.masked_bias", ".rotary_emb.inv_freq"}};
}

inline GptOptions gpt_neox_options(const ConfigFile& config, const PretrainedOptions& given) {
  const RotaryDefaults rotary{.theta = config.get<double>("rotary_emb_base", 10000),
                              .partial = config.get<double>("rotary_pct", 0.25)};
  GptOptions options = llama_style_options(config, given,
                                           {.norm_eps = "layer_norm_eps",
                                            .default_norm_eps = 1e-5,
                                            .activation_default = "gelu",
                                            .rotary = rotary});
  check_only(config, "num_key_value_heads", options.layer.nhead, "num_attention_heads");
  set_layer_norm(options, true);
  options.layer.gated = false;
  options.layer.bias = true;
  options.layer.parallel = config.get<bool>("use_parallel_residual", true);
  options.layer.attention.separate_in_proj = false;
  const bool bias = config.get<bool>("attention_bias", true);
  set_attention_bias(options, bias, bias);
  static_cast<void>(config.get<bool>("is_decoder", false));  // has no effect on this model
  return options;
}

inline LoadOptions opt_names(const std::string& prefix, const ConfigFile&) {
  return {.rename = rename_by({{"embedding.words.", prefix + "embed_tokens."},
                               {"embedding.positions.", prefix + "embed_positions."},
                               {"blocks.norm.", prefix + "final_layer_norm."},
                               {"blocks.layers.", prefix + "layers."},
                               {".self_attn.q_proj_", ".self_attn.q_proj."},
                               {".self_attn.k_proj_", ".self_attn.k_proj."},
                               {".self_attn.v_proj_", ".self_attn.v_proj."},
                               {".norm1.", ".self_attn_layer_norm."},
                               {".norm2.", ".final_layer_norm."},
                               {".linear1.", ".fc1."},
                               {".linear2.", ".fc2."}})};
}

inline GptOptions opt_options(const ConfigFile& config, const PretrainedOptions&) {
  const index_t dim = config.count("hidden_size"), heads = config.count("num_attention_heads");
  check_heads(config, "num_attention_heads", dim, heads);
  check_only(config, "word_embed_proj_dim", dim, "hidden_size");
  check_only(config, "layer_norm_elementwise_affine", true, "true");
  const bool norm_first = config.get<bool>("do_layer_norm_before", true);
  GptOptions options{.vocab_size = config.count("vocab_size"),
                     .num_layers = config.count("num_hidden_layers"),
                     .max_positions = config.count("max_position_embeddings"),
                     .position_offset = 2,
                     .norm = norm_first && !config.get<bool>("_remove_final_layer_norm", false),
                     .tied = config.get<bool>("tie_word_embeddings", true)};
  options.layer = {.d_model = dim,
                   .nhead = heads,
                   .dim_feedforward = config.count("ffn_dim"),
                   .dropout = config.get<double>("dropout", 0.1),
                   .activation = activation_of(config, "activation_function", "relu"),
                   .norm_first = norm_first,
                   .bias = config.get<bool>("enable_bias", true),
                   .norm_bias = true};
  options.layer.attention.separate_in_proj = true;
  return options;
}

inline constexpr DecoderType kGptTypes[] = {
    {.model_type = "gpt2",
     .options = gpt2_options,
     .names = [](const std::string& prefix, const ConfigFile&) { return gpt2_names(prefix); },
     .prefix = "transformer.",
     .words = "wte.weight"},
    {.model_type = "gptj",
     .options = gptj_options,
     .names = gptj_names,
     .prefix = "transformer.",
     .words = "wte.weight"},
    {.model_type = "gpt_neox",
     .options = gpt_neox_options,
     .names = gpt_neox_names,
     .prefix = "gpt_neox.",
     .words = "embed_in.weight",
     .head = "embed_out.weight",
     .qkv_by_head = true},
    {.model_type = "opt", .options = opt_options, .names = opt_names, .prefix = "model.decoder."}};

}  // namespace detail

ATTN_NAMESPACE_END
