// Seq2SeqTransformer from Hugging Face folders: BART, T5, mT5.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attn/models/pretrained/config.hpp"
#include "attn/models/seq2seq_transformer.hpp"

ATTN_NAMESPACE_BEGIN

/// Parameter names and storage of BART's files: load_state_dict(model, file, bart_names()). Both
/// embeddings are one table there.
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
                                {"generator.bias", "final_logits_bias"},
                                {"generator.weight", "lm_head.weight"}});
  return {
      .rename =
          [parts](std::string_view name) {
            // The second norm is the last one of an encoder layer.
            const bool encodes = name.starts_with("transformer.encoder.");
            return detail::renamed(
                parts(name),
                std::array{std::pair<std::string_view, std::string_view>{
                    ".norm2.", encodes ? ".final_layer_norm." : ".encoder_attn_layer_norm."}});
          },
      .ignore = {prefix + "encoder.embed_tokens.weight", prefix + "decoder.embed_tokens.weight"},
      .reshape = {"final_logits_bias"}};
}

/// Parameter names of T5. The first layer of each stack holds the relative bias that all its layers
/// add.
inline LoadOptions t5_names() {
  const auto parts =
      rename_by({{"src_embedding.words.", "shared."},
                 {"tgt_embedding.words.", "shared."},
                 {"transformer.", ""},
                 {"coder.relative_bias",
                  "coder.block.0.layer.0.SelfAttention.relative_attention_bias.weight"},
                 {"coder.norm.", "coder.final_layer_norm."},
                 {".layers.", ".block."},
                 {".self_attn.", ".layer.0.SelfAttention."},
                 {".multihead_attn.", ".layer.1.EncDecAttention."},
                 {"Attention.q_proj_", "Attention.q."},
                 {"Attention.k_proj_", "Attention.k."},
                 {"Attention.v_proj_", "Attention.v."},
                 {"Attention.out_proj.", "Attention.o."},
                 {".norm1.", ".layer.0.layer_norm."},
                 {".norm2.", ".layer.1.layer_norm."},
                 {".norm3.", ".layer.2.layer_norm."},
                 {"generator.weight", "lm_head.weight"}});
  return {.rename =
              [parts](std::string_view name) {
                const bool encodes = name.starts_with("transformer.encoder.");
                const std::string in =
                    encodes ? ".layer.1.DenseReluDense." : ".layer.2.DenseReluDense.";
                return detail::renamed(parts(name),
                                       std::array<std::pair<std::string, std::string>, 5>{
                                           {{".linear1.", in + "wi."},
                                            {".linear2.", in + "wo."},
                                            {".gate_proj.", in + "wi_0."},
                                            {".up_proj.", in + "wi_1."},
                                            {".down_proj.", in + "wo."}}});
              },
          // Old files contain the last one, which has no effect.
          .ignore = {"encoder.embed_tokens.weight", "decoder.embed_tokens.weight",
                     ".EncDecAttention.relative_attention_bias.weight"}};
}

