// M2M100 and NLLB: sinusoidal positions that skip padding, norms before sublayers.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attn/models/pretrained/seq2seq/seq2seq_type.hpp"

ATTN_NAMESPACE_BEGIN

namespace detail {

/// The row of padding in the table of positions is its id; other tokens follow it.
inline Seq2SeqOptions m2m_100_options(const ConfigFile& config) {
  Seq2SeqOptions options = bart_style_options(config, {.positions = Positions::sinusoidal,
                                                       .norm_first = true,
                                                       .embedding_norm = false,
                                                       .output_bias = false,
                                                       .scale_embedding = true,
                                                       .activation = "relu"});
  if (options.transformer.layer.d_model < 4) {
    config.fail("d_model", "be at least 4", std::to_string(options.transformer.layer.d_model));
  }
  options.sinusoidal_form = SinusoidalForm::halves_to_base;
  options.position_offset = *options.pad_id + 1;
  options.skip_padding = true;
  return options;
}

inline constexpr Seq2SeqType kM2m100Types[] = {
    {.model_type = "m2m_100", .options = m2m_100_options}};

}  // namespace detail

ATTN_NAMESPACE_END
