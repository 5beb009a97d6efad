// NomicBERT: BERT with rotary embedding and SwiGLU.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attn/models/pretrained/encoders/encoder_type.hpp"

ATTN_NAMESPACE_BEGIN

namespace detail {

inline LoadOptions nomic_bert_names(const std::string& prefix) {
  return {.prefix = prefix,
          .rename = rename_by({{"embeddings.words.", "embeddings.word_embeddings."},
                               {"embeddings.token_types.", "embeddings.token_type_embeddings."},
                               {"embeddings.norm.", "emb_ln."},
                               {".self_attn.in_proj_", ".attn.Wqkv."},
                               {".self_attn.out_proj.", ".attn.out_proj."},
                               {".gate_proj.", ".mlp.fc12."},
                               {".up_proj.", ".mlp.fc11."},
                               {".down_proj.", ".mlp.fc2."}})};
}

/// Throws ValueError for features of the model's own code that transformers lacks, and marks the
/// other keys of that code as read.
inline void check_nomic_keys(const ConfigFile& config) {
  check_only<std::string>(config, "activation_function", "swiglu", "swiglu");
  for (const std::string_view key :
       {"causal", "parallel_block", "parallel_block_tied_norm", "prenorm", "qkv_proj_bias",
        "mlp_fc1_bias", "mlp_fc2_bias", "rotary_emb_interleaved", "use_rms_norm",
        "scale_attn_by_inverse_layer_idx"}) {
    check_only(config, key, false, "false");
  }
  for (const std::string_view key : {"rotary_emb_scale_base", "rotary_scaling_factor"}) {
    if (config.has(key)) config.fail(key, "be null or missing", "a number");
  }
  check_only(config, "scale_attn_weights", true, "true");
  check_only<double>(config, "rotary_emb_fraction", 1, "1");
  for (const std::string_view key :
       {"dense_seq_output", "fused_bias_fc", "fused_dropout_add_ln", "max_trained_positions",
        "pad_vocab_size_multiple", "use_flash_attn", "use_xentropy"}) {
    static_cast<void>(config.has(key));
  }
}

/// Older files have GPT-2's keys instead of BERT's.
inline BertOptions nomic_bert_options(const ConfigFile& config, const PretrainedOptions& given) {
  check_nomic_keys(config);
  const auto count = [&](std::string_view key, std::string_view old) {
    const index_t value = config.count(config.has(key) ? key : old);
    check_only(config, old, value, key);
    return value;
  };
  const auto number = [&](std::string_view key, std::string_view old, double otherwise) {
    const double value = config.get<double>(config.has(key) ? key : old, otherwise);
    check_only(config, old, value, key);
    return value;
  };
  const index_t dim = count("hidden_size", "n_embd"),
                heads = count("num_attention_heads", "n_head");
  check_heads(config, config.has("n_head") ? "n_head" : "num_attention_heads", dim, heads);
  GptOptions decoder{.vocab_size = config.count("vocab_size"),
                     .num_layers = count("num_hidden_layers", "n_layer"),
                     .positions = Positions::none,
                     .norm = false};
  decoder.layer = {.d_model = dim,
                   .nhead = heads,
                   .dim_feedforward = count("intermediate_size", "n_inner"),
                   .dropout = number("hidden_dropout_prob", "resid_pdrop", 0),
                   .activation = activation_of(config, "hidden_act", "silu"),
                   .layer_norm_eps = number("layer_norm_eps", "layer_norm_epsilon", 1e-12),
                   .bias = false,
                   .norm_bias = true,
                   .gated = true};
  MultiHeadAttentionOptions& attention = decoder.layer.attention;
  attention.head_dim = config.count("head_dim", dim / heads);
  RotaryOptions rotary{.dim = attention.head_dim,
                       .theta = config.get<double>("rotary_emb_base", 1000)};
  if (config.has("max_position_embeddings")) {
    static_cast<void>(config.has("n_positions"));
    rotary = rotary_of(config, given, attention.head_dim, {.theta = rotary.theta});
  } else {
    rotary.max_positions =
        given.max_positions > 0 ? given.max_positions : config.count("n_positions");
  }
  attention.rotary = rotary;
  decoder.max_positions = rotary.max_positions;
  if (given.max_positions == 0) check_config_positions(config, decoder);
  BertOptions options = bidirectional(decoder);
  options.type_vocab_size = config.count("type_vocab_size", 2);
  options.embedding_norm = true;
  return options;
}

inline constexpr EncoderType kNomicBertTypes[] = {{.model_type = "nomic_bert",
                                                   .options = nomic_bert_options,
                                                   .names = nomic_bert_names,
                                                   .prefix = "nomic_bert."}};

}  // namespace detail

ATTN_NAMESPACE_END
