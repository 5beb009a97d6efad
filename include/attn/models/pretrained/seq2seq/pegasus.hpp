// PEGASUS: sinusoidal positions, norms before sublayers.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attn/models/pretrained/seq2seq/seq2seq_type.hpp"

ATTN_NAMESPACE_BEGIN

namespace detail {

inline Seq2SeqOptions pegasus_options(const ConfigFile& config) {
  Seq2SeqOptions options = bart_style_options(config, {.positions = Positions::sinusoidal,
                                                       .norm_first = true,
                                                       .embedding_norm = false,
                                                       .pad_id = 0,
                                                       .start_id = 0});
  options.sinusoidal_form = SinusoidalForm::halves;
  return options;
}

inline constexpr Seq2SeqType kPegasusTypes[] = {
    {.model_type = "pegasus", .options = pegasus_options}};

}  // namespace detail

ATTN_NAMESPACE_END
