// MPNet: BERT with a bias for each distance.
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

inline constexpr EncoderType kMpnetTypes[] = {
    {.model_type = "mpnet", .options = mpnet_options, .names = mpnet_names, .prefix = "mpnet."}};

}  // namespace detail

ATTN_NAMESPACE_END
