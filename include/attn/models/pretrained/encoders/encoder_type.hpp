// EncoderType: a model_type of encoder folders, and what BERT-style and rotary types share.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attn/models/bert.hpp"
#include "attn/models/pretrained/decoders/decoder_type.hpp"

ATTN_NAMESPACE_BEGIN

/// Parameter names of BERT's and RoBERTa's files: load_state_dict(bert, file, bert_names()). Files
/// of a model with a head have the prefix "bert." or "roberta.".
inline LoadOptions bert_names(const std::string& prefix = "") {
  return {.prefix = prefix, .rename = bert_name, .ignore = {"embeddings.position_ids"}};
}

namespace detail {

/// bert_names() with other names for some parameters.
inline LoadOptions bert_names_but(const std::string& prefix, const NamePairs& pairs) {
  LoadOptions names = bert_names(prefix);
  names.rename = [own = rename_by(pairs)](std::string_view name) { return bert_name(own(name)); };
  return names;
}

/// Names of a Bert whose files are like a decoder's.
inline LoadOptions decoder_style_names(const std::string& prefix, LoadOptions names) {
  names.prefix = prefix;
  names.rename = [theirs = std::move(names.rename)](std::string_view name) {
    constexpr std::pair<std::string_view, std::string_view> kOfGpt[] = {
        {"embeddings.", "embedding."}, {"encoder.", "blocks."}};
    return theirs(renamed(name, kOfGpt));
  };
  return names;
}

/// One model_type: how its config.json becomes options, and what its files call the parameters.
struct EncoderType {
  std::string_view model_type;
  BertOptions (*options)(const ConfigFile& config, const PretrainedOptions& given);
  LoadOptions (*names)(const std::string& prefix);
  std::string_view prefix;  ///< of files of the model with a head
  /// The word embeddings, after the prefix.
  std::string_view words = "embeddings.word_embeddings.weight";
  std::string_view pooler = "pooler.dense.weight";  ///< of files of the model with a pooler
};

/// Options by the keys of BERT.
inline BertOptions bert_style_options(const ConfigFile& config) {
  check_only(config, "is_decoder", false, "false");
  check_only(config, "add_cross_attention", false, "false");
  check_only<std::string>(config, "position_embedding_type", "absolute", "absolute");
  const BertOptions result{.vocab_size = config.count("vocab_size"),
                           .hidden_size = config.count("hidden_size"),
                           .num_hidden_layers = config.count("num_hidden_layers"),
                           .num_attention_heads = config.count("num_attention_heads"),
                           .intermediate_size = config.count("intermediate_size"),
                           .max_position_embeddings = config.count("max_position_embeddings"),
                           .type_vocab_size = config.count("type_vocab_size", 2),
                           .layer_norm_eps = config.get<double>("layer_norm_eps", 1e-12),
                           .hidden_act = activation_of(config, "hidden_act", "gelu"),
                           .hidden_dropout_prob = config.get<double>("hidden_dropout_prob", 0.1)};
  check_heads(config, "num_attention_heads", result.hidden_size, result.num_attention_heads);
  return result;
}

/// Positions of RoBERTa: padding has row `pad`, its id, of the position table; the rows of other
/// tokens follow it.
inline void skip_padding(const ConfigFile& config, BertOptions& options, index_t pad) {
  if (pad < 0 || pad >= options.max_position_embeddings - 1) {
    config.fail("pad_token_id", "lie in 0 .. max_position_embeddings - 2", std::to_string(pad));
  }
  options.skip_padding = true;
  options.position_offset = pad + 1;
  options.max_position_embeddings -= options.position_offset;
}

/// A decoder's layers with bidirectional attention; a window extends to both sides. The embeddings
/// have neither positions nor a norm.
inline BertOptions bidirectional(const GptOptions& decoder) {
  const TransformerLayerOptions& layer = decoder.layer;
  BertOptions result{.vocab_size = decoder.vocab_size,
                     .hidden_size = layer.d_model,
                     .num_hidden_layers = decoder.num_layers,
                     .num_attention_heads = layer.nhead,
                     .intermediate_size = layer.dim_feedforward,
                     .max_position_embeddings = decoder.max_positions,
                     .type_vocab_size = 0,
                     .layer_norm_eps = layer.layer_norm_eps,
                     .hidden_act = layer.activation,
                     .hidden_dropout_prob = layer.dropout,
                     .positions = Positions::none,
                     .scale_embedding = decoder.scale_embedding,
                     .embedding_norm = false,
                     .encoder = decoder.stack_options()};
  result.encoder.layer.attention.symmetric_window = true;
  return result;
}

}  // namespace detail

ATTN_NAMESPACE_END
