// Clip from Hugging Face folders.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attn/models/clip.hpp"
#include "attn/models/pretrained/pictures/picture_type.hpp"

ATTN_NAMESPACE_BEGIN

/// Parameter names and storage of CLIP's files: load_state_dict(clip, file, clip_names()).
inline LoadOptions clip_names() {
  return {.rename =
              rename_by({{"vision.patch_embedding.", "vision_model.embeddings.patch_embedding."},
                         {"vision.cls_token", "vision_model.embeddings.class_embedding"},
                         {"vision.positions", "vision_model.embeddings.position_embedding.weight"},
                         {"vision.embedding_norm.", "vision_model.pre_layrnorm."},
                         {"vision.encoder.", "vision_model.encoder."},
                         {"vision_norm.", "vision_model.post_layernorm."},
                         {"text_embedding.words.", "text_model.embeddings.token_embedding."},
                         {"text_embedding.positions.", "text_model.embeddings.position_embedding."},
                         {"text.norm.", "text_model.final_layer_norm."},
                         {"text.layers.", "text_model.encoder.layers."},
                         {".self_attn.q_proj_", ".self_attn.q_proj."},
                         {".self_attn.k_proj_", ".self_attn.k_proj."},
                         {".self_attn.v_proj_", ".self_attn.v_proj."},
                         {".norm1.", ".layer_norm1."},
                         {".norm2.", ".layer_norm2."},
                         {".linear1.", ".mlp.fc1."},
                         {".linear2.", ".mlp.fc2."}}),
          .ignore = {".embeddings.position_ids"},
          .reshape = {"vision_model.embeddings.patch_embedding.weight",
                      "vision_model.embeddings.class_embedding",
                      "vision_model.embeddings.position_embedding.weight"}};
}

/// The options of Clip for a config.json: model_type clip. Throws what gpt_options_of() throws.
inline ClipOptions clip_options_of(const ConfigFile& config,
                                   const PretrainedOptions& options = {}) {
  detail::check_model_type(config, {"clip"});
  // Older files repeat an object under a name that takes precedence.
  const auto tower = [&](const std::string& name) {
    static_cast<void>(config.has(name));
    return config.object(config.has(name + "_dict") ? name + "_dict" : name);
  };
  const ConfigFile text = tower("text_config"), vision = tower("vision_config");
  ClipOptions result{.vision = detail::vit_style_options(vision, 1e-5, "quick_gelu"),
                     .projection_dim = config.count("projection_dim", 512)};
  result.vision.intermediate_size = vision.count("intermediate_size");
  result.vision.patch_bias = false;
  result.vision.embedding_norm = true;
  result.vision.norm = false;
  const index_t dim = text.count("hidden_size"), heads = text.count("num_attention_heads");
  detail::check_heads(text, "num_attention_heads", dim, heads);
  result.text_embedding = {.vocab_size = text.count("vocab_size", 49408),
                           .d_model = dim,
                           .positions = Positions::learned,
                           .max_positions = text.count("max_position_embeddings", 77)};
  result.text = {.num_layers = text.count("num_hidden_layers"),
                 .layer = {.d_model = dim,
                           .nhead = heads,
                           .dim_feedforward = text.count("intermediate_size"),
                           .dropout = 0,
                           .activation = detail::activation_of(text, "hidden_act", "quick_gelu"),
                           .layer_norm_eps = text.get<double>("layer_norm_eps", 1e-5),
                           .norm_first = true,
                           .attention = {.separate_in_proj = true}},
                 .norm = true};
  // In early files eos_token_id is 2, which is not the end token; their end token has the largest
  // id.
  const index_t end = text.get<index_t>("eos_token_id", 49407);
  if (end != 2) result.end_id = end;
  static_cast<void>(config.has("logit_scale_init_value"));
  for (const ConfigFile* one : {&text, &vision}) {
    static_cast<void>(one->has("projection_dim"));  // also for one tower alone
    detail::check_config_read(*one, options);
  }
  detail::check_config_read(config, options);
  return result;
}

namespace detail {

template <class T>
Clip<T> clip_from_folder(const std::filesystem::path& folder, const PretrainedOptions& options) {
  const ConfigFile config(folder / "config.json");
  const ClipOptions clip = clip_options_of(config, options);
  const SafetensorsFolder file(folder);
  const auto number = [](index_t n) { return static_cast<double>(n); };
  const VitOptions& vision = clip.vision;
  check_elements(config, file, vision.encoder_options().layer, vision.num_hidden_layers,
                 number(vision.num_patches()) + number(vision.num_channels) *
                                                    number(vision.patch_size) *
                                                    number(vision.patch_size));
  check_elements(
      config, file, clip.text.layer, clip.text.num_layers,
      number(clip.text_embedding.vocab_size) + number(clip.text_embedding.max_positions));
  if (clip.projection_dim > index_t{1} << 20) {
    config.fail("projection_dim", "be at most 2^20", std::to_string(clip.projection_dim));
  }
  return load_model<T, Clip<T>>(clip, file, clip_names(), options);
}

}  // namespace detail

ATTN_NAMESPACE_END
