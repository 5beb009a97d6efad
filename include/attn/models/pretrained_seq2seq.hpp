// Encoder-decoders from Hugging Face folders: BART as Seq2SeqTransformer.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attn/models/pretrained_config.hpp"
#include "attn/models/seq2seq_transformer.hpp"

ATTN_NAMESPACE_BEGIN

/// How the files of BART name and store the parameters of Seq2SeqTransformer:
/// load_state_dict(model, file, bart_names()). Both embeddings are one table there.
inline LoadOptions bart_names(const std::string& prefix = "model.") {
  const auto parts = rename_by({{"src_embedding.words.", prefix + "shared."},
                                {"tgt_embedding.words.", prefix + "shared."},
                                {"src_embedding.positions.", prefix + "encoder.embed_positions."},
                                {"tgt_embedding.positions.", prefix + "decoder.embed_positions."},
                                {"src_embedding.norm.", prefix + "encoder.layernorm_embedding."},
                                {"tgt_embedding.norm.", prefix + "decoder.layernorm_embedding."},
                                {"transformer.", prefix},
                                {".multihead_attn.", ".encoder_attn."},
                                {"_attn.q_proj_", "_attn.q_proj."},
                                {"_attn.k_proj_", "_attn.k_proj."},
                                {"_attn.v_proj_", "_attn.v_proj."},
                                {".linear1.", ".fc1."},
                                {".linear2.", ".fc2."},
                                {".norm1.", ".self_attn_layer_norm."},
                                {".norm3.", ".final_layer_norm."},
                                {"generator.bias", "final_logits_bias"}});
  return {.rename =
              [parts](std::string_view name) {
                // The second norm is the last of an encoder's layer.
                const bool encodes = name.starts_with("transformer.encoder.");
                return detail::renamed(
                    parts(name),
                    std::array{std::pair<std::string_view, std::string_view>{
                        ".norm2.", encodes ? ".final_layer_norm." : ".encoder_attn_layer_norm."}});
              },
          .ignore = {prefix + "encoder.embed_tokens.weight", prefix + "decoder.embed_tokens.weight",
                     "lm_head.weight"},
          .reshape = {"final_logits_bias"}};
}

/// The options of Seq2SeqTransformer that a config.json asks for: model_type bart. Padding is
/// hidden. Throws as gpt_options_of().
inline Seq2SeqOptions seq2seq_options_of(const ConfigFile& config,
                                         const PretrainedOptions& options = {}) {
  detail::check_model_type(config, {"bart"});
  const auto of_both = [&](std::string_view what) {
    const std::string encoder = detail::concat("encoder_", what),
                      decoder = detail::concat("decoder_", what);
    const index_t value = config.count(encoder);
    if (config.count(decoder, value) != value) {
      config.fail(decoder, detail::concat("be ", encoder, " = ", value),
                  std::to_string(config.count(decoder)));
    }
    return value;
  };
  const index_t dim = config.count("d_model"), heads = of_both("attention_heads");
  detail::check_heads(config, "encoder_attention_heads", dim, heads);
  // Of old files, and what BART always has.
  detail::check_only(config, "normalize_before", false, "false");
  detail::check_only(config, "normalize_embedding", true, "true");
  detail::check_only(config, "add_final_layer_norm", false, "false");
  detail::check_only(config, "add_bias_logits", false, "false");
  detail::check_only(config, "static_position_embeddings", false, "false");
  detail::check_only(config, "tie_word_embeddings", true, "true");
  detail::check_only(config, "is_decoder", false, "false");
  static_cast<void>(config.has("num_hidden_layers"));  // encoder_layers again
  Seq2SeqOptions result{.src_vocab_size = config.count("vocab_size"),
                        .tgt_vocab_size = config.count("vocab_size"),
                        .positions = Positions::learned,
                        .max_positions = config.count("max_position_embeddings"),
                        .position_offset = 2,
                        .scale_embedding = config.get<bool>("scale_embedding", false),
                        .embedding_norm = true,
                        .tied = true,
                        .output_bias = true};
  const index_t pad = config.get<index_t>("pad_token_id", 1);
  if (pad < 0 || pad >= result.src_vocab_size) {
    config.fail("pad_token_id", "lie in 0 .. vocab_size - 1", std::to_string(pad));
  }
  result.pad_id = pad;
  TransformerLayerOptions& layer = result.transformer.layer;
  layer.d_model = dim;
  layer.nhead = heads;
  layer.dim_feedforward = of_both("ffn_dim");
  layer.dropout = config.get<double>("dropout", 0.1);
  layer.activation = detail::activation_of(config, "activation_function", "gelu");
  layer.attention.separate_in_proj = true;
  result.transformer.num_encoder_layers = config.count("encoder_layers");
  result.transformer.num_decoder_layers = config.count("decoder_layers");
  result.transformer.norm = false;
  detail::check_all_read(config, options);
  return result;
}

namespace detail {

template <class T>
Seq2SeqTransformer<T> seq2seq_from_folder(const std::filesystem::path& folder,
                                          const PretrainedOptions& options) {
  const ConfigFile config(folder / "config.json");
  const Seq2SeqOptions model_options = seq2seq_options_of(config, options);
  const SafetensorsFolder file(folder);
  const TransformerOptions& t = model_options.transformer;
  check_elements(
      config, file,
      elements_of(t.layer, t.num_encoder_layers + t.num_decoder_layers) +
          static_cast<double>(t.layer.d_model) *
              static_cast<double>(model_options.src_vocab_size + 2 * model_options.max_positions));
  Seq2SeqTransformer<T> model(model_options);
  load_state_dict(model, file, bart_names());
  if (options.pack) model.pack();
  return model;
}

}  // namespace detail

ATTN_NAMESPACE_END
