// Helium: a Llama with interleaved rotary pairs.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attn/models/pretrained/decoders/decoder_type.hpp"

ATTN_NAMESPACE_BEGIN

namespace detail {

inline GptOptions helium_options(const ConfigFile& config, const PretrainedOptions& given) {
  GptOptions options =
      llama_style_options(config, given,
                          {.default_norm_eps = 1e-8,
                           .head_dim = 128,
                           .rotary = {.theta = 100000, .pairs = RotaryPairs::interleaved}});
  options.layer.bias = config.get<bool>("mlp_bias", false);
  set_attention_bias(options, config.get<bool>("attention_bias", false), false);
  return options;
}

inline constexpr DecoderType kHeliumTypes[] = {{.model_type = "helium", .options = helium_options}};

}  // namespace detail

ATTN_NAMESPACE_END
