// Vit from Hugging Face folders: the table of vision transformers' model types.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attn/models/pretrained/pictures/dinov2.hpp"
#include "attn/models/pretrained/pictures/vit.hpp"

ATTN_NAMESPACE_BEGIN

namespace detail {

inline constexpr std::span<const PictureType> kPictureTypes[] = {kVitTypes, kDinov2Types};

/// The type of a folder. Throws ValueError if the table does not contain it.
inline const PictureType& picture_type_of(const ConfigFile& config) {
  return type_of<PictureType>(config, kPictureTypes);
}

}  // namespace detail

/// The options of Vit for a config.json of a vision transformer: see load_pretrained() for the
/// model types. num_labels stays 0. Throws what gpt_options_of() throws.
inline VitOptions vit_options_of(const ConfigFile& config, const PretrainedOptions& options = {}) {
  const VitOptions result = detail::picture_type_of(config).options(config);
  detail::check_config_read(config, options);
  return result;
}

namespace detail {

/// Multiplies the outputs of attention and feed-forward by the file's factors of each feature.
template <class T>
void apply_layer_scale(Vit<T>& model, const SafetensorsFolder& file, const std::string& prefix) {
  const auto scale_rows = [&](const std::string& name, Linear<T>& linear) {
    const auto factors = file.load<double, 1>(name);
    check_shape("load_pretrained", name, Shape<1>{linear.out_features()}, factors.shape());
    for (index_t row = 0; row < factors.size(); ++row) {
      const auto scaled = [&](T value) {
        return static_cast<T>(static_cast<double>(value) * factors(row));
      };
      for (index_t i = 0; i < linear.weight.extent(1); ++i) {
        linear.weight(row, i) = scaled(linear.weight(row, i));
      }
      linear.bias(row) = scaled(linear.bias(row));
    }
    linear.touch();
  };
  for (std::size_t n = 0; n < model.encoder.num_layers(); ++n) {
    const std::string layer = concat(prefix, "encoder.layer.", n, ".layer_scale");
    auto& own = model.encoder.layers[n];
    scale_rows(layer + "1.lambda1", own.self_attn.out_proj());
    scale_rows(layer + "2.lambda1", own.feed_forward.linear2);
  }
}

template <class T>
Vit<T> vit_from_folder(const std::filesystem::path& folder, const PretrainedOptions& options) {
  const ConfigFile config(folder / "config.json");
  VitOptions vit_options = vit_options_of(config, options);
  const PictureType& type = picture_type_of(config);
  const SafetensorsFolder file(folder);
  const TransformerStackOptions stack = vit_options.encoder_options();
  check_elements(config, file, stack.layer, stack.num_layers,
                 to_double(vit_options.num_patches()) + to_double(vit_options.num_channels) *
                                                            to_double(vit_options.patch_size) *
                                                            to_double(vit_options.patch_size));
  const std::string prefix(file.contains("embeddings.cls_token") ? "" : type.prefix);
  if (type.classifies && file.contains("classifier.weight") &&
      !file.shape("classifier.weight").empty()) {
    vit_options.num_labels = file.shape("classifier.weight")[0];
  }
  return load_model<T, Vit<T>>(vit_options, file, type.names(prefix), options, [&](Vit<T>& model) {
    if (type.has_layer_scale) apply_layer_scale(model, file, prefix);
  });
}

}  // namespace detail

ATTN_NAMESPACE_END
