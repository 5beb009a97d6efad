// DINOv2, without and with registers: interpolated positions, factors of sublayers' features.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attn/models/pretrained/pictures/picture_type.hpp"

ATTN_NAMESPACE_BEGIN

namespace detail {

inline LoadOptions dinov2_names(const std::string& prefix) {
  LoadOptions names =
      vit_style_names(prefix, {{".linear1.", ".mlp.fc1."}, {".linear2.", ".mlp.fc2."}});
  names.ignore.insert(names.ignore.end(), {prefix + "embeddings.mask_token", "classifier.",
                                           ".layer_scale1.lambda1", ".layer_scale2.lambda1"});
  return names;
}

inline VitOptions dinov2_options(const ConfigFile& config) {
  VitOptions options = vit_style_options(config, {.layer_norm_eps = 1e-6});
  check_only(config, "use_swiglu_ffn", false, "false");
  const double ratio = config.get<double>("mlp_ratio", 4);
  const double size = static_cast<double>(options.hidden_size) * ratio;
  if (!(size >= 1 && size <= 1 << 24)) {
    config.fail("mlp_ratio", "give a size in 1 .. 2^24", attn::to_string(size));
  }
  options.intermediate_size = static_cast<index_t>(size);
  if (options.image_height != options.image_width) {
    config.fail("image_size", "be square, for positions of other sizes", "two sizes");
  }
  options.interpolation = Bicubic::plain;
  for (const std::string_view key :
       {"apply_layernorm", "drop_path_rate", "layerscale_value", "out_features", "out_indices",
        "reshape_hidden_states", "stage_names", "use_mask_token"}) {
    static_cast<void>(config.has(key));  // of training, initialisation and backbones
  }
  return options;
}

inline VitOptions dinov2_with_registers_options(const ConfigFile& config) {
  VitOptions options = dinov2_options(config);
  options.num_register_tokens = config.count("num_register_tokens", 4);
  options.interpolation = Bicubic::antialiased;
  return options;
}

inline constexpr PictureType kDinov2Types[] = {{.model_type = "dinov2",
                                                .options = dinov2_options,
                                                .names = dinov2_names,
                                                .prefix = "dinov2.",
                                                .classifies = false,
                                                .has_layer_scale = true},
                                               {.model_type = "dinov2_with_registers",
                                                .options = dinov2_with_registers_options,
                                                .names = dinov2_names,
                                                .prefix = "dinov2_with_registers.",
                                                .classifies = false,
                                                .has_layer_scale = true}};

}  // namespace detail

ATTN_NAMESPACE_END
