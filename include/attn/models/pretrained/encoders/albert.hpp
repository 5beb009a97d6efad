// ALBERT: BERT with narrow embeddings and layers that share weights.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attn/models/pretrained/encoders/encoder_type.hpp"

ATTN_NAMESPACE_BEGIN

namespace detail {

inline LoadOptions albert_names(const std::string& prefix) {
  LoadOptions names = bert_names_but(prefix, {});
  const auto own = rename_by({{"encoder.layers.", "encoder.albert_layer_groups."},
                              {".self_attn.", ".albert_layers.0.self_attn."},
                              {".linear", ".albert_layers.0.linear"},
                              {".norm", ".albert_layers.0.norm"},
                              {".self_attn.q_proj_", ".attention.query."},
                              {".self_attn.k_proj_", ".attention.key."},
                              {".self_attn.v_proj_", ".attention.value."},
                              {".self_attn.out_proj.", ".attention.dense."},
                              {".norm1.", ".attention.LayerNorm."},
                              {".linear1.", ".ffn."},
                              {".linear2.", ".ffn_output."},
                              {".norm2.", ".full_layer_layer_norm."}});
  names.rename = [own](std::string_view name) {
    if (name.starts_with("projection.")) {
      return "encoder.embedding_hidden_mapping_in." + std::string(name.substr(11));
    }
    return name.starts_with("embeddings.") ? bert_name(name) : own(name);
  };
  return names;
}

/// num_hidden_groups layers have weights of their own.
inline BertOptions albert_options(const ConfigFile& config, const PretrainedOptions&) {
  BertOptions options = bert_style_options(config);
  options.hidden_act = activation_of(config, "hidden_act", "gelu_new");
  options.hidden_dropout_prob = config.get<double>("hidden_dropout_prob", 0);
  options.embedding_size = config.count("embedding_size", 128);
  options.encoder.num_groups = config.count("num_hidden_groups", 1);
  if (options.encoder.num_groups > options.num_hidden_layers) {
    config.fail("num_hidden_groups", concat("be at most ", options.num_hidden_layers),
                std::to_string(options.encoder.num_groups));
  }
  check_only<index_t>(config, "inner_group_num", 1, "1");
  // Keys of the first files; all models have these values.
  check_only<index_t>(config, "down_scale_factor", 1, "1");
  for (const std::string_view key : {"gap_size", "net_structure_type", "num_memory_blocks"}) {
    check_only<index_t>(config, key, 0, "0");
  }
  return options;
}

inline constexpr EncoderType kAlbertTypes[] = {{.model_type = "albert",
                                                .options = albert_options,
                                                .names = albert_names,
                                                .prefix = "albert.",
                                                .pooler = "pooler.weight"}};

}  // namespace detail

ATTN_NAMESPACE_END
