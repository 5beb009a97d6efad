// DecoderType: a model_type of decoder folders, and what Llama-style types share.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attn/models/gpt.hpp"
#include "attn/models/pretrained/fused_experts.hpp"
#include "attn/models/pretrained/rotary.hpp"

ATTN_NAMESPACE_BEGIN

namespace detail {

using NamePairs = std::vector<std::pair<std::string, std::string>>;

/// Parameter names of Llama's files, with the given pairs for the feed-forward.
inline LoadOptions llama_names_with(const std::string& prefix, const NamePairs& feed_forward) {
  NamePairs pairs{
      {"embedding.words.", prefix + "embed_tokens."}, {"blocks.norm.", prefix + "norm."},
      {"blocks.layers.", prefix + "layers."},         {".self_attn.q_proj_", ".self_attn.q_proj."},
      {".self_attn.k_proj_", ".self_attn.k_proj."},   {".self_attn.v_proj_", ".self_attn.v_proj."},
      {".self_attn.out_proj.", ".self_attn.o_proj."}, {".norm1.", ".input_layernorm."},
      {".norm2.", ".post_attention_layernorm."}};
  pairs.insert(pairs.end(), feed_forward.begin(), feed_forward.end());
  return {.rename = rename_by(std::move(pairs)), .ignore = {".rotary_emb.inv_freq"}};
}

}  // namespace detail

/// Parameter names and storage of Llama's files and those of most other decoders:
/// load_state_dict(gpt, file, llama_names()).
inline LoadOptions llama_names(const std::string& prefix = "model.") {
  return detail::llama_names_with(prefix, {{".gate_proj.", ".mlp.gate_proj."},
                                           {".up_proj.", ".mlp.up_proj."},
                                           {".gate_up_proj.", ".mlp.gate_up_proj."},
                                           {".down_proj.", ".mlp.down_proj."}});
}

