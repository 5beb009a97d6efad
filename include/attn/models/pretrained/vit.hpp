// Vit from Hugging Face folders.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attn/models/pretrained/config.hpp"
#include "attn/models/vit.hpp"

ATTN_NAMESPACE_BEGIN

/// Parameter names and storage of ViT's files: load_state_dict(vit, file, vit_names()). Files of
/// the model without a classifier have no prefix. The convolution weight (hidden_size,
/// num_channels, patch_size, patch_size) has the memory layout of the linear layer's weight.
inline LoadOptions vit_names(const std::string& prefix = "vit.") {
  return {
      .rename = rename_by({{"patch_embedding.", prefix + "embeddings.patch_embeddings.projection."},
                           {"cls_token", prefix + "embeddings.cls_token"},
                           {"positions", prefix + "embeddings.position_embeddings"},
                           {"encoder.norm.", prefix + "layernorm."},
                           {"encoder.layers.", prefix + "encoder.layer."},
                           {".self_attn.q_proj_", ".attention.attention.query."},
                           {".self_attn.k_proj_", ".attention.attention.key."},
                           {".self_attn.v_proj_", ".attention.attention.value."},
                           {".self_attn.out_proj.", ".attention.output.dense."},
                           {".norm1.", ".layernorm_before."},
                           {".norm2.", ".layernorm_after."},
                           {".linear1.", ".intermediate.dense."},
                           {".linear2.", ".output.dense."}}),
      .ignore = {prefix + "pooler."},
      .reshape = {prefix + "embeddings.patch_embeddings.projection.weight"}};
}

/// The options of Vit for a config.json: model_type vit. num_labels stays 0. Throws what
/// gpt_options_of() throws.
inline VitOptions vit_options_of(const ConfigFile& config, const PretrainedOptions& options = {}) {
  detail::check_model_type(config, {"vit"});
  const auto sizes = config.counts("image_size"), sides = config.counts("patch_size");
  const auto check_pair = [&](std::string_view key, const std::vector<index_t>& values) {
    if (values.size() == 1 || values.size() == 2) return;
    config.fail(key, "be one size or two", std::to_string(values.size()));
  };
  check_pair("image_size", sizes);
  check_pair("patch_size", sides);
  if (sides.front() != sides.back()) config.fail("patch_size", "be square", "two sizes");
  const VitOptions result{.image_height = sizes.front(),
                          .image_width = sizes.back(),
                          .patch_size = sides.front(),
                          .num_channels = config.count("num_channels", 3),
                          .hidden_size = config.count("hidden_size"),
                          .num_hidden_layers = config.count("num_hidden_layers"),
                          .num_attention_heads = config.count("num_attention_heads"),
                          .intermediate_size = config.count("intermediate_size"),
                          .layer_norm_eps = config.get<double>("layer_norm_eps", 1e-12),
                          .hidden_act = detail::activation_of(config, "hidden_act", "gelu"),
                          .qkv_bias = config.get<bool>("qkv_bias", true)};
  if (result.image_height % result.patch_size != 0 || result.image_width % result.patch_size != 0) {
    config.fail("patch_size", "divide image_size", std::to_string(result.patch_size));
  }
  detail::check_heads(config, "num_attention_heads", result.hidden_size,
                      result.num_attention_heads);
  for (const std::string_view key : {"pooler_act", "pooler_output_size"}) {
    static_cast<void>(config.has(key));  // the pooler is not loaded
  }
  detail::check_config_read(config, options);
  return result;
}

namespace detail {

template <class T>
Vit<T> vit_from_folder(const std::filesystem::path& folder, const PretrainedOptions& options) {
  const ConfigFile config(folder / "config.json");
  VitOptions vit_options = vit_options_of(config, options);
  const SafetensorsFolder file(folder);
  const TransformerStackOptions stack = vit_options.encoder_options();
  const auto number = [](index_t n) { return static_cast<double>(n); };
  check_elements(config, file, stack.layer, stack.num_layers,
                 number(vit_options.num_patches()) + number(vit_options.num_channels) *
                                                         number(vit_options.patch_size) *
                                                         number(vit_options.patch_size));
  const std::string prefix = file.contains("embeddings.cls_token") ? "" : "vit.";
  if (file.contains("classifier.weight") && !file.shape("classifier.weight").empty()) {
    vit_options.num_labels = file.shape("classifier.weight")[0];
  }
  return load_model<T, Vit<T>>(vit_options, file, vit_names(prefix), options);
}

}  // namespace detail

ATTN_NAMESPACE_END
