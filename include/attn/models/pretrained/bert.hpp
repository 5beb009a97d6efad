// Bert from Hugging Face folders: the table of encoders' model types.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attn/models/pretrained/encoders/albert.hpp"
#include "attn/models/pretrained/encoders/bert.hpp"
#include "attn/models/pretrained/encoders/distilbert.hpp"
#include "attn/models/pretrained/encoders/electra.hpp"
#include "attn/models/pretrained/encoders/embedding_gemma.hpp"
#include "attn/models/pretrained/encoders/eurobert.hpp"
#include "attn/models/pretrained/encoders/modernbert.hpp"
#include "attn/models/pretrained/encoders/mpnet.hpp"
#include "attn/models/pretrained/encoders/nomic_bert.hpp"

ATTN_NAMESPACE_BEGIN

namespace detail {

inline constexpr std::span<const EncoderType> kEncoderTypes[] = {
    kBertTypes,       kDistilBertTypes, kMpnetTypes,    kElectraTypes,       kAlbertTypes,
    kModernBertTypes, kNomicBertTypes,  kEuroBertTypes, kEmbeddingGemmaTypes};

/// The type of a folder. Throws ValueError if the table does not contain it.
inline const EncoderType& encoder_type_of(const ConfigFile& config) {
  return type_of<EncoderType>(config, kEncoderTypes);
}

}  // namespace detail

/// The options of Bert for a config.json of an encoder: see load_pretrained() for the model types.
/// Throws what gpt_options_of() throws.
inline BertOptions bert_options_of(const ConfigFile& config,
                                   const PretrainedOptions& options = {}) {
  const BertOptions result = detail::encoder_type_of(config).options(config, options);
  detail::check_config_read(config, options);
  return result;
}

/// Parameter names and storage of the files of an encoder, with the type's prefix in files of a
/// model with a head: load_state_dict(bert, file, bert_names_of(config)). Throws what
/// gpt_options_of() throws for model_type.
inline LoadOptions bert_names_of(const ConfigFile& config, const std::string& prefix = "") {
  return detail::encoder_type_of(config).names(prefix);
}

namespace detail {

template <class T>
Bert<T> bert_from_folder(const std::filesystem::path& folder, const PretrainedOptions& options) {
  const ConfigFile config(folder / "config.json");
  check_activations<T>(config);
  BertOptions bert_options = bert_options_of(config, options);
  const EncoderType& type = encoder_type_of(config);
  const SafetensorsFolder file(folder);
  const TransformerStackOptions stack = bert_options.encoder_options();
  const InputEmbeddingOptions embedding = bert_options.embedding_options();
  const bool learned = embedding.positions == Positions::learned;
  check_elements(
      config, file, stack.layer, stack.num_groups > 0 ? stack.num_groups : stack.num_layers,
      (to_double(embedding.vocab_size) + (learned ? to_double(embedding.max_positions) : 0)) *
          to_double(embedding.d_model) / to_double(stack.layer.d_model));
  // Files of the model without a head have no prefix.
  const std::string prefix(file.contains(type.words) ? "" : type.prefix);
  bert_options.pooler = file.contains(prefix + std::string(type.pooler));
  LoadOptions names = type.names(prefix);
  if (file.contains(prefix + "embeddings.LayerNorm.gamma")) {  // in files converted from TensorFlow
    names.rename = [rename = names.rename](std::string_view name) {
      using Renamed = std::pair<std::string_view, std::string_view>;
      return renamed(rename(name), std::array{Renamed{"LayerNorm.weight", "LayerNorm.gamma"},
                                              Renamed{"LayerNorm.bias", "LayerNorm.beta"}});
    };
  }
  return load_model<T, Bert<T>>(bert_options, file, names, options);
}

}  // namespace detail

ATTN_NAMESPACE_END