namespace detail {

inline index_t pad_id_of(const ConfigFile& config, index_t otherwise) {
  const index_t pad = config.get<index_t>("pad_token_id", otherwise);
  if (pad < 0 || pad >= config.count("vocab_size")) {
    config.fail("pad_token_id", "lie in 0 .. vocab_size - 1", std::to_string(pad));
  }
  return pad;
}

inline Seq2SeqOptions bart_options(const ConfigFile& config) {
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
  // Keys of old files, and values that BART always has.
  detail::check_only(config, "normalize_before", false, "false");
  detail::check_only(config, "normalize_embedding", true, "true");
  detail::check_only(config, "add_final_layer_norm", false, "false");
  detail::check_only(config, "add_bias_logits", false, "false");
  detail::check_only(config, "static_position_embeddings", false, "false");
  detail::check_only(config, "tie_word_embeddings", true, "true");
  detail::check_only(config, "is_decoder", false, "false");
  Seq2SeqOptions result{.src_vocab_size = config.count("vocab_size"),
                        .tgt_vocab_size = config.count("vocab_size"),
                        .positions = Positions::learned,
                        .max_positions = config.count("max_position_embeddings"),
                        .position_offset = 2,
                        .scale_embedding = config.get<bool>("scale_embedding", false),
                        .embedding_norm = true,
                        .tied = true,
                        .output_bias = true};
  result.pad_id = pad_id_of(config, 1);
  TransformerLayerOptions& layer = result.transformer.layer;
  layer.d_model = dim;
  layer.nhead = heads;
  layer.dim_feedforward = of_both("ffn_dim");
  layer.dropout = config.get<double>("dropout", 0.1);
  layer.activation = detail::activation_of(config, "activation_function", "gelu");
  layer.attention.separate_in_proj = true;
  const index_t layers = config.count("encoder_layers");
  if (config.count("num_hidden_layers", layers) != layers) {
    config.fail("num_hidden_layers", concat("be encoder_layers = ", layers),
                std::to_string(config.count("num_hidden_layers")));
  }
  result.transformer.num_encoder_layers = layers;
  result.transformer.num_decoder_layers = config.count("decoder_layers");
  result.transformer.norm = false;
  return result;
}

inline Seq2SeqOptions t5_options(const ConfigFile& config) {
  // mT5 has an output table of its own if the file has one, whatever the config says, and never
  // scales.
  const bool is_mt5 = config.get<std::string>("model_type") == "mt5";
  const bool tied = config.get<bool>("tie_word_embeddings", true) || is_mt5;
  const index_t dim = config.count("d_model");
  Seq2SeqOptions result{.src_vocab_size = config.count("vocab_size"),
                        .tgt_vocab_size = config.count("vocab_size"),
                        .positions = Positions::none,
                        .scale_embedding = false,
                        .tied = tied,
                        .pad_target = false};
  result.pad_id = pad_id_of(config, 0);
  if (!is_mt5 && config.get<bool>("scale_decoder_outputs", tied)) {
    result.output_scale = 1 / std::sqrt(static_cast<double>(dim));
  }
  check_only(config, "is_decoder", false, "false");
  TransformerLayerOptions& layer = result.transformer.layer;
  layer.d_model = dim;
  layer.nhead = config.count("num_heads");
  layer.dim_feedforward = config.count("d_ff");
  layer.dropout = config.get<double>("dropout_rate", 0.1);
  layer.layer_norm_eps = config.get<double>("layer_norm_epsilon", 1e-6);
  layer.norm_first = true;
  layer.bias = false;
  layer.norm = NormKind::rms;
  const auto feed_forward =
      config.get<std::string>("feed_forward_proj", is_mt5 ? "gated-gelu" : "relu");
  constexpr std::tuple<std::string_view, Activation, bool, std::string_view> kKinds[] = {
      {"relu", Activation::relu, false, "relu"},
      {"gelu", Activation::gelu, false, "gelu"},
      {"silu", Activation::silu, false, "silu"},
      {"gated-gelu", Activation::gelu_tanh, true, "gelu_new"},
      {"gated-silu", Activation::silu, true, "silu"}};
  const auto* const kind = std::find_if(std::begin(kKinds), std::end(kKinds), [&](const auto& one) {
    return std::get<0>(one) == feed_forward;
  });
  if (kind == std::end(kKinds)) {
    config.fail("feed_forward_proj", "be relu, gelu, silu, gated-gelu or gated-silu",
                quote(feed_forward));
  }
  layer.activation = std::get<1>(*kind);
  layer.gated = std::get<2>(*kind);
  // Derived by transformers from the key above and written beside it.
  check_only(config, "dense_act_fn", std::string(std::get<3>(*kind)), std::get<3>(*kind));
  check_only(config, "is_gated_act", layer.gated, layer.gated ? "true" : "false");
  static_cast<void>(config.has("n_positions"));  // of old files, which never have this key
  layer.attention.head_dim = config.count("d_kv");
  layer.attention.scale = 1;
  layer.attention.separate_in_proj = true;
  result.transformer.num_encoder_layers = config.count("num_layers");
  result.transformer.num_decoder_layers =
      config.count("num_decoder_layers", result.transformer.num_encoder_layers);
  result.transformer.relative_buckets = config.count("relative_attention_num_buckets", 32);
  result.transformer.relative_max_distance = config.count("relative_attention_max_distance", 128);
  if (result.transformer.relative_buckets < 4) {
    config.fail("relative_attention_num_buckets", "be at least 4",
                std::to_string(result.transformer.relative_buckets));
  }
  if (result.transformer.relative_max_distance <= result.transformer.relative_buckets / 2) {
    config.fail("relative_attention_max_distance",
                concat("exceed ", result.transformer.relative_buckets / 2),
                std::to_string(result.transformer.relative_max_distance));
  }
  return result;
}

}  // namespace detail

/// The options of Seq2SeqTransformer for a config.json: model_type bart, t5 or mt5. Padding is
/// masked out; for T5 only in the source. Throws what gpt_options_of() throws.
inline Seq2SeqOptions seq2seq_options_of(const ConfigFile& config,
                                         const PretrainedOptions& options = {}) {
  const std::string type = detail::check_model_type(config, {"bart", "t5", "mt5"});
  const Seq2SeqOptions result =
      type == "bart" ? detail::bart_options(config) : detail::t5_options(config);
  detail::check_config_read(config, options);
  return result;
}

namespace detail {

template <class T>
Seq2SeqTransformer<T> seq2seq_from_folder(const std::filesystem::path& folder,
                                          const PretrainedOptions& options) {
  const ConfigFile config(folder / "config.json");
  check_activations<T>(config);
  Seq2SeqOptions model_options = seq2seq_options_of(config, options);
  const SafetensorsFolder file(folder);
  const TransformerOptions& t = model_options.transformer;
  const bool is_t5 = config.get<std::string>("model_type") != "bart";
  const double rows = static_cast<double>(model_options.src_vocab_size) +
                      (is_t5 ? 0.0 : 2 * static_cast<double>(model_options.max_positions));
  check_elements(config, file, t.layer, t.num_encoder_layers + t.num_decoder_layers, rows);
  LoadOptions names = is_t5 ? t5_names() : bart_names();
  const std::string prefix = is_t5 ? "" : "model.",
                    encoder = prefix + "encoder.embed_tokens.weight",
                    decoder = prefix + "decoder.embed_tokens.weight";
  const std::string source = "src_embedding.words.weight", target = "tgt_embedding.words.weight";
  for (const std::string& parameter : {source, target}) {
    names = with_tied_table(std::move(names), file, parameter, {encoder, decoder});
    if (model_options.tied) {
      names = with_tied_table(std::move(names), file, parameter, {"lm_head.weight"});
    }
  }
  // A head stored beside the table is used, whatever the config says: newer versions of
  // transformers write tie_word_embeddings = true for each T5, and do not tie tables that differ.
  if (file.contains("lm_head.weight") && names.rename(source) != "lm_head.weight") {
    model_options.tied = false;
  }
  return load_model<T, Seq2SeqTransformer<T>>(model_options, file, names, options);
}

}  // namespace detail

ATTN_NAMESPACE_END
