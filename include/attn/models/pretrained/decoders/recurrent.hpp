// Mixers of tokens per layer from config.json.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attn/models/pretrained/decoders/decoder_type.hpp"

ATTN_NAMESPACE_BEGIN

namespace detail {

/// Mixers by layer_types, whose values are full_attention and `recurrent`, the name of `mixer`.
inline std::vector<TokenMixer> mixers_of(const ConfigFile& config, index_t layers,
                                         const std::string& recurrent, TokenMixer mixer) {
  const std::vector<std::string> types = config.texts("layer_types");
  if (std::ssize(types) != layers) {
    config.fail("layer_types", concat("be one per layer, ", layers), std::to_string(types.size()));
  }
  std::vector<TokenMixer> mixers;
  for (const std::string& type : types) {
    if (type != recurrent && type != "full_attention") {
      config.fail("layer_types", concat("contain only full_attention and ", recurrent),
                  quote(type));
    }
    mixers.push_back(type == recurrent ? mixer : TokenMixer::attention);
  }
  return mixers;
}

}  // namespace detail

ATTN_NAMESPACE_END
