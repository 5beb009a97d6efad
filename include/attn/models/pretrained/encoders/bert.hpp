// BERT, RoBERTa, XLM-RoBERTa and CamemBERT.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attn/models/pretrained/encoders/encoder_type.hpp"

ATTN_NAMESPACE_BEGIN

namespace detail {

inline BertOptions bert_options(const ConfigFile& config, const PretrainedOptions&) {
  // TinyBERT files repeat hidden_size.
  check_only(config, "emb_size", config.count("hidden_size"), "hidden_size");
  return bert_style_options(config);
}

inline BertOptions roberta_options(const ConfigFile& config, const PretrainedOptions& given) {
  BertOptions options = bert_options(config, given);
  skip_padding(config, options, config.get<index_t>("pad_token_id", 1));
  return options;
}

inline constexpr EncoderType kBertTypes[] = {
    {.model_type = "bert", .options = bert_options, .names = bert_names, .prefix = "bert."},
    {.model_type = "roberta",
     .options = roberta_options,
     .names = bert_names,
     .prefix = "roberta."},
    {.model_type = "xlm-roberta",
     .options = roberta_options,
     .names = bert_names,
     .prefix = "roberta."},
    {.model_type = "camembert",
     .options = roberta_options,
     .names = bert_names,
     .prefix = "roberta."}};

}  // namespace detail

ATTN_NAMESPACE_END
