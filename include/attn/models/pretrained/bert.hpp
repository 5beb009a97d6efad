// Bert from Hugging Face folders: BERT, RoBERTa, XLM-RoBERTa, CamemBERT, DistilBERT.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attn/models/bert.hpp"
#include "attn/models/pretrained/config.hpp"

ATTN_NAMESPACE_BEGIN

/// Parameter names of BERT's and RoBERTa's files: load_state_dict(bert, file, bert_names()). Files
/// of a model with a head have the prefix "bert." or "roberta.".
inline LoadOptions bert_names(const std::string& prefix = "") {
  return {.prefix = prefix, .rename = bert_name, .ignore = {"embeddings.position_ids"}};
}

/// Parameter names of DistilBERT, with the prefix "distilbert." in files with a head.
inline LoadOptions distilbert_names(const std::string& prefix = "") {
  return {.prefix = prefix,
          .rename = rename_by({{"embeddings.words.", "embeddings.word_embeddings."},
                               {"embeddings.positions.", "embeddings.position_embeddings."},
                               {"embeddings.norm.", "embeddings.LayerNorm."},
                               {"encoder.layers.", "transformer.layer."},
                               {".self_attn.q_proj_", ".attention.q_lin."},
                               {".self_attn.k_proj_", ".attention.k_lin."},
                               {".self_attn.v_proj_", ".attention.v_lin."},
                               {".self_attn.out_proj.", ".attention.out_lin."},
                               {".norm1.", ".sa_layer_norm."},
                               {".linear1.", ".ffn.lin1."},
                               {".linear2.", ".ffn.lin2."},
                               {".norm2.", ".output_layer_norm."}}),
          .ignore = {"embeddings.position_ids"}};
}

namespace detail {

inline BertOptions distilbert_options(const ConfigFile& config) {
  // Sinusoidal positions are stored like learned ones.
  static_cast<void>(config.get<bool>("sinusoidal_pos_embds", false));
  return {.vocab_size = config.count("vocab_size"),
          .hidden_size = config.count("dim"),
          .num_hidden_layers = config.count("n_layers"),
          .num_attention_heads = config.count("n_heads"),
          .intermediate_size = config.count("hidden_dim"),
          .max_position_embeddings = config.count("max_position_embeddings"),
          .type_vocab_size = 0,
          .hidden_act = activation_of(config, "activation", "gelu"),
          .hidden_dropout_prob = config.get<double>("dropout", 0.1)};
}

}  // namespace detail

/// The options of Bert for a config.json: model_type bert, distilbert, roberta, xlm-roberta or
/// camembert; the last two are identical to roberta. Throws what gpt_options_of() throws.
inline BertOptions bert_options_of(const ConfigFile& config,
                                   const PretrainedOptions& options = {}) {
  const std::string type = detail::check_model_type(
      config, {"bert", "distilbert", "roberta", "xlm-roberta", "camembert"});
  BertOptions result;
  if (type == "distilbert") {
    result = detail::distilbert_options(config);
  } else {
    detail::check_only(config, "is_decoder", false, "false");
    detail::check_only(config, "add_cross_attention", false, "false");
    detail::check_only<std::string>(config, "position_embedding_type", "absolute", "absolute");
    // TinyBERT files repeat hidden_size.
    detail::check_only(config, "emb_size", config.count("hidden_size"), "hidden_size");
    result = {.vocab_size = config.count("vocab_size"),
              .hidden_size = config.count("hidden_size"),
              .num_hidden_layers = config.count("num_hidden_layers"),
              .num_attention_heads = config.count("num_attention_heads"),
              .intermediate_size = config.count("intermediate_size"),
              .max_position_embeddings = config.count("max_position_embeddings"),
              .type_vocab_size = config.count("type_vocab_size", 2),
              .layer_norm_eps = config.get<double>("layer_norm_eps", 1e-12),
              .hidden_act = detail::activation_of(config, "hidden_act", "gelu"),
              .hidden_dropout_prob = config.get<double>("hidden_dropout_prob", 0.1)};
  }
  if (type != "bert" && type != "distilbert") {
    // The padding's position is the row of its id; other positions follow it.
    result.skip_padding = true;
    result.position_offset = config.get<index_t>("pad_token_id", 1) + 1;
    if (result.position_offset < 1 || result.position_offset >= result.max_position_embeddings) {
      config.fail("pad_token_id", "lie in 0 .. max_position_embeddings - 2",
                  std::to_string(result.position_offset - 1));
    }
    result.max_position_embeddings -= result.position_offset;
  }
  detail::check_heads(config, type == "distilbert" ? "n_heads" : "num_attention_heads",
                      result.hidden_size, result.num_attention_heads);
  detail::check_config_read(config, options);
  return result;
}

namespace detail {

template <class T>
Bert<T> bert_from_folder(const std::filesystem::path& folder, const PretrainedOptions& options) {
  const ConfigFile config(folder / "config.json");
  BertOptions bert_options = bert_options_of(config, options);
  const auto type = config.get<std::string>("model_type");
  const SafetensorsFolder file(folder);
  const TransformerStackOptions stack = bert_options.encoder_options();
  check_elements(
      config, file, stack.layer, stack.num_layers,
      static_cast<double>(bert_options.vocab_size + bert_options.max_position_embeddings));
  // Files of a model with a head.
  const std::string prefix = file.contains("embeddings.word_embeddings.weight") ? ""
                             : type == "bert" || type == "distilbert"           ? type + "."
                                                                                : "roberta.";
  bert_options.pooler = file.contains(prefix + "pooler.dense.weight");
  LoadOptions names = type == "distilbert" ? distilbert_names(prefix) : bert_names(prefix);
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
