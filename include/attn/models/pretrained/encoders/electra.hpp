// ELECTRA: BERT whose embeddings may be narrower than its layers.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attn/models/pretrained/encoders/encoder_type.hpp"

ATTN_NAMESPACE_BEGIN

namespace detail {

inline LoadOptions electra_names(const std::string& prefix) {
  return bert_names_but(prefix, {{"projection.", "embeddings_project."}});
}

inline BertOptions electra_options(const ConfigFile& config, const PretrainedOptions&) {
  BertOptions options = bert_style_options(config);
  const index_t size = config.count("embedding_size", 128);
  if (size != options.hidden_size) options.embedding_size = size;
  return options;
}

inline constexpr EncoderType kElectraTypes[] = {{.model_type = "electra",
                                                 .options = electra_options,
                                                 .names = electra_names,
                                                 .prefix = "electra."}};

}  // namespace detail

ATTN_NAMESPACE_END
