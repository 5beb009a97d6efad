// Gpt from Hugging Face folders: Llama, Mistral, Qwen2, Qwen3, Gemma, Gemma 2, GPT-2.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attn/models/gpt.hpp"
#include "attn/models/pretrained/rotary.hpp"

ATTN_NAMESPACE_BEGIN

/// Parameter names and storage of Llama's, Mistral's, Qwen2's and Qwen3's files:
/// load_state_dict(gpt, file, llama_names()).
inline LoadOptions llama_names(const std::string& prefix = "model.") {
  return {.rename = rename_by({{"embedding.words.", prefix + "embed_tokens."},
                               {"blocks.norm.", prefix + "norm."},
                               {"blocks.layers.", prefix + "layers."},
                               {".self_attn.q_proj_", ".self_attn.q_proj."},
                               {".self_attn.k_proj_", ".self_attn.k_proj."},
                               {".self_attn.v_proj_", ".self_attn.v_proj."},
                               {".self_attn.out_proj.", ".self_attn.o_proj."},
                               {".norm1.", ".input_layernorm."},
                               {".norm2.", ".post_attention_layernorm."},
                               {".gate_proj.", ".mlp.gate_proj."},
                               {".up_proj.", ".mlp.up_proj."},
                               {".down_proj.", ".mlp.down_proj."}}),
          .ignore = {".rotary_emb.inv_freq"}};
}

/// Parameter names of Gemma, whose norms scale by 1 + weight.
inline LoadOptions gemma_names(const std::string& prefix = "model.") {
  LoadOptions names = llama_names(prefix);
  names.add_one = {".input_layernorm.weight", ".post_attention_layernorm.weight",
                   prefix + "norm.weight"};
  return names;
}

/// Parameter names of Gemma 2, which also has norms after attention and feed-forward.
inline LoadOptions gemma2_names(const std::string& prefix = "model.") {
  LoadOptions names = gemma_names(prefix);
  const auto norms = rename_by({{".norm1_behind.", ".post_attention_layernorm."},
                                {".norm2_behind.", ".post_feedforward_layernorm."},
                                {".norm2.", ".pre_feedforward_layernorm."}});
  names.rename = [norms, others = names.rename](std::string_view name) {
    return others(norms(name));
  };
  names.add_one.insert(names.add_one.end(),
                       {".pre_feedforward_layernorm.weight", ".post_feedforward_layernorm.weight"});
  return names;
}

/// Parameter names of GPT-2, whose linear weights are stored (in, out), with q, k and v as one.
/// Files of the model without its head have no prefix.
inline LoadOptions gpt2_names(const std::string& prefix = "transformer.") {
  return {.rename = rename_by({{"embedding.words.", prefix + "wte."},
                               {"embedding.positions.", prefix + "wpe."},
                               {"blocks.norm.", prefix + "ln_f."},
                               {"blocks.layers.", prefix + "h."},
                               {".self_attn.in_proj_", ".attn.c_attn."},
                               {".self_attn.out_proj.", ".attn.c_proj."},
                               {".norm1.", ".ln_1."},
                               {".norm2.", ".ln_2."},
                               {".linear1.", ".mlp.c_fc."},
                               {".linear2.", ".mlp.c_proj."}}),
          .ignore = {".attn.bias", ".attn.masked_bias"},
          .transpose = {".c_attn.weight", ".c_proj.weight", ".c_fc.weight"}};
}

