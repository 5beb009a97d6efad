// Common parts of config.json files: activations, sizes, keys without effect.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "attn/io/config_file.hpp"
#include "attn/io/safetensors/folder.hpp"
#include "attn/io/state_dict.hpp"
#include "attn/layers/encoder_layer.hpp"
#include "attn/models/float16_weight.hpp"

ATTN_NAMESPACE_BEGIN

/// Options of load_pretrained().
struct PretrainedOptions {
  index_t max_positions = 0;  ///< positions in the rotary table; 0: the config's
  bool pack = true;           ///< pack weights for the kernels, which stores a second copy of each
  /// Precision of calls that use the packed copies: see Linear::pack().
  MatmulPrecision matmul_precision = MatmulPrecision::highest;
  /// Element of the weight matrices of a float model: BF16 or F16 halve their memory, without
  /// packed copies; see store_weights(). If not given, the model's element.
  std::optional<DType> weights = {};
  /// Unknown keys of config.json to accept, such as "attn_factor" or "rope_scaling.attn_factor"
  /// within an object; other unknown keys are errors.
  std::vector<std::string> ignore_keys = {};
};

namespace detail {

/// A model with the weights of a folder, changed by finish(model), stored and packed as `options`
/// specify. Throws ValueError for options.weights other than T if T is not float.
template <class T, class Model, TensorFile File, class ModelOptions, class F>
Model load_model(const ModelOptions& model_options, const File& file, const LoadOptions& names,
                 const PretrainedOptions& options, F finish) {
  Model model(model_options);
  load_state_dict(model, file, names);
  finish(model);
  const DType element = options.weights.value_or(dtype_of<T>());
  if constexpr (std::same_as<T, float>) {
    store_weights(model, element);
  } else if (element != dtype_of<T>()) {
    throw ValueError(message("load_pretrained", "weights",
                             "be " + std::string(name(dtype_of<T>())) + ", the model's own",
                             name(element)));
  }
  if (options.pack) model.pack(options.matmul_precision);
  return model;
}
template <class T, class Model, TensorFile File, class ModelOptions>
Model load_model(const ModelOptions& model_options, const File& file, const LoadOptions& names,
                 const PretrainedOptions& options) {
  return load_model<T, Model>(model_options, file, names, options, [](Model&) {});
}

/// Throws ValueError for float16 models whose residual stream exceeds 65504: transformers keeps
/// parts of T5 in float and clamps others; it recommends bfloat16 for Gemma.
template <class T>
void check_activations(const ConfigFile& config) {
  if constexpr (std::same_as<T, float16>) {
    const auto type = config.get<std::string>("model_type");
    for (const std::string_view one :
         {"t5", "mt5", "gemma", "gemma2", "gemma3_text", "vaultgemma"}) {
      if (type != one) continue;
      config.fail("model_type",
                  "be a model whose activations fit float16 (load this one in float or bfloat16; "
                  "PretrainedOptions::weights = F16 stores its weights in float16)",
                  quote(type));
    }
  }
}

/// Returns model_type. Throws ValueError unless it is one of `known`.
inline std::string check_model_type(const ConfigFile& config,
                                    std::initializer_list<std::string_view> known) {
  const auto type = config.get<std::string>("model_type");
  if (std::find(known.begin(), known.end(), type) != known.end()) return type;
  std::string list;
  for (const std::string_view one : known) list.append(list.empty() ? "" : ", ").append(one);
  config.fail("model_type", known.size() == 1 ? "be " + list : "be one of " + list, quote(type));
}

/// The entry of a table of types, in spans, for model_type. Throws ValueError if there is none.
template <class Type, class Table>
const Type& type_of(const ConfigFile& config, const Table& table) {
  const auto name = config.get<std::string>("model_type");
  std::string known;
  for (const std::span<const Type> types : table) {
    for (const Type& type : types) {
      if (type.model_type == name) return type;
      known.append(known.empty() ? "" : ", ").append(type.model_type);
    }
  }
  config.fail("model_type", "be one of " + known, quote(name));
}

inline Activation activation_of(const ConfigFile& config, std::string_view key,
                                const std::string& otherwise) {
  const std::string name = config.get<std::string>(key, otherwise);
  constexpr std::pair<std::string_view, Activation> kNames[] = {
      {"relu", Activation::relu},           {"relu2", Activation::relu_squared},
      {"gelu", Activation::gelu},           {"gelu_python", Activation::gelu},
      {"gelu_new", Activation::gelu_tanh},  {"gelu_pytorch_tanh", Activation::gelu_tanh},
      {"gelu_fast", Activation::gelu_tanh}, {"silu", Activation::silu},
      {"swish", Activation::silu},          {"quick_gelu", Activation::quick_gelu},
  };
  for (const auto& [theirs, ours] : kNames) {
    if (name == theirs) return ours;
  }
  config.fail(key, "be relu, relu2, gelu, gelu_new, gelu_pytorch_tanh, quick_gelu or silu",
              quote(name));
}

/// Throws ValueError if a key requests something unsupported: it must be missing or have this
/// value.
template <class T>
void check_only(const ConfigFile& config, std::string_view key, const T& value,
                std::string_view shown) {
  if (config.get<T>(key, value) != value) {
    config.fail(key, concat("be ", shown, " or missing"), "another value");
  }
}

/// Keys of training, tokenizers, generation, other heads and output formats, which have no effect
/// on results.
// clang-format off
inline constexpr std::string_view kKeysWithoutEffect[] = {
    "_attn_implementation", "_attn_implementation_autoset", "_commit_hash",
    "_flash_attn_2_enabled", "_name_or_path", "_num_labels", "activation_dropout", "architectures",
    "attention_dropout", "attention_probs_dropout_prob", "attention_softmax_in_fp32", "attn_pdrop",
    "author", "auto_map", "bad_words_ids", "begin_suppress_tokens", "bos_token", "bos_token_id",
    "cache_implementation", "cell", "chunk_size_feed_forward", "classif_dropout",
    "classifier_activation", "classifier_bias", "classifier_dropout", "classifier_dropout_prob",
    "classifier_pooling", "clf_pooling", "cls_token_id", "created_date",
    "cross_attention_hidden_size", "custom_pipelines", "decoder_bias", "decoder_layerdrop",
    "decoder_start_token_id", "deterministic_flash_attn", "directionality", "diversity_penalty",
    "do_sample", "dropout", "dtype", "early_stopping", "embd_pdrop", "embedding_dropout",
    "encoder_layerdrop", "encoder_no_repeat_ngram_size", "encoder_stride", "eod_token_id",
    "eos_token", "eos_token_id", "eos_token_ids", "exponential_decay_length_penalty",
    "extra_pos_embeddings", "finetuning_task", "force_bos_token_to_be_generated",
    "forced_bos_token_id", "forced_eos_token_id", "gradient_checkpointing", "hidden_dropout",
    "hidden_dropout_prob", "id2label", "init_std", "initializer_cutoff_factor",
    "initializer_factor", "initializer_range", "is_encoder_decoder", "is_llama_config",
    "kobart_version", "label2id", "language", "layerdrop", "length_penalty", "license",
    "mask_token", "mask_token_id", "max_length", "max_sequence_length", "min_length",
    "mlp_dropout", "model_max_length", "model_type", "n_special", "name", "no_repeat_ngram_size",
    "num_beam_groups", "num_beams", "num_labels", "num_return_sequences", "num_steps",
    "output_attentions", "output_hidden_states", "output_past", "output_router_logits",
    "output_scores", "pad_token", "pad_token_id", "pooler_fc_size", "pooler_num_attention_heads",
    "pooler_num_fc_layers", "pooler_size_per_head", "pooler_type", "pre_trained",
    "predict_special_tokens", "prefix", "pretraining_tp", "problem_type", "qa_dropout",
    "reference_compile", "remove_invalid_values", "reorder_and_upcast_attn",
    "repad_logits_with_grad", "repetition_penalty", "replacing_rate", "resid_pdrop",
    "residual_dropout", "return_dict", "return_dict_in_generate", "router_aux_loss_coef",
    "router_jitter_noise", "save_step", "sbert_ce_default_activation_function",
    "scale_attention_softmax_in_fp32", "sentence_transformers", "sep_token_id",
    "seq_classif_dropout", "sparse_pred_ignore_index", "sparse_prediction", "structure",
    "student_decoder_layers", "student_encoder_layers", "summary_activation",
    "summary_first_dropout", "summary_last_dropout", "summary_proj_to_labels", "summary_type",
    "summary_use_proj", "suppress_tokens", "task_specific_params", "temperature", "tf_legacy_loss",
    "tie_encoder_decoder", "tie_weights_", "tie_word_embeddings", "tokenizer_class", "top_k",
    "top_p", "torch_dtype", "torchscript", "training", "transformers.js_config",
    "transformers_version", "typical_p", "unsloth_fixed", "unsloth_version", "use_bfloat16",
    "use_cache", "use_parallel_embedding"};
// clang-format on

/// Keys that have no effect with this value.
inline constexpr std::pair<std::string_view, bool> kKeysOffAt[] = {
    {"add_cross_attention", false},
    {"attention_bias", false},
    {"do_blenderbot_90_layernorm", false},
    {"is_decoder", false},
    {"learned_embeddings", true},
    {"mlp_bias", false},
    {"rope_interleaved", false},
    {"scale_embeddings", false},
    {"use_mrope", false}};

/// Whether ignore_keys contains a key; a key in an object may be given as
/// "rope_scaling.attn_factor" or "attn_factor".
inline bool is_ignored(const PretrainedOptions& options, std::string_view key) {
  const std::size_t dot = key.rfind('.');
  return is_listed(options.ignore_keys, key) ||
         (dot != key.npos && is_listed(options.ignore_keys, key.substr(dot + 1)));
}

/// Throws ValueError for keys of the config, or of an object in it, that were neither read nor
/// ignored and may affect results.
inline void check_all_read(const ConfigFile& config, const PretrainedOptions& options) {
  std::vector<std::string> unknown;
  for (const std::string& key : config.unread()) {
    const std::string_view name = std::string_view(key).substr(key.rfind('.') + 1);
    const auto* off =
        std::ranges::find(kKeysOffAt, name, &std::pair<std::string_view, bool>::first);
    const bool is_off =
        off != std::ranges::end(kKeysOffAt) && config.get<bool>(name) == off->second;
    const auto is_known = [](std::string_view one) {
      return std::ranges::count(kKeysWithoutEffect, one) > 0;
    };
    if (!is_off && !is_known(key) && !is_known(name) && !is_ignored(options, key)) {
      unknown.push_back(key);
    }
  }
  if (unknown.empty()) return;
  throw ValueError(message("load_pretrained", quote(config.file_name()),
                           "have no unknown keys (PretrainedOptions::ignore_keys accepts them)",
                           list_text(unknown, "of them")));
}

/// check_all_read() of a whole config.json.
inline void check_config_read(const ConfigFile& config, const PretrainedOptions& options) {
  if (config.has("pruned_heads") && !config.object("pruned_heads").keys().empty()) {
    config.fail("pruned_heads", "be empty or missing", "some");
  }
  check_all_read(config, options);
}

/// Returns names; if the file lacks the usual name of the table `parameter`, maps it to the first
/// of `others` that the file contains: a file may store a tied table under the name of any layer
/// that shares it.
inline LoadOptions with_tied_table(LoadOptions names, const SafetensorsFolder& file,
                                   std::string parameter,
                                   std::initializer_list<std::string_view> others) {
  if (file.contains(names.rename(parameter))) return names;
  const auto* found =
      std::ranges::find_if(others, [&](std::string_view name) { return file.contains(name); });
  if (found == others.end()) return names;
  names.rename = [usual = std::move(names.rename), parameter = std::move(parameter),
                  stored = std::string(*found)](std::string_view name) {
    return name == parameter ? stored : usual(name);
  };
  return names;
}

/// A size in double, in which products of sizes do not overflow.
inline double to_double(index_t n) { return static_cast<double>(n); }

/// The layers of a stack that have no attention, and the elements of their matrices and
/// convolutions.
struct RecurrentLayers {
  index_t count = 0;
  double elements = 0;
};

/// Throws ValueError if a config describes more parameters than its files have elements, before
/// memory is allocated for them. Counts the weight matrices of the layers, of which the first
/// `dense_layers` have no experts and some are `recurrent`, and `rows` rows of d_model elements in
/// tables.
template <TensorFile File>
void check_elements(const ConfigFile& config, const File& file,
                    const TransformerLayerOptions& layer, index_t num_layers, double rows,
                    index_t dense_layers = 0, const RecurrentLayers& recurrent = {}) {
  const MultiHeadAttentionOptions& attention = layer.attention;
  const double dim = to_double(layer.d_model), heads = to_double(layer.nhead);
  const double head_dim =
      attention.head_dim > 0 ? to_double(attention.head_dim) : std::floor(dim / heads);
  const double kv_heads = attention.num_kv_heads > 0 ? to_double(attention.num_kv_heads) : heads;
  const MixtureOfExpertsOptions& experts = layer.experts;
  const double expert_rows =
      3 * (to_double(experts.num_experts) * to_double(experts.dim_feedforward) +
           to_double(experts.dim_shared));
  const double dense = to_double(experts.num_experts > 0 ? dense_layers : num_layers);
  const double feed_forward_rows =
      dense * (layer.gated ? 3 : 2) * to_double(layer.dim_feedforward) +
      (to_double(num_layers) - dense) * expert_rows;
  // Latent attention counts only its output projection, the largest matrix.
  const LatentAttentionOptions& latent = layer.latent;
  const double attention_rows = latent.kv_lora_rank > 0 ? heads * to_double(latent.head_dim_v)
                                                        : 2 * (heads + kv_heads) * head_dim;
  const double with_attention = to_double(num_layers - recurrent.count);
  const double expected =
      dim * (with_attention * attention_rows + feed_forward_rows + rows) + recurrent.elements;
  double found = 0;
  for (const std::string& name : file.names()) {
    double elements = 1;
    for (const index_t extent : file.shape(name)) elements *= to_double(extent);
    found += elements;
  }
  if (expected <= found) return;
  throw ValueError(message("load_pretrained", quote(config.file_name()),
                           concat("describe a model that ", quote(file.file_name()),
                                  " holds, of up to ", attn::to_string(found), " numbers"),
                           attn::to_string(expected)));
}

/// Throws ValueError unless the number of heads divides the width.
inline void check_heads(const ConfigFile& config, std::string_view key, index_t width,
                        index_t heads) {
  if (width % heads == 0) return;
  config.fail(key, concat("divide the width of ", width), std::to_string(heads));
}

}  // namespace detail

ATTN_NAMESPACE_END
