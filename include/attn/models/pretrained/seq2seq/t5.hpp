// T5 and mT5: RMS norms before sublayers, a bias of each distance that layers share.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attn/models/pretrained/seq2seq/seq2seq_type.hpp"

ATTN_NAMESPACE_BEGIN

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
                        .tied = tied};
  const index_t pad_id = pad_id_of(config, 0);
  result.pad_id = pad_id;
  result.pad_target = masks_target_padding(config, pad_id, pad_id);
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
  static_cast<void>(config.has("n_positions"));  // a key of old files, without effect
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

inline LoadOptions t5_type_names(const std::string&) { return t5_names(); }

inline constexpr Seq2SeqType kT5Types[] = {
    {.model_type = "t5", .options = t5_options, .names = t5_type_names, .prefix = ""},
    {.model_type = "mt5", .options = t5_options, .names = t5_type_names, .prefix = ""}};

}  // namespace detail

ATTN_NAMESPACE_END
