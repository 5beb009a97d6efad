// DistilBERT.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attn/models/pretrained/encoders/encoder_type.hpp"

ATTN_NAMESPACE_BEGIN

/// Parameter names of DistilBERT, with the prefix "distilbert." in files with a head.
inline LoadOptions distilbert_names(const std::string& prefix = "") {
  return {.prefix = prefix,
          .rename = rename_by({{"embeddings.words.", "embeddings.word_embeddings."},
                               {"embeddings.positions.", "embeddings.position_embeddings."},
                               {"embeddings.norm.", "embeddings.LayerNorm."},
                               {"encoder.layers.", "transformer.layer."},
                               {".self_attn.q_proj_", ".attention.q_lin."},
                               {".self_attn.k_proj_", ".attention.k_lin."},
                               {".self_attn.v_proj_", ".attention.v_lin."},
                               {".self_attn.out_proj.", ".attention.out_lin."},
                               {".norm1.", ".sa_layer_norm."},
                               {".linear1.", ".ffn.lin1."},
                               {".linear2.", ".ffn.lin2."},
                               {".norm2.", ".output_layer_norm."}}),
          .ignore = {"embeddings.position_ids"}};
}

namespace detail {

inline BertOptions distilbert_options(const ConfigFile& config, const PretrainedOptions&) {
  // Sinusoidal positions are stored like learned ones.
  static_cast<void>(config.get<bool>("sinusoidal_pos_embds", false));
  const BertOptions options{.vocab_size = config.count("vocab_size"),
                            .hidden_size = config.count("dim"),
                            .num_hidden_layers = config.count("n_layers"),
                            .num_attention_heads = config.count("n_heads"),
                            .intermediate_size = config.count("hidden_dim"),
                            .max_position_embeddings = config.count("max_position_embeddings"),
                            .type_vocab_size = 0,
                            .hidden_act = activation_of(config, "activation", "gelu"),
                            .hidden_dropout_prob = config.get<double>("dropout", 0.1)};
  check_heads(config, "n_heads", options.hidden_size, options.num_attention_heads);
  return options;
}

inline constexpr EncoderType kDistilBertTypes[] = {{.model_type = "distilbert",
                                                    .options = distilbert_options,
                                                    .names = distilbert_names,
                                                    .prefix = "distilbert."}};

}  // namespace detail

ATTN_NAMESPACE_END
