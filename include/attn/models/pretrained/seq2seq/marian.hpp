// Marian: OPUS-MT's translation models, with sinusoidal positions.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attn/models/pretrained/seq2seq/seq2seq_type.hpp"

ATTN_NAMESPACE_BEGIN

namespace detail {

/// Embeddings are one table or two.
inline Seq2SeqOptions marian_options(const ConfigFile& config) {
  Seq2SeqOptions options = bart_style_options(config, {.positions = Positions::sinusoidal,
                                                       .embedding_norm = false,
                                                       .pad_id = 58100,
                                                       .start_id = 58100});
  options.sinusoidal_form = SinusoidalForm::halves;
  options.tgt_vocab_size = config.count("decoder_vocab_size", options.src_vocab_size);
  if (config.get<bool>("share_encoder_decoder_embeddings", true) &&
      options.tgt_vocab_size != options.src_vocab_size) {
    config.fail("decoder_vocab_size",
                concat("be vocab_size = ", options.src_vocab_size, " of shared embeddings"),
                std::to_string(options.tgt_vocab_size));
  }
  return options;
}

inline constexpr Seq2SeqType kMarianTypes[] = {{.model_type = "marian", .options = marian_options}};

}  // namespace detail

ATTN_NAMESPACE_END