namespace detail {

/// llama_names() with other names for some parameters.
inline LoadOptions llama_names_but(const std::string& prefix, const NamePairs& pairs) {
  LoadOptions names = llama_names(prefix);
  names.rename = [own = rename_by(pairs), others = names.rename](std::string_view name) {
    return others(own(name));
  };
  return names;
}

inline LoadOptions llama_type_names(const std::string& prefix, const ConfigFile&) {
  return llama_names(prefix);
}

/// One model_type: how its config.json becomes options, and what its files call the parameters.
struct DecoderType {
  std::string_view model_type;
  GptOptions (*options)(const ConfigFile& config, const PretrainedOptions& given);
  LoadOptions (*names)(const std::string& prefix, const ConfigFile& config) = llama_type_names;
  std::string_view prefix = "model.";              ///< of files of the model with its head
  std::string_view words = "embed_tokens.weight";  ///< the word embeddings, after the prefix
  std::string_view head = "lm_head.weight";
  /// The rows of the joint weight of queries, keys and values are ordered by key/value head, each
  /// with its queries, not by kind.
  bool qkv_by_head = false;
  FusedExperts fused = {};  ///< tensors of all experts of a layer
};

/// Keys and defaults in which Llama-style types differ.
struct DecoderKeys {
  std::string_view norm_eps = "rms_norm_eps";
  double default_norm_eps = 1e-6;
  std::string_view activation = "hidden_act";
  std::string activation_default = "silu";
  bool tied = false;     ///< default of tie_word_embeddings
  index_t head_dim = 0;  ///< default of head_dim; 0: hidden_size / num_attention_heads
  RotaryDefaults rotary = {};
};

/// Throws ValueError for more positions than check_positions() accepts.
inline void check_config_positions(const ConfigFile& config, const GptOptions& options) {
  check_positions(options, [&](const std::string& expected, const std::string& found) {
    config.fail("max_position_embeddings", expected, found);
  });
}

/// Options of a Llama-style decoder without biases: pre-norm RMS norms, a gated feed-forward,
/// rotary embedding, grouped heads.
inline GptOptions llama_style_options(const ConfigFile& config, const PretrainedOptions& given,
                                      const DecoderKeys& keys = {}) {
  const index_t dim = config.count("hidden_size"), heads = config.count("num_attention_heads");
  GptOptions options{.vocab_size = config.count("vocab_size"),
                     .num_layers = config.count("num_hidden_layers"),
                     .positions = Positions::none,
                     .tied = config.get<bool>("tie_word_embeddings", keys.tied)};
  options.layer = {.d_model = dim,
                   .nhead = heads,
                   .dim_feedforward = config.count("intermediate_size"),
                   .dropout = 0,
                   .activation = activation_of(config, keys.activation, keys.activation_default),
                   .layer_norm_eps = config.get<double>(keys.norm_eps, keys.default_norm_eps),
                   .norm_first = true,
                   .bias = false,
                   .gated = true,
                   .norm = NormKind::rms};
  MultiHeadAttentionOptions& attention = options.layer.attention;
  attention.num_kv_heads = config.count("num_key_value_heads", heads);
  if (heads % attention.num_kv_heads != 0) {
    config.fail("num_key_value_heads", concat("divide num_attention_heads = ", heads),
                std::to_string(attention.num_kv_heads));
  }
  if (!config.has("head_dim") && keys.head_dim == 0) {
    check_heads(config, "num_attention_heads", dim, heads);
  }
  attention.head_dim = config.count("head_dim", keys.head_dim > 0 ? keys.head_dim : dim / heads);
  if (attention.head_dim % 2 != 0) {
    config.fail("head_dim", "be even, because rotary embeddings rotate pairs",
                std::to_string(attention.head_dim));
  }
  attention.separate_in_proj = true;
  attention.rotary = rotary_of(config, given, attention.head_dim, keys.rotary);
  options.max_positions = attention.rotary->max_positions;
  if (given.max_positions == 0) check_config_positions(config, options);
  return options;
}

/// Sets the biases of the query, key, value and output projections.
inline void set_attention_bias(GptOptions& options, bool in, bool out) {
  options.layer.attention.in_proj_bias = in;
  options.layer.attention.out_proj_bias = out;
}

/// Norms q_norm and k_norm of each head, with the epsilon of the other norms.
inline void set_query_key_norm(GptOptions& options) {
  options.layer.attention.query_key_norm = NormKind::rms;
  options.layer.attention.query_key_norm_eps = options.layer.layer_norm_eps;
}

/// clip_qkv, a positive number or null.
inline void set_clip_qkv(GptOptions& options, const ConfigFile& config) {
  if (!config.has("clip_qkv")) return;
  const auto limit = config.get<double>("clip_qkv");
  if (!(limit > 0)) config.fail("clip_qkv", "be positive, null or missing", attn::to_string(limit));
  options.layer.attention.clip_qkv = limit;
}

/// Layer norms instead of RMS norms.
inline void set_layer_norm(GptOptions& options, bool bias) {
  options.layer.norm = NormKind::layer;
  options.layer.norm_bias = bias;
}

/// Rotary options of layers with a window, of base `local_theta` and without scaling, and of the
/// other layers, if rope_parameters does not describe both kinds.
inline void set_rotary_of_kinds(GptOptions& options, const ConfigFile& config,
                                const PretrainedOptions& given, const RotaryDefaults& defaults,
                                std::optional<double> local_theta = {}) {
  const index_t head_dim = options.layer.attention.head_dim;
  const RotaryOptions whole = rotary_of(config, given, head_dim, defaults);
  RotaryOptions local{.dim = head_dim, .theta = local_theta.value_or(whole.theta)};
  if (holds_kinds(config)) local = rotary_of(config, given, head_dim, {}, "sliding_attention");
  local.max_positions = whole.max_positions;
  options.layer.attention.rotary = whole;
  options.max_positions = whole.max_positions;
  set_rotary_by_window(options, local, whole);
}

}  // namespace detail

ATTN_NAMESPACE_END
