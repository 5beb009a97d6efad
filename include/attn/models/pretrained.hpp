// load_pretrained: models from Hugging Face folders.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attn/models/pretrained/bert.hpp"
#include "attn/models/pretrained/clip.hpp"
#include "attn/models/pretrained/gpt.hpp"
#include "attn/models/pretrained/seq2seq.hpp"
#include "attn/models/pretrained/vit.hpp"
#include "attn/models/pretrained/whisper.hpp"

ATTN_NAMESPACE_BEGIN

namespace detail {

template <class Model>
struct Pretrained {
  static_assert(!std::is_same_v<Model, Model>,
                "load_pretrained<Model>: Model must be Gpt<T>, Bert<T>, Vit<T>, Clip<T>, "
                "Seq2SeqTransformer<T> or Whisper<T>");
  static Model load(const std::filesystem::path&, const PretrainedOptions&) { return Model(); }
};

template <class T>
struct Pretrained<Gpt<T>> {
  static constexpr auto load = gpt_from_folder<T>;
};
template <class T>
struct Pretrained<Bert<T>> {
  static constexpr auto load = bert_from_folder<T>;
};
template <class T>
struct Pretrained<Vit<T>> {
  static constexpr auto load = vit_from_folder<T>;
};
template <class T>
struct Pretrained<Clip<T>> {
  static constexpr auto load = clip_from_folder<T>;
};
template <class T>
struct Pretrained<Seq2SeqTransformer<T>> {
  static constexpr auto load = seq2seq_from_folder<T>;
};
template <class T>
struct Pretrained<Whisper<T>> {
  static constexpr auto load = whisper_from_folder<T>;
};

/// The folder's model, which must have this model_type.
template <class Model>
Model load_type(std::string_view type, const std::filesystem::path& folder,
                const PretrainedOptions& options) {
  check_model_type(ConfigFile(folder / "config.json"), {type});
  return Pretrained<Model>::load(folder, options);
}

}  // namespace detail

/// The models of load_pretrained().
enum class PretrainedModel { gpt, bert, vit, clip, seq2seq_transformer, whisper };

/// The model that a config.json describes, by its model_type; gemma3_text is a Bert with
/// use_bidirectional_attention. Throws ValueError for a model_type of no model.
inline PretrainedModel pretrained_model_of(const ConfigFile& config) {
  const auto type = config.get<std::string>("model_type");
  const auto is_in = [&](const auto& table) {
    for (const auto types : table) {
      for (const auto& one : types) {
        if (one.model_type == type) return true;
      }
    }
    return false;
  };
  const bool is_decoder = is_in(detail::kDecoderTypes), is_encoder = is_in(detail::kEncoderTypes);
  if (is_decoder && is_encoder) {
    return config.get<bool>("use_bidirectional_attention", false) ? PretrainedModel::bert
                                                                  : PretrainedModel::gpt;
  }
  if (is_decoder) return PretrainedModel::gpt;
  if (is_encoder) return PretrainedModel::bert;
  if (is_in(detail::kPictureTypes)) return PretrainedModel::vit;
  if (is_in(detail::kSeq2SeqTypes)) return PretrainedModel::seq2seq_transformer;
  if (type == "clip" || type == "siglip") return PretrainedModel::clip;
  if (type == "whisper") return PretrainedModel::whisper;
  config.fail("model_type", "be a type that load_pretrained() reads", detail::quote(type));
}

