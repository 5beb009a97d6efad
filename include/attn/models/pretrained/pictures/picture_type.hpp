// PictureType: a model_type of vision transformers' folders, and the code that these share.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attn/models/pretrained/config.hpp"
#include "attn/models/vit.hpp"

ATTN_NAMESPACE_BEGIN

namespace detail {

/// Parameter names of a vision transformer's file: `sublayers` are those of norms and feed-forward.
inline LoadOptions vit_style_names(const std::string& prefix,
                                   std::vector<std::pair<std::string, std::string>> sublayers) {
  std::vector<std::pair<std::string, std::string>> pairs = {
      {"patch_embedding.", prefix + "embeddings.patch_embeddings.projection."},
      {"cls_token", prefix + "embeddings.cls_token"},
      {"positions", prefix + "embeddings.position_embeddings"},
      {"register_tokens", prefix + "embeddings.register_tokens"},
      {"encoder.norm.", prefix + "layernorm."},
      {"encoder.layers.", prefix + "encoder.layer."},
      {".self_attn.q_proj_", ".attention.attention.query."},
      {".self_attn.k_proj_", ".attention.attention.key."},
      {".self_attn.v_proj_", ".attention.attention.value."},
      {".self_attn.out_proj.", ".attention.output.dense."}};
  pairs.insert(pairs.end(), sublayers.begin(), sublayers.end());
  return {.rename = rename_by(std::move(pairs)),
          .ignore = {prefix + "pooler."},
          .reshape = {prefix + "embeddings.patch_embeddings.projection.weight"}};
}

/// One model_type: how its config.json becomes options, and what its files call the parameters.
struct PictureType {
  std::string_view model_type;
  VitOptions (*options)(const ConfigFile& config);
  LoadOptions (*names)(const std::string& prefix);
  std::string_view prefix;       ///< of files of the model with a classifier
  bool classifies = true;        ///< whether the classifier reads the class token alone
  bool has_layer_scale = false;  ///< factors of each output of attention and feed-forward
};

/// Options by the keys of ViT, without the size of the feed-forward; `otherwise` has the values of
/// missing keys.
inline VitOptions vit_style_options(const ConfigFile& config, const VitOptions& otherwise,
                                    const std::string& activation = "gelu") {
  const auto sizes_of = [&](std::string_view key, index_t missing) {
    return config.has(key) ? config.counts(key) : std::vector<index_t>{missing};
  };
  const auto sizes = sizes_of("image_size", otherwise.image_height),
             sides = sizes_of("patch_size", otherwise.patch_size);
  const auto check_pair = [&](std::string_view key, const std::vector<index_t>& values) {
    if (values.size() == 1 || values.size() == 2) return;
    config.fail(key, "be one size or two", std::to_string(values.size()));
  };
  check_pair("image_size", sizes);
  check_pair("patch_size", sides);
  if (sides.front() != sides.back()) config.fail("patch_size", "be square", "two sizes");
  VitOptions result = otherwise;
  result.image_height = sizes.front();
  result.image_width = sizes.back();
  result.patch_size = sides.front();
  result.num_channels = config.count("num_channels", otherwise.num_channels);
  result.hidden_size = config.count("hidden_size", otherwise.hidden_size);
  result.num_hidden_layers = config.count("num_hidden_layers", otherwise.num_hidden_layers);
  result.num_attention_heads = config.count("num_attention_heads", otherwise.num_attention_heads);
  result.layer_norm_eps = config.get<double>("layer_norm_eps", otherwise.layer_norm_eps);
  result.hidden_act = activation_of(config, "hidden_act", activation);
  result.qkv_bias = config.get<bool>("qkv_bias", true);
  if (result.patch_size > (std::min)(result.image_height, result.image_width)) {
    config.fail("patch_size", "be at most image_size", std::to_string(result.patch_size));
  }
  check_heads(config, "num_attention_heads", result.hidden_size, result.num_attention_heads);
  return result;
}

}  // namespace detail

ATTN_NAMESPACE_END
