// ViT.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attn/models/pretrained/pictures/picture_type.hpp"

ATTN_NAMESPACE_BEGIN

/// Parameter names and storage of ViT's files: load_state_dict(vit, file, vit_names()). Files of
/// the model without a classifier have no prefix. The convolution weight (hidden_size,
/// num_channels, patch_size, patch_size) has the memory layout of the linear layer's weight.
inline LoadOptions vit_names(const std::string& prefix = "vit.") {
  return detail::vit_style_names(prefix, {{".norm1.", ".layernorm_before."},
                                          {".norm2.", ".layernorm_after."},
                                          {".linear1.", ".intermediate.dense."},
                                          {".linear2.", ".output.dense."}});
}

namespace detail {

inline VitOptions vit_type_options(const ConfigFile& config) {
  VitOptions options = vit_style_options(config, {});
  options.intermediate_size = config.count("intermediate_size", options.intermediate_size);
  for (const std::string_view key : {"pooler_act", "pooler_output_size"}) {
    static_cast<void>(config.has(key));  // the pooler is not loaded
  }
  return options;
}

inline constexpr PictureType kVitTypes[] = {
    {.model_type = "vit", .options = vit_type_options, .names = vit_names, .prefix = "vit."}};

}  // namespace detail

ATTN_NAMESPACE_END
