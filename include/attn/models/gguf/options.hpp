// Options of Gpt from the metadata of a GGUF file, and its tensor names.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>

#include "attn/io/rename.hpp"
#include "attn/models/gguf/rotary.hpp"
#include "attn/models/gpt.hpp"

ATTN_NAMESPACE_BEGIN

namespace detail {

/// Throws if a tensor is missing or has another shape, before its memory is allocated.
inline void check_gguf_tensors(const GgufFile& file, const GptOptions& options) {
  const index_t dim = options.layer.d_model, heads = options.layer.nhead;
  const MultiHeadAttentionOptions& attention = options.layer.attention;
  const auto check = [&](const std::string& name, std::initializer_list<index_t> shape) {
    file.check(name, std::span(shape.begin(), shape.size()));
  };
  check("token_embd.weight", {options.vocab_size, dim});
  for (index_t n = 0; n < options.num_layers; ++n) {
    const auto weight = [&](std::string_view name) {
      return concat("blk.", n, ".", name, ".weight");
    };
    check(weight("attn_q"), {heads * attention.head_dim, dim});
    check(weight("attn_k"), {attention.num_kv_heads * attention.head_dim, dim});
    check(weight("attn_v"), {attention.num_kv_heads * attention.head_dim_v, dim});
    check(weight("attn_output"), {dim, heads * attention.head_dim_v});
    check(weight("ffn_gate"), {options.layer.dim_feedforward, dim});
  }
}

/// Window sizes per layer. With attention.sliding_window n, a token sees itself and n - 1 tokens
/// before it. attention.sliding_window_pattern selects the layers: one bool each, or a number p:
/// every p-th layer has no window. Default: all layers; for gemma2 every other one from the first
/// on, with a window of 4096 unless the file sets another.
inline std::vector<index_t> gguf_windows(const GgufKeys& keys, bool is_gemma2, index_t layers) {
  constexpr std::string_view kWindow = "attention.sliding_window",
                             kPattern = "attention.sliding_window_pattern";
  const bool has_pattern = keys.has(kPattern);
  if (keys.get<std::uint64_t>(kWindow, is_gemma2 ? 4096 : 0) == 0) return {};
  const index_t window = keys.count(kWindow, 4096) - 1;
  if (!has_pattern) {
    if (is_gemma2) return {window, -1};
    return {window};
  }
  if (!keys.has_array(kPattern)) {
    // With fewer layers than p none is the p-th.
    const index_t pattern = (std::min)(keys.count(kPattern), layers + 1);
    std::vector<index_t> windows(static_cast<std::size_t>(pattern), window);
    windows.back() = -1;
    return windows;
  }
  const auto slides = keys.array<bool>(kPattern);
  if (std::ssize(slides) != layers) {
    keys.fail(kPattern, concat("be one per layer, ", layers), std::to_string(slides.size()));
  }
  std::vector<index_t> windows;
  for (const bool one : slides) windows.push_back(one ? window : -1);
  return windows;
}

/// Keys of an architecture that do not affect Gpt's options. Those with values affect results for
/// any other value, which attn does not support; logit_scale multiplies logits in files of some
/// architectures and divides them in others.
inline const GgufUnreadKeys& gguf_unread_model_keys() {
  static const GgufUnreadKeys kKeys = {
      {"vocab_size", {}},                    // the number of rows of token_embd.weight
      {"context_length", {}},                // where other keys or max_positions set it
      {"tensor_data_layout", {}},            // a note of old converters
      {"pooling_type", {}},                  // of embeddings, not of logits
      {"attention.layer_norm_epsilon", {}},  // of layer norms; these models have RMS norms
      {"rope.scaling.finetuned", {}},        // a note on training
      {"attention.causal", {1}},
      {"attention.clamp_kqv", {0}},
      {"attention.max_alibi_bias", {0}},
      {"embedding_scale", {0, 1}},
      {"expert_count", {0}},
      {"expert_used_count", {0}},
      {"logit_scale", {0, 1}},
      {"residual_scale", {0, 1}},
      {"rope.scaling.alpha", {0, 1}},
      {"rope.scaling.yarn_attn_factor", {1}},
      {"rope.scaling.yarn_ext_factor", {-1}},
      {"rope.scaling.yarn_log_multiplier", {0}},
      {"use_parallel_residual", {0}},
  };
  return kKeys;
}

/// The options of a model of architecture llama (also in Mistral's files), qwen2, qwen3, gemma or
/// gemma2, from a file's keys and tensors. Throws ValueError, naming file and key, for unknown keys
/// and unsupported values; keys in `ignore_keys` count as missing.
inline GptOptions gguf_gpt_options(const GgufFile& file, index_t max_positions,
                                   std::span<const std::string> ignore_keys) {
  const std::string architecture(file.get<std::string_view>("general.architecture"));
  const bool is_gemma2 = architecture == "gemma2", is_gemma = is_gemma2 || architecture == "gemma",
             is_qwen3 = architecture == "qwen3", is_llama = architecture == "llama";
  if (!is_gemma && !is_qwen3 && !is_llama && architecture != "qwen2") {
    throw ValueError(message("LanguageModel",
                             concat(quote(file.file_name()), ": key \"general.architecture\""),
                             "be llama, qwen2, qwen3, gemma or gemma2", quote(architecture)));
  }
  const GgufKeys keys(file, architecture + ".", "LanguageModel", ignore_keys);
  GptOptions options;
  const index_t dim = keys.count("embedding_length"), heads = keys.count("attention.head_count");
  if (dim % heads != 0 && !keys.has("attention.key_length")) {
    keys.fail("attention.head_count", concat("divide ", dim), std::to_string(heads));
  }
  const std::string embedding = "token_embd.weight";
  options.vocab_size = file.shape(embedding).empty() ? 0 : file.shape(embedding)[0];
  options.num_layers = keys.count("block_count");
  options.tied = !file.contains("output.weight");
  options.scale_embedding = is_gemma;
  options.positions = Positions::none;
  options.max_positions = max_positions > 0 ? max_positions : keys.count("context_length");
  options.windows = gguf_windows(keys, is_gemma2, options.num_layers);
  options.layer = {.d_model = dim,
                   .nhead = heads,
                   .dim_feedforward = keys.count("feed_forward_length"),
                   .dropout = 0,  // the value in training; the file does not contain it
                   .activation = is_gemma ? Activation::gelu_tanh : Activation::silu,
                   .layer_norm_eps = keys.not_negative("attention.layer_norm_rms_epsilon"),
                   .norm_first = true,
                   .norm_behind = is_gemma2,
                   .bias = file.contains("blk.0.ffn_up.bias"),
                   .gated = true,
                   .norm = NormKind::rms};
  MultiHeadAttentionOptions& attention = options.layer.attention;
  attention.num_kv_heads = keys.count("attention.head_count_kv", heads);
  attention.head_dim = keys.count("attention.key_length", (std::max)(dim / heads, index_t{1}));
  attention.head_dim_v = keys.count("attention.value_length", attention.head_dim);
  attention.separate_in_proj = true;
  attention.in_proj_bias = file.contains("blk.0.attn_q.bias");
  attention.out_proj_bias = file.contains("blk.0.attn_output.bias");
  if (is_qwen3) {
    attention.query_key_norm = NormKind::rms;
    attention.query_key_norm_eps = options.layer.layer_norm_eps;
  }
  // Files of gemma2 do not contain the scale: only the model of 46 layers uses another one than 1 /
  // sqrt(head_dim).
  constexpr index_t kLayersOf27B = 46;
  const double scale = keys.finite("attention.scale", 0);
  if (scale != 0) {
    attention.scale = scale;
  } else if (is_gemma2 && options.num_layers == kLayersOf27B) {
    attention.scale = 1 / std::sqrt(static_cast<double>(dim) / static_cast<double>(heads));
  }
  attention.softcap = keys.not_negative("attn_logit_softcapping", is_gemma2 ? 50 : 0);
  options.logit_softcap = keys.not_negative("final_logit_softcapping", is_gemma2 ? 30 : 0);
  // Files of llama store the rows of q and k in the order of the paper, others in that of Hugging
  // Face's files.
  attention.rotary =
      gguf_rotary(file, keys, is_llama ? RotaryPairs::interleaved : RotaryPairs::halves,
                  attention.head_dim, options.max_positions);
  keys.check_all_read(gguf_unread_model_keys());
  check_gguf_tensors(file, options);
  if (max_positions == 0) {
    check_positions(options, [&](const std::string& expected, const std::string& found) {
      keys.fail("context_length", expected, found);
    });
  }
  return options;
}

}  // namespace detail

/// The name of a parameter of Gpt in GGUF files.
inline std::string gguf_name(std::string_view name) {
  constexpr std::pair<std::string_view, std::string_view> kNames[] = {
      {"embedding.words.", "token_embd."},
      {"lm_head.", "output."},
      {"blocks.norm.", "output_norm."},
      {"blocks.layers.", "blk."},
      {".self_attn.q_norm.", ".attn_q_norm."},
      {".self_attn.k_norm.", ".attn_k_norm."},
      {".self_attn.q_proj_", ".attn_q."},
      {".self_attn.k_proj_", ".attn_k."},
      {".self_attn.v_proj_", ".attn_v."},
      {".self_attn.out_proj.", ".attn_output."},
      {".norm1.", ".attn_norm."},
      {".norm1_behind.", ".post_attention_norm."},
      {".norm2_behind.", ".post_ffw_norm."},
      {".norm2.", ".ffn_norm."},
      {".gate_proj.", ".ffn_gate."},
      {".up_proj.", ".ffn_up."},
      {".down_proj.", ".ffn_down."},
  };
  return detail::renamed(name, kNames);
}

ATTN_NAMESPACE_END