/// Loads the model of a folder with config.json and model.safetensors, or the parts named in
/// model.safetensors.index.json; Model is
///
///   Gpt<T>                 for llama, mistral, ministral3, qwen2, qwen3, arcee, smollm3, seed_oss,
///                          ernie4_5, cwm, gemma, gemma2, vaultgemma, gemma3_text, olmo, olmo2,
///                          olmo3, exaone4, granite, granitemoe, cohere, cohere2, glm, glm4, phi,
///                          phi3, stablelm, starcoder2, nemotron, jais2, mixtral, qwen2_moe,
///                          qwen3_moe, olmoe, deepseek_v2, deepseek_v3, gpt_oss, lfm2, qwen3_next,
///                          helium, gpt2, gptj, gpt_neox, opt, bloom, mpt or falcon
///   Bert<T>                for bert, distilbert, roberta, xlm-roberta, camembert, mpnet, electra,
///                          albert, modernbert, nomic_bert, eurobert or a gemma3_text with
///                          use_bidirectional_attention, without heads; with a pooler if the file
///                          has one
///   Vit<T>                 for vit, with a classifier if the file has one, dinov2 or
///                          dinov2_with_registers
///   Clip<T>                for clip or siglip
///   Seq2SeqTransformer<T>  for bart, mbart, marian, m2m_100 (also NLLB), pegasus, t5 or mt5
///   Whisper<T>             for whisper
///
/// Results equal those of transformers in evaluation mode. Every key of the config is accounted
/// for: unsupported values and unknown keys are errors. Throws IoError for files that cannot be
/// read or break their format, otherwise ValueError, ShapeError or DTypeError, naming file and key
/// or tensor.
template <class Model>
Model load_pretrained(const std::filesystem::path& folder, const PretrainedOptions& options = {}) {
  return detail::Pretrained<Model>::load(folder, options);
}

// Loads one model_type only: another is an error.
template <class T>
Gpt<T> load_llama(const std::filesystem::path& folder, const PretrainedOptions& options = {}) {
  return detail::load_type<Gpt<T>>("llama", folder, options);
}
template <class T>
Gpt<T> load_mistral(const std::filesystem::path& folder, const PretrainedOptions& options = {}) {
  return detail::load_type<Gpt<T>>("mistral", folder, options);
}
template <class T>
Gpt<T> load_qwen2(const std::filesystem::path& folder, const PretrainedOptions& options = {}) {
  return detail::load_type<Gpt<T>>("qwen2", folder, options);
}
template <class T>
Gpt<T> load_qwen3(const std::filesystem::path& folder, const PretrainedOptions& options = {}) {
  return detail::load_type<Gpt<T>>("qwen3", folder, options);
}
template <class T>
Gpt<T> load_gemma(const std::filesystem::path& folder, const PretrainedOptions& options = {}) {
  return detail::load_type<Gpt<T>>("gemma", folder, options);
}
template <class T>
Gpt<T> load_gemma2(const std::filesystem::path& folder, const PretrainedOptions& options = {}) {
  return detail::load_type<Gpt<T>>("gemma2", folder, options);
}
template <class T>
Gpt<T> load_gpt2(const std::filesystem::path& folder, const PretrainedOptions& options = {}) {
  return detail::load_type<Gpt<T>>("gpt2", folder, options);
}
template <class T>
Bert<T> load_bert(const std::filesystem::path& folder, const PretrainedOptions& options = {}) {
  return detail::load_type<Bert<T>>("bert", folder, options);
}
template <class T>
Bert<T> load_roberta(const std::filesystem::path& folder, const PretrainedOptions& options = {}) {
  return detail::load_type<Bert<T>>("roberta", folder, options);
}
template <class T>
Bert<T> load_distilbert(const std::filesystem::path& folder,
                        const PretrainedOptions& options = {}) {
  return detail::load_type<Bert<T>>("distilbert", folder, options);
}
template <class T>
Vit<T> load_vit(const std::filesystem::path& folder, const PretrainedOptions& options = {}) {
  return detail::load_type<Vit<T>>("vit", folder, options);
}
template <class T>
Seq2SeqTransformer<T> load_bart(const std::filesystem::path& folder,
                                const PretrainedOptions& options = {}) {
  return detail::load_type<Seq2SeqTransformer<T>>("bart", folder, options);
}
template <class T>
Seq2SeqTransformer<T> load_t5(const std::filesystem::path& folder,
                              const PretrainedOptions& options = {}) {
  return detail::load_type<Seq2SeqTransformer<T>>("t5", folder, options);
}

ATTN_NAMESPACE_END
