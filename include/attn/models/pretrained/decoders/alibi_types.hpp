// Decoders with ALiBi, BLOOM and MPT, and Falcon.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attn/models/pretrained/decoders/decoder_type.hpp"

ATTN_NAMESPACE_BEGIN

namespace detail {

/// Options of pre-norm layers with layer norms and plain feed-forwards.
inline GptOptions bloom_style_options(const ConfigFile& config, std::string_view layers,
                                      std::string_view heads, std::string_view dim) {
  GptOptions options{.vocab_size = config.count("vocab_size"),
                     .num_layers = config.count(layers),
                     .positions = Positions::none,
                     .tied = config.get<bool>("tie_word_embeddings", true)};
  options.layer = {.d_model = config.count(dim),
                   .nhead = config.count(heads),
                   .dim_feedforward = 4 * config.count(dim),
                   .dropout = 0,
                   .activation = Activation::gelu,
                   .layer_norm_eps = config.get<double>("layer_norm_epsilon", 1e-5),
                   .norm_first = true};
  check_heads(config, heads, options.layer.d_model, options.layer.nhead);
  options.layer.attention.head_dim = options.layer.d_model / options.layer.nhead;
  options.layer.attention.num_kv_heads = options.layer.nhead;
  return options;
}

inline GptOptions bloom_options(const ConfigFile& config, const PretrainedOptions&) {
  GptOptions options = bloom_style_options(config, "n_layer", "n_head", "hidden_size");
  options.embedding_norm = true;
  options.layer.activation = Activation::gelu_tanh;
  options.layer.attention.alibi = true;
  check_only(config, "apply_residual_connection_post_layernorm", false, "false");
  // These keys select how transformers computes the same result.
  static_cast<void>(config.has("slow_but_exact"));
  static_cast<void>(config.has("pretraining_tp"));
  return options;
}

inline LoadOptions bloom_names(const std::string& prefix, const ConfigFile&) {
  return {.rename = rename_by({{"embedding.words.", prefix + "word_embeddings."},
                               {"embedding.norm.", prefix + "word_embeddings_layernorm."},
                               {"blocks.norm.", prefix + "ln_f."},
                               {"blocks.layers.", prefix + "h."},
                               {".self_attn.in_proj_", ".self_attention.query_key_value."},
                               {".self_attn.out_proj.", ".self_attention.dense."},
                               {".norm1.", ".input_layernorm."},
                               {".norm2.", ".post_attention_layernorm."},
                               {".linear1.", ".mlp.dense_h_to_4h."},
                               {".linear2.", ".mlp.dense_4h_to_h."}})};
}

inline GptOptions mpt_options(const ConfigFile& config, const PretrainedOptions& given) {
  GptOptions options = bloom_style_options(config, "n_layers", "n_heads", "d_model");
  check_only<index_t>(config, "expansion_ratio", 4, "4");
  options.layer.bias = false;  // whatever no_bias is
  check_only(config, "no_bias", true, "true");
  check_only(config, "norm_type", std::string("low_precision_layernorm"),
             "low_precision_layernorm");
  check_only(config, "embedding_fraction", 1.0, "1");
  if (config.has("logit_scale")) config.fail("logit_scale", "be null or missing", "a value");
  // MPT uses ALiBi whatever learned_pos_emb is; the other keys concern training.
  for (const char* key : {"learned_pos_emb", "max_seq_len", "emb_pdrop", "init_config",
                          "init_device", "tokenizer_name", "verbose"}) {
    static_cast<void>(config.has(key));
  }
  options.layer.attention.alibi = true;
  if (!config.has("attn_config")) return options;
  const ConfigFile attention = config.object("attn_config");
  check_only(attention, "attn_type", std::string("multihead_attention"), "multihead_attention");
  check_only(attention, "alibi", true, "true");
  check_only(attention, "alibi_bias_max", 8.0, "8");
  check_only(attention, "prefix_lm", false, "false");
  check_only(attention, "qk_ln", false, "false");
  check_only(attention, "attn_uses_sequence_id", false, "false");
  set_clip_qkv(options, attention);
  if (attention.has("softmax_scale")) {
    options.layer.attention.scale = attention.get<double>("softmax_scale");
  }
  static_cast<void>(attention.has("attn_impl"));
  static_cast<void>(attention.has("attn_pdrop"));
  static_cast<void>(attention.has("model_type"));
  check_all_read(attention, given);
  return options;
}

inline LoadOptions mpt_names(const std::string& prefix, const ConfigFile&) {
  return {.rename = rename_by({{"embedding.words.", prefix + "wte."},
                               {"blocks.norm.", prefix + "norm_f."},
                               {"blocks.layers.", prefix + "blocks."},
                               {".self_attn.in_proj_", ".attn.Wqkv."},
                               {".self_attn.out_proj.", ".attn.out_proj."},
                               {".norm1.", ".norm_1."},
                               {".norm2.", ".norm_2."},
                               {".linear1.", ".ffn.up_proj."},
                               {".linear2.", ".ffn.down_proj."}})};
}

/// Whether parallel attention and feed-forward have separate norms.
inline bool falcon_has_two_norms(const ConfigFile& config) {
  const index_t norms =
      config.has("num_ln_in_parallel_attn") ? config.get<index_t>("num_ln_in_parallel_attn") : 2;
  return config.get<bool>("new_decoder_architecture", false) && norms == 2;
}

inline GptOptions falcon_options(const ConfigFile& config, const PretrainedOptions& given) {
  GptOptions options =
      bloom_style_options(config, "num_hidden_layers", "num_attention_heads", "hidden_size");
  const bool is_new = config.get<bool>("new_decoder_architecture", false);
  const bool multi_query = config.get<bool>("multi_query", true);
  options.layer.activation = activation_of(config, "activation", "gelu");
  options.layer.dim_feedforward = config.count("ffn_hidden_size", options.layer.dim_feedforward);
  options.layer.parallel = config.get<bool>("parallel_attn", true) || is_new;
  options.layer.shared_norm = options.layer.parallel && !falcon_has_two_norms(config);
  options.layer.bias = config.get<bool>("bias", false);
  options.layer.norm_bias = true;
  // transformers rounds the biases of ALiBi to bfloat16.
  check_only(config, "alibi", false, "false");
  MultiHeadAttentionOptions& attention = options.layer.attention;
  const index_t kv_heads = config.count("num_kv_heads", options.layer.nhead);
  attention.num_kv_heads = is_new ? kv_heads : multi_query ? 1 : options.layer.nhead;
  if (options.layer.nhead % attention.num_kv_heads != 0) {
    config.fail("num_kv_heads", concat("divide num_attention_heads = ", options.layer.nhead),
                std::to_string(kv_heads));
  }
  if (attention.head_dim % 2 != 0) {
    config.fail("num_attention_heads", "give even heads, because rotary embeddings rotate pairs",
                std::to_string(options.layer.nhead));
  }
  attention.rotary = rotary_of(config, given, attention.head_dim, {});
  options.max_positions = attention.rotary->max_positions;
  return options;
}

inline LoadOptions falcon_names(const std::string& prefix, const ConfigFile& config) {
  LoadOptions names = bloom_names(prefix, config);
  if (falcon_has_two_norms(config)) {
    names.rename = [own = rename_by({{".norm1.", ".ln_attn."}, {".norm2.", ".ln_mlp."}}),
                    others = names.rename](std::string_view name) { return others(own(name)); };
  }
  return names;
}

inline constexpr DecoderType kAlibiTypes[] = {{.model_type = "bloom",
                                               .options = bloom_options,
                                               .names = bloom_names,
                                               .prefix = "transformer.",
                                               .words = "word_embeddings.weight",
                                               .qkv_by_head = true},
                                              {.model_type = "mpt",
                                               .options = mpt_options,
                                               .names = mpt_names,
                                               .prefix = "transformer.",
                                               .words = "wte.weight"},
                                              {.model_type = "falcon",
                                               .options = falcon_options,
                                               .names = falcon_names,
                                               .prefix = "transformer.",
                                               .words = "word_embeddings.weight",
                                               .qkv_by_head = true}};

}  // namespace detail

ATTN_NAMESPACE_END
