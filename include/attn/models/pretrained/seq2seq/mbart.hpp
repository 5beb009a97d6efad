// mBART: BART with norms before sublayers and after both stacks.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attn/models/pretrained/seq2seq/seq2seq_type.hpp"

ATTN_NAMESPACE_BEGIN

namespace detail {

inline Seq2SeqOptions mbart_options(const ConfigFile& config) {
  return bart_style_options(config, {.norm_first = true});
}

inline constexpr Seq2SeqType kMbartTypes[] = {{.model_type = "mbart", .options = mbart_options}};

}  // namespace detail

ATTN_NAMESPACE_END
