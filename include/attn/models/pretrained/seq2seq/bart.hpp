// BART.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attn/models/pretrained/seq2seq/seq2seq_type.hpp"

ATTN_NAMESPACE_BEGIN

namespace detail {

inline Seq2SeqOptions bart_options(const ConfigFile& config) {
  return bart_style_options(config, {});
}

inline constexpr Seq2SeqType kBartTypes[] = {{.model_type = "bart", .options = bart_options}};

}  // namespace detail

ATTN_NAMESPACE_END
