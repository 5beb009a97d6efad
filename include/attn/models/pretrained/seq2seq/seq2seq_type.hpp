// Seq2SeqType: a model_type of encoder-decoder folders, and what BART-style types share.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attn/models/pretrained/config.hpp"
#include "attn/models/seq2seq_transformer.hpp"

ATTN_NAMESPACE_BEGIN

/// Parameter names and storage of the files of BART and types like it: load_state_dict(model, file,
/// bart_names()). Both embeddings are one table there.
inline LoadOptions bart_names(const std::string& prefix = "model.") {
  const auto parts = rename_by({{"src_embedding.words.", prefix + "shared."},
                                {"tgt_embedding.words.", prefix + "shared."},
                                {"src_embedding.positions.", prefix + "encoder.embed_positions."},
                                {"tgt_embedding.positions.", prefix + "decoder.embed_positions."},
                                {"src_embedding.norm.", prefix + "encoder.layernorm_embedding."},
                                {"tgt_embedding.norm.", prefix + "decoder.layernorm_embedding."},
                                {"transformer.", prefix},
                                {"coder.norm.", "coder.layer_norm."},
                                {".multihead_attn.", ".encoder_attn."},
                                {"_attn.q_proj_", "_attn.q_proj."},
                                {"_attn.k_proj_", "_attn.k_proj."},
                                {"_attn.v_proj_", "_attn.v_proj."},
                                {".linear1.", ".fc1."},
                                {".linear2.", ".fc2."},
                                {".norm1.", ".self_attn_layer_norm."},
                                {".norm3.", ".final_layer_norm."},
                                {"generator.bias", "final_logits_bias"},
                                {"generator.weight", "lm_head.weight"}});
  return {.rename =
              [parts](std::string_view name) {
                // The second norm is the last one of an encoder layer.
                const bool encodes = name.starts_with("transformer.encoder.");
                return detail::renamed(
                    parts(name),
                    std::array{std::pair<std::string_view, std::string_view>{
                        ".norm2.", encodes ? ".final_layer_norm." : ".encoder_attn_layer_norm."}});
              },
          // Without learned positions these tables are computed.
          .ignore = {prefix + "encoder.embed_tokens.weight", prefix + "decoder.embed_tokens.weight",
                     ".embed_positions.weight", ".embed_positions.weights"},
          .reshape = {"final_logits_bias"}};
}

namespace detail {

/// One model_type: how its config.json becomes options, and what its files call the parameters.
struct Seq2SeqType {
  std::string_view model_type;
  Seq2SeqOptions (*options)(const ConfigFile& config);
  LoadOptions (*names)(const std::string& prefix) = bart_names;
  std::string_view prefix = "model.";
};

inline index_t pad_id_of(const ConfigFile& config, index_t otherwise) {
  const index_t pad = config.get<index_t>("pad_token_id", otherwise);
  if (pad < 0 || pad >= config.count("vocab_size")) {
    config.fail("pad_token_id", "lie in 0 .. vocab_size - 1", std::to_string(pad));
  }
  return pad;
}

/// Whether padding is masked out in targets: not if they begin with it. `start_id`: default of
/// decoder_start_token_id.
inline bool masks_target_padding(const ConfigFile& config, index_t pad_id, index_t start_id) {
  return config.get<index_t>("decoder_start_token_id", start_id) != pad_id;
}

/// How a BART-style type differs from BART.
struct BartStyle {
  Positions positions = Positions::learned;
  bool norm_first = false;  ///< norms before sublayers, and a final norm of both stacks
  bool embedding_norm = true;
  bool output_bias = true;
  bool scale_embedding = false;  ///< default of scale_embedding
  index_t pad_id = 1;            ///< default of pad_token_id
  index_t start_id = 2;          ///< default of decoder_start_token_id
  std::string activation = "gelu";
};

/// Throws ValueError for too many sinusoidal positions for weights of this size.
inline void check_sinusoidal_positions(const ConfigFile& config, const Seq2SeqOptions& options) {
  constexpr index_t kSmall = 1 << 24;
  const index_t most =
      (std::max)(options.src_vocab_size, kSmall / options.transformer.layer.d_model);
  if (options.positions != Positions::sinusoidal || options.max_positions <= most) return;
  config.fail("max_position_embeddings", concat("be at most ", most, " for weights of this size"),
              std::to_string(options.max_positions));
}

/// Both stacks from the keys of BART; with norm_first, each has a final norm.
inline TransformerOptions bart_style_transformer(const ConfigFile& config, bool norm_first,
                                                 const std::string& activation = "gelu") {
  const auto of_both = [&](std::string_view what) {
    const std::string encoder = concat("encoder_", what), decoder = concat("decoder_", what);
    const index_t value = config.count(encoder);
    if (config.count(decoder, value) != value) {
      config.fail(decoder, concat("be ", encoder, " = ", value),
                  std::to_string(config.count(decoder)));
    }
    return value;
  };
  TransformerOptions result{.num_encoder_layers = config.count("encoder_layers"),
                            .num_decoder_layers = config.count("decoder_layers"),
                            .norm = norm_first};
  TransformerLayerOptions& layer = result.layer;
  layer.d_model = config.count("d_model");
  layer.nhead = of_both("attention_heads");
  layer.dim_feedforward = of_both("ffn_dim");
  layer.dropout = config.get<double>("dropout", 0.1);
  layer.activation = activation_of(config, "activation_function", activation);
  layer.norm_first = norm_first;
  layer.attention.separate_in_proj = true;
  check_heads(config, "encoder_attention_heads", layer.d_model, layer.nhead);
  const index_t layers = result.num_encoder_layers;
  if (config.count("num_hidden_layers", layers) != layers) {
    config.fail("num_hidden_layers", concat("be encoder_layers = ", layers),
                std::to_string(config.count("num_hidden_layers")));
  }
  check_only(config, "is_decoder", false, "false");
  return result;
}

/// Options by the keys of BART.
inline Seq2SeqOptions bart_style_options(const ConfigFile& config, const BartStyle& style) {
  // Keys of old files, with the values that the type always has.
  const auto check_flag = [&](std::string_view key, bool value) {
    check_only(config, key, value, value ? "true" : "false");
  };
  check_flag("normalize_before", style.norm_first);
  check_flag("normalize_embedding", style.embedding_norm);
  check_flag("add_final_layer_norm", style.norm_first);
  check_flag("add_bias_logits", false);
  check_flag("static_position_embeddings", style.positions == Positions::sinusoidal);
  check_flag("tie_word_embeddings", true);
  const index_t pad_id = pad_id_of(config, style.pad_id);
  const Seq2SeqOptions result{
      .src_vocab_size = config.count("vocab_size"),
      .tgt_vocab_size = config.count("vocab_size"),
      .transformer = bart_style_transformer(config, style.norm_first, style.activation),
      .positions = style.positions,
      .max_positions = config.count("max_position_embeddings"),
      .position_offset = style.positions == Positions::learned ? 2 : 0,
      .scale_embedding = config.get<bool>("scale_embedding", style.scale_embedding),
      .embedding_norm = style.embedding_norm,
      .tied = true,
      .output_bias = style.output_bias,
      .pad_id = pad_id,
      .pad_target = masks_target_padding(config, pad_id, style.start_id)};
  check_sinusoidal_positions(config, result);
  return result;
}

}  // namespace detail

ATTN_NAMESPACE_END
