// Gpt from Hugging Face folders: the table of decoders' model types.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attn/models/pretrained/decoders/alibi_types.hpp"
#include "attn/models/pretrained/decoders/cohere.hpp"
#include "attn/models/pretrained/decoders/deepseek.hpp"
#include "attn/models/pretrained/decoders/experts.hpp"
#include "attn/models/pretrained/decoders/gemma.hpp"
#include "attn/models/pretrained/decoders/glm.hpp"
#include "attn/models/pretrained/decoders/gpt.hpp"
#include "attn/models/pretrained/decoders/gpt_oss.hpp"
#include "attn/models/pretrained/decoders/granite.hpp"
#include "attn/models/pretrained/decoders/helium.hpp"
#include "attn/models/pretrained/decoders/layer_norm_types.hpp"
#include "attn/models/pretrained/decoders/lfm2.hpp"
#include "attn/models/pretrained/decoders/llama.hpp"
#include "attn/models/pretrained/decoders/olmo.hpp"
#include "attn/models/pretrained/decoders/phi.hpp"
#include "attn/models/pretrained/decoders/qwen3_next.hpp"

ATTN_NAMESPACE_BEGIN

namespace detail {

inline constexpr std::span<const DecoderType> kDecoderTypes[] = {
    kLlamaTypes,    kGemmaTypes,     kOlmoTypes,      kGraniteTypes, kCohereTypes, kGlmTypes,
    kPhiTypes,      kLayerNormTypes, kExpertTypes,    kGptTypes,     kGptOssTypes, kAlibiTypes,
    kDeepseekTypes, kLfm2Types,      kQwen3NextTypes, kHeliumTypes};

/// The type of a folder. Throws ValueError if the table does not contain it.
inline const DecoderType& decoder_type_of(const ConfigFile& config) {
  return type_of<DecoderType>(config, kDecoderTypes);
}

/// Reorders the joint weight and bias of queries, keys and values: from key/value heads, each with
/// its queries, (num_kv_heads, heads_per_kv_head + 2, head_dim), to all queries, keys and values.
template <class T>
void order_qkv_by_kind(MultiHeadAttention<T>& attention) {
  const index_t kv_heads = attention.options().num_kv_heads;
  const auto reorder = [&](auto q, auto k, auto v) {
    if (!q) return;
    const Tensor1<T> stored(TensorView1<const T>(q.data(), {q.size() + k.size() + v.size()}));
    const auto* from = stored.data();
    for (index_t h = 0; h < kv_heads; ++h) {
      for (const auto& kind : {q, k, v}) {
        const index_t elements = kind.size() / kv_heads;
        std::copy_n(from, elements, kind.data() + h * elements);
        from += elements;
      }
    }
  };
  reorder(attention.q_weight(), attention.k_weight(), attention.v_weight());
  reorder(attention.q_bias(), attention.k_bias(), attention.v_bias());
}

}  // namespace detail

/// The options of Gpt for a config.json of a decoder: see load_pretrained() for the model types.
/// Throws ValueError, naming file and key, for missing keys, wrong types, values out of range,
/// unsupported values, and unknown keys.
inline GptOptions gpt_options_of(const ConfigFile& config, const PretrainedOptions& options = {}) {
  const GptOptions result = detail::decoder_type_of(config).options(config, options);
  detail::check_config_read(config, options);
  return result;
}

/// Parameter names and storage of the files of a decoder: load_state_dict(gpt, file,
/// gpt_names_of(config)). bloom, falcon, gpt_neox, gpt_oss and granitemoe need load_pretrained(),
/// which also reorders their tensors. Throws what gpt_options_of() throws for model_type.
inline LoadOptions gpt_names_of(const ConfigFile& config) {
  const detail::DecoderType& type = detail::decoder_type_of(config);
  return type.names(std::string(type.prefix), config);
}

namespace detail {

inline RecurrentLayers recurrent_layers(const GptOptions& options) {
  const double dim = to_double(options.layer.d_model);
  const GatedDeltaOptions& delta = options.layer.gated_delta;
  const double keys = to_double(delta.num_key_heads) * to_double(delta.key_dim),
               heads = to_double(delta.num_value_heads),
               values = heads * to_double(delta.value_dim);
  const double of_delta =
      dim * (2 * keys + 3 * values + 2 * heads) + (2 * keys + values) * to_double(delta.width);
  const double of_convolution = dim * (4 * dim + to_double(options.layer.convolution.width));
  RecurrentLayers result;
  const auto& mixers = options.mixers;
  for (std::size_t n = 0; !mixers.empty() && n < static_cast<std::size_t>(options.num_layers);
       ++n) {
    const TokenMixer mixer = mixers[n % mixers.size()];
    if (mixer == TokenMixer::attention) continue;
    result.count += 1;
    result.elements += mixer == TokenMixer::gated_delta ? of_delta : of_convolution;
  }
  return result;
}

template <class T>
Gpt<T> gpt_from_folder(const std::filesystem::path& folder, const PretrainedOptions& options) {
  const ConfigFile config(folder / "config.json");
  check_activations<T>(config);
  GptOptions gpt_options = gpt_options_of(config, options);
  const DecoderType& type = decoder_type_of(config);
  const SafetensorsFolder file(folder);
  // Files of the model without its head have no prefix.
  const std::string prefix(file.contains(type.words) ? "" : type.prefix);
  // A head that is stored beside the table is used even if the config ties them, as in
  // transformers. A head that is stored without the table serves as both if the config ties them.
  if (file.contains(type.head) && file.contains(prefix + std::string(type.words))) {
    gpt_options.tied = false;
  }
  const bool learned = gpt_options.positions.value_or(Positions::learned) == Positions::learned;
  const double rows = (gpt_options.tied ? 1 : 2) * to_double(gpt_options.vocab_size) +
                      (learned ? to_double(gpt_options.max_positions) : 0);
  const ExpertsFile experts(file, type.fused);
  check_elements(config, experts, gpt_options.layer, gpt_options.num_layers, rows,
                 gpt_options.dense_layers, recurrent_layers(gpt_options));
  LoadOptions names = type.names(prefix, config);
  if (gpt_options.tied) {
    names = with_tied_table(std::move(names), file, "embedding.words.weight", {type.head});
  }
  return load_model<T, Gpt<T>>(gpt_options, experts, names, options, [&](Gpt<T>& model) {
    if (!type.qkv_by_head) return;
    for (EncoderLayer<T>& layer : model.blocks.layers) order_qkv_by_kind(layer.self_attn);
  });
}

}  // namespace detail

ATTN_NAMESPACE_END
