// Relatives of BERT: MPNet (relative positions), ELECTRA and ALBERT (narrow embeddings).
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attn/models/pretrained/encoders/encoder_type.hpp"

ATTN_NAMESPACE_BEGIN

namespace detail {

inline LoadOptions mpnet_names(const std::string& prefix) {
  return bert_names_but(prefix,
                        {{"encoder.relative_bias", "encoder.relative_attention_bias.weight"},
                         {".self_attn.q_proj_", ".attention.attn.q."},
                         {".self_attn.k_proj_", ".attention.attn.k."},
                         {".self_attn.v_proj_", ".attention.attn.v."},
                         {".self_attn.out_proj.", ".attention.attn.o."},
                         {".norm1.", ".attention.LayerNorm."}});
}

/// T5's bias of distances beside RoBERTa's positions, whose padding is always id 1.
inline BertOptions mpnet_options(const ConfigFile& config, const PretrainedOptions&) {
  BertOptions options = bert_style_options(config);
  check_only<index_t>(config, "type_vocab_size", 0, "0");
  options.type_vocab_size = 0;
  skip_padding(config, options, 1);
  // transformers uses 32 buckets up to 128, whatever the size of the table.
  check_only<index_t>(config, "relative_attention_num_buckets", 32, "32");
  options.encoder.relative_buckets = 32;
  return options;
}

inline LoadOptions electra_names(const std::string& prefix) {
  return bert_names_but(prefix, {{"projection.", "embeddings_project."}});
}

inline BertOptions electra_options(const ConfigFile& config, const PretrainedOptions&) {
  BertOptions options = bert_style_options(config);
  const index_t size = config.count("embedding_size", 128);
  if (size != options.hidden_size) options.embedding_size = size;
  return options;
}

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
  // Keys of the first files, with what every model has.
  check_only<index_t>(config, "down_scale_factor", 1, "1");
  for (const std::string_view key : {"gap_size", "net_structure_type", "num_memory_blocks"}) {
    check_only<index_t>(config, key, 0, "0");
  }
  return options;
}

inline constexpr EncoderType kRelativeTypes[] = {
    {.model_type = "mpnet", .options = mpnet_options, .names = mpnet_names, .prefix = "mpnet."},
    {.model_type = "electra",
     .options = electra_options,
     .names = electra_names,
     .prefix = "electra."},
    {.model_type = "albert",
     .options = albert_options,
     .names = albert_names,
     .prefix = "albert.",
     .pooler = "pooler.weight"}};

}  // namespace detail

ATTN_NAMESPACE_END
