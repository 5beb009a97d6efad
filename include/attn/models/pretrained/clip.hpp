// Clip from Hugging Face folders of CLIP and SigLIP.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attn/models/clip.hpp"
#include "attn/models/pretrained/pictures/picture_type.hpp"

ATTN_NAMESPACE_BEGIN

/// Parameter names and storage of the files of CLIP or SigLIP: load_state_dict(clip, file,
/// clip_names()).
inline LoadOptions clip_names(ClipForm form = ClipForm::clip) {
  std::vector<std::pair<std::string, std::string>> pairs = {
      {"vision.patch_embedding.", "vision_model.embeddings.patch_embedding."},
      {"vision.cls_token", "vision_model.embeddings.class_embedding"},
      {"vision.positions", "vision_model.embeddings.position_embedding.weight"},
      {"vision.embedding_norm.", "vision_model.pre_layrnorm."},
      {"vision.encoder.norm.", "vision_model.post_layernorm."},
      {"vision.encoder.", "vision_model.encoder."},
      {"vision_norm.", "vision_model.post_layernorm."},
      {"vision_head.norm.", "vision_model.head.layernorm."},
      {"vision_head.", "vision_model.head."},
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
      {".linear2.", ".mlp.fc2."}};
  if (form == ClipForm::siglip) pairs.emplace_back("text_projection.", "text_model.head.");
  return {.rename = rename_by(std::move(pairs)),
          .ignore = {".embeddings.position_ids"},
          .reshape = {"vision_model.embeddings.patch_embedding.weight",
                      "vision_model.embeddings.class_embedding",
                      "vision_model.embeddings.position_embedding.weight"}};
}

namespace detail {

/// Sets the layers of the text by the keys of text_config; `otherwise` has the values of missing
/// keys.
inline void set_text_tower(const ConfigFile& text, const ClipOptions& otherwise,
                           const std::string& activation, ClipOptions& options) {
  const InputEmbeddingOptions& embedding = otherwise.text_embedding;
  const TransformerLayerOptions& layer = otherwise.text.layer;
  const index_t dim = text.count("hidden_size", embedding.d_model),
                heads = text.count("num_attention_heads", layer.nhead);
  check_heads(text, "num_attention_heads", dim, heads);
  options.text_embedding = {
      .vocab_size = text.count("vocab_size", embedding.vocab_size),
      .d_model = dim,
      .positions = Positions::learned,
      .max_positions = text.count("max_position_embeddings", embedding.max_positions)};
  options.text = {
      .num_layers = text.count("num_hidden_layers", 12),
      .layer = {.d_model = dim,
                .nhead = heads,
                .dim_feedforward = text.count("intermediate_size", layer.dim_feedforward),
                .dropout = 0,
                .activation = activation_of(text, "hidden_act", activation),
                .layer_norm_eps = text.get<double>("layer_norm_eps", layer.layer_norm_eps),
                .norm_first = true,
                .attention = {.separate_in_proj = true}},
      .norm = true};
}

inline ClipOptions clip_options(const ConfigFile& config, const ConfigFile& text,
                                const ConfigFile& vision) {
  ClipOptions result{.vision = vit_style_options(vision,
                                                 {.patch_size = 32,
                                                  .layer_norm_eps = 1e-5,
                                                  .patch_bias = false,
                                                  .embedding_norm = true,
                                                  .norm = false},
                                                 "quick_gelu"),
                     .projection_dim = config.count("projection_dim", 512)};
  set_text_tower(text,
                 {.text_embedding = {.vocab_size = 49408, .d_model = 512, .max_positions = 77},
                  .text = {.layer = {.nhead = 8, .dim_feedforward = 2048, .layer_norm_eps = 1e-5}}},
                 "quick_gelu", result);
  // In early files eos_token_id is 2, which is not the end token; their end token has the largest
  // id.
  const index_t end = text.get<index_t>("eos_token_id", 49407);
  if (end != 2) result.end_id = end;
  static_cast<void>(config.has("logit_scale_init_value"));
  for (const ConfigFile* one : {&text, &vision}) {
    static_cast<void>(one->has("projection_dim"));  // also for one tower alone
  }
  return result;
}

inline ClipOptions siglip_options(const ConfigFile& text, const ConfigFile& vision) {
  constexpr const char* kActivation = "gelu_pytorch_tanh";
  ClipOptions result{.form = ClipForm::siglip,
                     .vision = vit_style_options(
                         vision, {.layer_norm_eps = 1e-6, .class_token = false}, kActivation)};
  set_text_tower(
      text,
      {.text_embedding = {.vocab_size = 32000, .d_model = 768, .max_positions = 64},
       .text = {.layer = {.nhead = 12, .dim_feedforward = 3072, .layer_norm_eps = 1e-6}}},
      kActivation, result);
  check_only(vision, "vision_use_head", true, "true");
  result.projection_dim = text.count("projection_size", result.text_embedding.d_model);
  if (result.projection_dim != result.vision.hidden_size) {
    text.fail("projection_size",
              concat("be the width of the vision tower, ", result.vision.hidden_size),
              std::to_string(result.projection_dim));
  }
  return result;
}

}  // namespace detail

/// The options of Clip for a config.json: model_type clip or siglip. Throws what gpt_options_of()
/// throws.
inline ClipOptions clip_options_of(const ConfigFile& config,
                                   const PretrainedOptions& options = {}) {
  const bool is_siglip = detail::check_model_type(config, {"clip", "siglip"}) == "siglip";
  // Older files repeat an object under a name that takes precedence.
  const auto tower = [&](const std::string& name) {
    static_cast<void>(config.has(name));
    return config.object(config.has(name + "_dict") ? name + "_dict" : name);
  };
  const ConfigFile text = tower("text_config"), vision = tower("vision_config");
  ClipOptions result =
      is_siglip ? detail::siglip_options(text, vision) : detail::clip_options(config, text, vision);
  result.vision.intermediate_size =
      vision.count("intermediate_size", result.vision.intermediate_size);
  for (const ConfigFile* one : {&text, &vision}) detail::check_config_read(*one, options);
  detail::check_config_read(config, options);
  return result;
}

namespace detail {

template <class T>
Clip<T> clip_from_folder(const std::filesystem::path& folder, const PretrainedOptions& options) {
  const ConfigFile config(folder / "config.json");
  const ClipOptions clip = clip_options_of(config, options);
  const SafetensorsFolder file(folder);
  const VitOptions& vision = clip.vision;
  check_elements(config, file, vision.encoder_options().layer, vision.num_hidden_layers,
                 to_double(vision.num_patches()) + to_double(vision.num_channels) *
                                                       to_double(vision.patch_size) *
                                                       to_double(vision.patch_size));
  check_elements(
      config, file, clip.text.layer, clip.text.num_layers,
      to_double(clip.text_embedding.vocab_size) + to_double(clip.text_embedding.max_positions));
  if (clip.projection_dim > index_t{1} << 20) {
    config.fail("projection_dim", "be at most 2^20", std::to_string(clip.projection_dim));
  }
  return load_model<T, Clip<T>>(clip, file, clip_names(clip.form), options);
}

}  // namespace detail

ATTN_NAMESPACE_END