namespace detail {

inline GptOptions gpt2_options(const ConfigFile& config) {
  const index_t dim = config.count("n_embd"), heads = config.count("n_head");
  check_heads(config, "n_head", dim, heads);
  check_only(config, "add_cross_attention", false, "false");
  check_only(config, "scale_attn_by_inverse_layer_idx", false, "false");
  if (config.has("n_ctx")) static_cast<void>(config.count("n_ctx"));  // the name in old files
  GptOptions options{.vocab_size = config.count("vocab_size"),
                     .num_layers = config.count("n_layer"),
                     .max_positions = config.count("n_positions"),
                     .tied = config.get<bool>("tie_word_embeddings", true)};
  options.layer = {.d_model = dim,
                   .nhead = heads,
                   .dim_feedforward = config.count("n_inner", 4 * dim),
                   .dropout = config.get<double>("resid_pdrop", 0.1),
                   .activation = activation_of(config, "activation_function", "gelu_new"),
                   .layer_norm_eps = config.get<double>("layer_norm_epsilon", 1e-5),
                   .norm_first = true};
  if (!config.get<bool>("scale_attn_weights", true)) options.layer.attention.scale = 1;
  return options;
}

/// Options of Llama-style decoders.
inline GptOptions llama_options(const ConfigFile& config, const std::string& type,
                                const PretrainedOptions& given) {
  const bool is_gemma2 = type == "gemma2", is_gemma = type == "gemma" || is_gemma2;
  const bool is_qwen = type == "qwen2" || type == "qwen3";
  const index_t dim = config.count("hidden_size"), heads = config.count("num_attention_heads");
  GptOptions options{.vocab_size = config.count("vocab_size"),
                     .num_layers = config.count("num_hidden_layers"),
                     .positions = Positions::none,
                     .scale_embedding = is_gemma,
                     .tied = config.get<bool>("tie_word_embeddings", is_gemma)};
  options.layer = {
      .d_model = dim,
      .nhead = heads,
      .dim_feedforward = config.count("intermediate_size"),
      .dropout = 0,
      .activation = activation_of(config, "hidden_act", is_gemma ? "gelu_pytorch_tanh" : "silu"),
      .layer_norm_eps = config.get<double>("rms_norm_eps", 1e-6),
      .norm_first = true,
      .norm_behind = is_gemma2,
      .bias = type == "llama" && config.get<bool>("mlp_bias", false),
      .gated = true,
      .norm = NormKind::rms};
  MultiHeadAttentionOptions& attention = options.layer.attention;
  const bool all_biases =
      type != "mistral" && type != "qwen2" && config.get<bool>("attention_bias", false);
  attention.in_proj_bias = all_biases || type == "qwen2";
  attention.out_proj_bias = all_biases;
  attention.num_kv_heads = config.count("num_key_value_heads", heads);
  if (heads % attention.num_kv_heads != 0) {
    config.fail("num_key_value_heads", concat("divide num_attention_heads = ", heads),
                std::to_string(attention.num_kv_heads));
  }
  if (!config.has("head_dim")) check_heads(config, "num_attention_heads", dim, heads);
  attention.head_dim = config.count("head_dim", type == "qwen3" ? 128
                                                : is_gemma      ? 256
                                                                : dim / heads);
  if (attention.head_dim % 2 != 0) {
    config.fail("head_dim", "be even, because rotary embeddings rotate pairs",
                std::to_string(attention.head_dim));
  }
  attention.separate_in_proj = true;
  if (type == "qwen3") {
    attention.query_key_norm = NormKind::rms;
    attention.query_key_norm_eps = options.layer.layer_norm_eps;
  }
  attention.rotary = rotary_of(config, given);
  options.max_positions = attention.rotary->max_positions;
  if (type == "mistral") {
    options.windows = windows_of(config, options.num_layers, true, [](index_t) { return true; });
  } else if (is_qwen) {
    const index_t first =
        config.has("max_window_layers") ? config.get<index_t>("max_window_layers") : 28;
    options.windows =
        windows_of(config, options.num_layers, config.get<bool>("use_sliding_window", false),
                   [&](index_t n) { return n >= first; });
    // Without use_sliding_window its size has no effect.
    static_cast<void>(config.has("sliding_window"));
  }
  if (is_gemma2) {
    const double scalar = config.get<double>("query_pre_attn_scalar");
    if (!(scalar > 0)) config.fail("query_pre_attn_scalar", "be positive", to_string(scalar));
    attention.scale = 1 / std::sqrt(scalar);
    attention.softcap = config.get<double>("attn_logit_softcapping");
    options.logit_softcap = config.get<double>("final_logit_softcapping");
    options.windows =
        windows_of(config, options.num_layers, true, [](index_t n) { return n % 2 == 0; });
    // Early Gemma 2 files repeat sliding_window.
    if (config.has("sliding_window_size")) {
      check_only(config, "sliding_window_size", config.count("sliding_window", 4096),
                 "sliding_window");
    }
  }
  if (is_gemma) {
    // What older files call gelu was always the tanh approximation.
    if (options.layer.activation == Activation::gelu)
      options.layer.activation = Activation::gelu_tanh;
    if (config.has("hidden_activation")) {
      options.layer.activation = activation_of(config, "hidden_activation", "");
    }
    check_only(config, "use_bidirectional_attention", false, "false");
  }
  if (given.max_positions == 0) {
    check_positions(options, [&](const std::string& expected, const std::string& found) {
      config.fail("max_position_embeddings", expected, found);
    });
  }
  return options;
}

}  // namespace detail

/// The options of Gpt for a config.json: model_type llama, mistral, qwen2, qwen3, gemma, gemma2 or
/// gpt2. Throws ValueError, naming file and key, for missing keys, wrong types, values out of
/// range, unsupported values, and unknown keys.
inline GptOptions gpt_options_of(const ConfigFile& config, const PretrainedOptions& options = {}) {
  const std::string type = detail::check_model_type(
      config, {"llama", "mistral", "qwen2", "qwen3", "gemma", "gemma2", "gpt2"});
  const GptOptions result =
      type == "gpt2" ? detail::gpt2_options(config) : detail::llama_options(config, type, options);
  detail::check_config_read(config, options);
  return result;
}

namespace detail {

template <class T>
Gpt<T> gpt_from_folder(const std::filesystem::path& folder, const PretrainedOptions& options) {
  const ConfigFile config(folder / "config.json");
  check_activations<T>(config);
  GptOptions gpt_options = gpt_options_of(config, options);
  const auto type = config.get<std::string>("model_type");
  const SafetensorsFolder file(folder);
  // Files of the model without its head have no prefix.
  const bool is_gpt2 = type == "gpt2";
  const std::string prefix = is_gpt2 ? (file.contains("ln_f.weight") ? "" : "transformer.")
                                     : (file.contains("norm.weight") ? "" : "model.");
  const std::string table = prefix + (is_gpt2 ? "wte.weight" : "embed_tokens.weight");
  // transformers does not tie tables that differ: a head stored beside the table is used, whatever
  // the config says. A head without a table serves as both if the config ties them.
  if (file.contains("lm_head.weight") && file.contains(table)) gpt_options.tied = false;
  const auto number = [](index_t n) { return static_cast<double>(n); };
  const double rows = (gpt_options.tied ? 1 : 2) * number(gpt_options.vocab_size) +
                      (is_gpt2 ? number(gpt_options.max_positions) : 0);
  check_elements(config, file, gpt_options.layer, gpt_options.num_layers, rows);
  LoadOptions names = is_gpt2            ? gpt2_names(prefix)
                      : type == "gemma2" ? gemma2_names(prefix)
                      : type == "gemma"  ? gemma_names(prefix)
                                         : llama_names(prefix);
  if (gpt_options.tied) {
    names = with_tied_table(std::move(names), file, "embedding.words.weight", {"lm_head.weight"});
  }
  return load_model<T, Gpt<T>>(gpt_options, file, names, options);
}

}  // namespace detail

ATTN_NAMESPACE_END
