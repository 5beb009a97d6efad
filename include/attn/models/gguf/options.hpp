// Options of Gpt from the metadata of a GGUF file, by architecture.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "attn/models/gguf/gated_delta.hpp"
#include "attn/models/gguf/names.hpp"
#include "attn/models/gguf/rotary.hpp"
#include "attn/models/gpt.hpp"

ATTN_NAMESPACE_BEGIN

namespace detail {

/// Throws if a matrix of latent attention in block n is missing or has another shape.
inline void check_gguf_latent(const GgufFile& file, index_t n, const GptOptions& options) {
  const LatentAttentionOptions& latent = options.layer.latent;
  const index_t dim = options.layer.d_model, heads = options.layer.nhead;
  const index_t rank = latent.kv_lora_rank, compressed = latent.q_lora_rank,
                width = heads * (latent.head_dim + latent.rotary_dim);
  const auto check = [&](std::string_view part, std::initializer_list<index_t> shape) {
    file.check(concat("blk.", n, ".attn_", part, ".weight"),
               std::span(shape.begin(), shape.size()));
  };
  if (compressed > 0) {
    check("q_a", {compressed, dim});
    check("q_b", {width, compressed});
  } else {
    check("q", {width, dim});
  }
  check("kv_a_mqa", {rank + latent.rotary_dim, dim});
  if (file.contains(concat("blk.", n, ".attn_kv_b.weight"))) {
    check("kv_b", {heads * (latent.head_dim + latent.head_dim_v), rank});
  } else {
    check("k_b", {heads, rank, latent.head_dim});
    check("v_b", {heads, latent.head_dim_v, rank});
  }
}

/// Throws if a tensor is missing or has another shape, before its memory is allocated.
inline void check_gguf_tensors(const GgufFile& file, std::span<const GgufName> names,
                               const GptOptions& options) {
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
    // Rows of all parameters in a tensor.
    std::vector<std::pair<std::string, index_t>> rows_of;
    const auto add = [&](std::string_view parameter, index_t rows) {
      const std::string name = concat("blocks.layers.", n, ".", parameter, "weight");
      std::string tensor = gguf_part(name, names).tensor;
      if (!rows_of.empty() && rows_of.back().first == tensor) {
        rows_of.back().second += rows;
      } else {
        rows_of.emplace_back(std::move(tensor), rows);
      }
    };
    const TokenMixer mixer = options.mixers.empty() ? TokenMixer::attention
                                                    : options.mixers[static_cast<std::size_t>(n)];
    if (mixer == TokenMixer::gated_delta) {
      check_gguf_delta(file, n, options);
    } else if (mixer == TokenMixer::short_convolution) {
      check(weight("shortconv.in_proj"), {3 * dim, dim});
      check(weight("shortconv.conv"), {dim, options.layer.convolution.width});
    } else if (options.layer.latent.kv_lora_rank > 0) {
      check_gguf_latent(file, n, options);
    } else {
      add("self_attn.q_proj_", (attention.output_gate ? 2 : 1) * heads * attention.head_dim);
      add("self_attn.k_proj_", attention.num_kv_heads * attention.head_dim);
      add("self_attn.v_proj_", attention.num_kv_heads * attention.head_dim_v);
    }
    const MixtureOfExpertsOptions& experts = options.layer.experts;
    if (experts.num_experts > 0 && n >= options.dense_layers) {
      check(weight("ffn_gate_exps"), {experts.num_experts, experts.dim_feedforward, dim});
    } else {
      add("gate_proj.", options.layer.dim_feedforward);
      add("up_proj.", options.layer.dim_feedforward);
    }
    for (const auto& [tensor, rows] : rows_of) check(tensor, {rows, dim});
    if (mixer != TokenMixer::attention) continue;
    const LatentAttentionOptions& latent = options.layer.latent;
    check(weight("attn_output"),
          {dim, heads * (latent.kv_lora_rank > 0 ? latent.head_dim_v : attention.head_dim_v)});
  }
}

/// One general.architecture: how its files differ from those of Llama.
struct GgufArchitecture {
  std::string_view name;
  /// Order of the rows of q and k: the paper's in some architectures, that of Hugging Face's files
  /// in others.
  RotaryPairs pairs = RotaryPairs::halves;
  index_t window = 0;          ///< default of attention.sliding_window; 0: none
  index_t window_pattern = 1;  ///< default of attention.sliding_window_pattern: see gguf_windows()
  /// Reads the keys and sets the options that other architectures lack; called last.
  void (*complete)(const GgufKeys& keys, GptOptions& options) = [](const GgufKeys&, GptOptions&) {};
  std::span<const GgufName> names = {};          ///< of tensors: see gguf_part()
  TokenMixer recurrent = TokenMixer::attention;  ///< of layers with 0 key/value heads, if any
};

/// Sets the number of key/value heads: attention.head_count_kv may have one for each layer, 0 for a
/// layer without attention and the same for all others.
inline void set_gguf_kv_heads(const GgufKeys& keys, const GgufArchitecture& type,
                              GptOptions& options) {
  constexpr const char* kHeads = "attention.head_count_kv";
  index_t& kv_heads = options.layer.attention.num_kv_heads;
  if (!keys.has(kHeads) || !keys.has_array(kHeads)) {
    kv_heads = keys.count(kHeads, options.layer.nhead);
    return;
  }
  const auto each = keys.array<std::int64_t>(kHeads);
  if (std::ssize(each) != options.num_layers) {
    keys.fail(kHeads, concat("be one per layer, ", options.num_layers),
              std::to_string(each.size()));
  }
  kv_heads = *std::max_element(each.begin(), each.end());
  for (const std::int64_t heads : each) {
    const bool is_recurrent = heads == 0 && type.recurrent != TokenMixer::attention;
    if (kv_heads < 1 || kv_heads > options.layer.nhead || (heads != kv_heads && !is_recurrent)) {
      keys.fail(kHeads, "be the same for all layers with attention, in 1 .. attention.head_count",
                std::to_string(heads));
    }
    options.mixers.push_back(is_recurrent ? type.recurrent : TokenMixer::attention);
  }
}

/// Window sizes per layer. With attention.sliding_window n, a token sees itself and n - 1 tokens
/// before it. attention.sliding_window_pattern selects the layers: one bool each, or a number p:
/// every p-th layer has no window; p = 1 stands for all layers having one.
inline std::vector<index_t> gguf_windows(const GgufKeys& keys, const GgufArchitecture& type,
                                         index_t layers) {
  constexpr std::string_view kWindow = "attention.sliding_window",
                             kPattern = "attention.sliding_window_pattern";
  const bool has_pattern = keys.has(kPattern);
  if (keys.get<std::uint64_t>(kWindow, static_cast<std::uint64_t>(type.window)) == 0) return {};
  const index_t window = keys.count(kWindow, type.window) - 1;
  if (!has_pattern || !keys.has_array(kPattern)) {
    if (!has_pattern && type.window_pattern == 1) return {window};
    // With fewer layers than p none is the p-th.
    const index_t pattern =
        (std::min)(has_pattern ? keys.count(kPattern) : type.window_pattern, layers + 1);
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
      {"context_length", {}},                // unread if other keys or max_positions set the length
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
      {"nextn_predict_layers", {0}},
      {"residual_scale", {0, 1}},
      {"rope.scaling.alpha", {0, 1}},
      {"rope.scaling.yarn_attn_factor", {1}},
      {"rope.scaling.yarn_ext_factor", {-1}},
      {"rope.scaling.yarn_log_multiplier", {0}},
      {"use_parallel_residual", {0}},
  };
  return kKeys;
}

inline void complete_qwen3(const GgufKeys&, GptOptions& options) {
  options.layer.attention.query_key_norm = NormKind::rms;
  options.layer.attention.query_key_norm_eps = options.layer.layer_norm_eps;
}

inline void complete_gemma(const GgufKeys&, GptOptions& options) {
  options.scale_embedding = true;
  options.layer.activation = Activation::gelu_tanh;
}

/// Gemma's files do not contain the scale: only the model of `layers` layers uses another one than
/// 1 / sqrt(head_dim).
inline void set_gemma_scale(GptOptions& options, index_t layers) {
  MultiHeadAttentionOptions& attention = options.layer.attention;
  if (attention.scale || options.num_layers != layers) return;
  attention.scale = 1 / std::sqrt(static_cast<double>(options.layer.d_model) /
                                  static_cast<double>(options.layer.nhead));
}

inline void complete_gemma2(const GgufKeys& keys, GptOptions& options) {
  complete_gemma(keys, options);
  options.layer.norm_behind = true;
  options.layer.attention.softcap = keys.not_negative("attn_logit_softcapping", 50);
  options.logit_softcap = keys.not_negative("final_logit_softcapping", 30);
  set_gemma_scale(options, 46);
}

/// The rotary embedding of layers with a window has this base and no scaling of frequencies.
inline void set_gguf_rotary_by_window(const GgufKeys& keys, GptOptions& options, double theta) {
  const RotaryOptions whole = *options.layer.attention.rotary;
  RotaryOptions local = whole;
  local.theta = theta;
  local.frequencies = {};
  local.scaling = {.attention_factor = keys.positive("rope.scaling.attn_factor", 1)};
  set_rotary_by_window(options, local, whole);
}

inline void complete_gemma3(const GgufKeys& keys, GptOptions& options) {
  complete_gemma(keys, options);
  complete_qwen3(keys, options);
  options.layer.norm_behind = true;
  set_gemma_scale(options, 62);
  set_gguf_rotary_by_window(keys, options, keys.positive("rope.freq_base_swa", 10000));
}

inline void complete_olmo2(const GgufKeys& keys, GptOptions& options) {
  complete_qwen3(keys, options);
  options.layer.attention.query_key_norm_of_all_heads = true;
  options.layer.norm_first = false;
  options.layer.norm_behind = true;
  // Files of OLMo 3.
  set_gguf_rotary_by_window(keys, options, options.layer.attention.rotary->theta);
}

inline void complete_granite(const GgufKeys& keys, GptOptions& options) {
  const auto factor = [&](std::string_view key) {
    const double value = keys.finite(key, 0);
    return value == 0 ? 1 : value;
  };
  options.embedding_factor = factor("embedding_scale");
  options.layer.residual_scale = factor("residual_scale");
  options.logit_scale = 1 / factor("logit_scale");
  // In these files the key switches the rotary embedding.
  if (!keys.get<bool>("rope.scaling.finetuned", true)) {
    options.layer.attention.rotary = std::nullopt;
  }
}

/// Every fourth layer has no rotary embedding; the files have no key for it.
inline void complete_smollm3(const GgufKeys&, GptOptions& options) {
  const std::optional<RotaryOptions>& rotary = options.layer.attention.rotary;
  options.rotary = {rotary, rotary, rotary, std::nullopt};
}

inline void complete_experts(const GgufKeys& keys, GptOptions& options) {
  MixtureOfExpertsOptions& experts = options.layer.experts;
  experts.num_experts = keys.count("expert_count");
  experts.experts_per_token = keys.count("expert_used_count");
  if (experts.experts_per_token > experts.num_experts) {
    keys.fail("expert_used_count", concat("be at most ", experts.num_experts),
              std::to_string(experts.experts_per_token));
  }
  experts.dim_feedforward = keys.count("expert_feed_forward_length", options.layer.dim_feedforward);
}

inline void complete_qwen3moe(const GgufKeys& keys, GptOptions& options) {
  complete_qwen3(keys, options);
  complete_experts(keys, options);
}

inline void complete_olmoe(const GgufKeys& keys, GptOptions& options) {
  complete_qwen3(keys, options);
  options.layer.attention.query_key_norm_of_all_heads = true;
  complete_experts(keys, options);
  options.layer.experts.normalize = false;
}

inline void complete_qwen2moe(const GgufKeys& keys, GptOptions& options) {
  complete_experts(keys, options);
  options.layer.experts.normalize = false;
  options.layer.experts.dim_shared =
      keys.count("expert_shared_feed_forward_length", options.layer.dim_feedforward);
  options.layer.experts.shared_gate = true;
}

/// Newer files count one key/value head, that of the latent, in head_count_kv, key_length and
/// value_length; key_length_mla and value_length_mla are then those of a head.
inline void complete_deepseek2(const GgufKeys& keys, GptOptions& options) {
  MultiHeadAttentionOptions& attention = options.layer.attention;
  LatentAttentionOptions& latent = options.layer.latent;
  latent.kv_lora_rank = keys.count("attention.kv_lora_rank");
  if (keys.has("attention.q_lora_rank")) latent.q_lora_rank = keys.count("attention.q_lora_rank");
  latent.rotary_dim = attention.rotary->dim;
  const index_t head_dim = keys.count("attention.key_length_mla", attention.head_dim);
  latent.head_dim_v = keys.count("attention.value_length_mla", attention.head_dim_v);
  if (head_dim <= latent.rotary_dim) {
    keys.fail("rope.dimension_count", concat("be less than the size of a head, ", head_dim),
              std::to_string(latent.rotary_dim));
  }
  latent.head_dim = head_dim - latent.rotary_dim;
  latent.norm_eps = options.layer.layer_norm_eps;
  for (const char* key : {"attention.scale", "attn_logit_softcapping"}) {
    if (keys.finite(key, 0) != 0) keys.fail(key, "be 0 or missing", "another value");
  }
  // yarn scales scores instead of cos and sin.
  RotaryScaling& scaling = attention.rotary->scaling;
  if (keys.positive("rope.scaling.attn_factor", 1) != 1) {
    keys.fail("rope.scaling.attn_factor", "be 1 or missing", "another value");
  }
  const double multiplier = keys.not_negative("rope.scaling.yarn_log_multiplier", 0);
  double factor = 1;
  if (scaling.kind == RotaryScalingKind::yarn) {
    scaling.attention_factor = 1;
    if (scaling.factor > 1) factor += multiplier * std::log(scaling.factor);
  }
  attention.scale = factor * factor / std::sqrt(static_cast<double>(head_dim));

  complete_experts(keys, options);
  MixtureOfExpertsOptions& experts = options.layer.experts;
  options.dense_layers =
      static_cast<index_t>(keys.get<std::uint32_t>("leading_dense_block_count", 0));
  if (keys.has("expert_shared_count")) {
    experts.dim_shared = keys.count("expert_shared_count") * experts.dim_feedforward;
  }
  experts.normalize = keys.get<bool>("expert_weights_norm", false);
  const double scale = keys.finite("expert_weights_scale", 0);
  if (scale != 0) experts.scale = scale;
  const auto function = keys.get<std::uint32_t>("expert_gating_func", 1);
  if (function > 2) {
    keys.fail("expert_gating_func", "be 1 (softmax) or 2 (sigmoid)", std::to_string(function));
  }
  if (function == 2) experts.score = RouterScore::sigmoid;
  experts.num_groups = keys.count("expert_group_count", 1);
  experts.groups_per_token = keys.count("expert_group_used_count", experts.num_groups);
}

/// One tensor holds queries, keys and values, another gate and up.
inline constexpr GgufName kPhi3Names[] = {
    {".self_attn.q_proj_", ".attn_qkv.", GgufRows::first},
    {".self_attn.k_proj_", ".attn_qkv.", GgufRows::last_but_one},
    {".self_attn.v_proj_", ".attn_qkv.", GgufRows::last},
    {".gate_proj.", ".ffn_up.", GgufRows::last_but_one},
    {".up_proj.", ".ffn_up.", GgufRows::last}};

/// The files have no key for the clamped unit of the experts, nor for yarn's unrounded bounds.
inline void complete_gpt_oss(const GgufKeys& keys, GptOptions& options) {
  complete_experts(keys, options);
  options.layer.activation = Activation::quick_gelu;
  options.layer.experts.bias = true;
  options.layer.experts.glu_limit = 7;
  options.layer.experts.glu_offset = 1;
  options.layer.attention.sinks = true;
  options.layer.attention.rotary->scaling.truncate = false;
}
inline constexpr GgufName kGptOssNames[] = {{".norm2.", ".post_attention_norm."}};

inline void complete_lfm2(const GgufKeys& keys, GptOptions& options) {
  complete_qwen3(keys, options);
  options.layer.convolution.width = keys.count("shortconv.l_cache");
}
inline constexpr GgufName kLfm2Names[] = {{"blocks.norm.", "token_embd_norm."},
                                          {".short_conv.", ".shortconv."}};

inline void complete_qwen3next(const GgufKeys& keys, GptOptions& options) {
  complete_qwen3(keys, options);
  complete_experts(keys, options);
  TransformerLayerOptions& layer = options.layer;
  layer.experts.dim_shared = keys.count("expert_shared_feed_forward_length", layer.dim_feedforward);
  layer.experts.shared_gate = true;
  layer.attention.output_gate = true;
  read_gguf_delta(keys, options);
}
inline constexpr GgufName kQwen3NextNames[] = {
    {".norm2.", ".post_attention_norm."},     {".linear_attn.in_proj_qkvz.", ".ssm_in."},
    {".linear_attn.in_proj_ba.", ".ssm_ba."}, {".linear_attn.conv1d.", ".ssm_conv1d."},
    {".linear_attn.dt_bias", ".ssm_dt.bias"}, {".linear_attn.A_log", ".ssm_a"},
    {".linear_attn.norm.", ".ssm_norm."},     {".linear_attn.out_proj.", ".ssm_out."}};

inline constexpr GgufArchitecture kGgufArchitectures[] = {
    {.name = "llama", .pairs = RotaryPairs::interleaved},
    {.name = "qwen2"},
    {.name = "qwen3", .complete = complete_qwen3},
    {.name = "qwen2moe", .complete = complete_qwen2moe},
    {.name = "qwen3moe", .complete = complete_qwen3moe},
    {.name = "phi3", .names = kPhi3Names},
    {.name = "gpt-oss", .window_pattern = 2, .complete = complete_gpt_oss, .names = kGptOssNames},
    {.name = "gemma", .complete = complete_gemma},
    {.name = "gemma2", .window = 4096, .window_pattern = 2, .complete = complete_gemma2},
    {.name = "gemma3", .window_pattern = 6, .complete = complete_gemma3},
    {.name = "olmo2", .window_pattern = 4, .complete = complete_olmo2},
    {.name = "olmoe", .complete = complete_olmoe},
    {.name = "deepseek2", .pairs = RotaryPairs::interleaved, .complete = complete_deepseek2},
    {.name = "granite", .pairs = RotaryPairs::interleaved, .complete = complete_granite},
    {.name = "smollm3", .pairs = RotaryPairs::interleaved, .complete = complete_smollm3},
    {.name = "lfm2",
     .complete = complete_lfm2,
     .names = kLfm2Names,
     .recurrent = TokenMixer::short_convolution},
    {.name = "qwen3next", .complete = complete_qwen3next, .names = kQwen3NextNames}};

inline const GgufArchitecture& gguf_architecture(const GgufFile& file) {
  const auto name = file.get<std::string_view>("general.architecture");
  std::string known;
  for (const GgufArchitecture& one : kGgufArchitectures) {
    if (one.name == name) return one;
    known.append(known.empty() ? "" : ", ").append(one.name);
  }
  throw ValueError(message("LanguageModel",
                           concat(quote(file.file_name()), ": key \"general.architecture\""),
                           "be one of " + known, quote(name)));
}

/// The options of a model of one of kGgufArchitectures (Mistral's files have llama's), from a
/// file's keys and tensors. Throws ValueError, naming file and key, for unknown keys and
/// unsupported values; keys in `ignore_keys` count as missing.
inline GptOptions gguf_gpt_options(const GgufFile& file, index_t max_positions,
                                   std::span<const std::string> ignore_keys) {
  const GgufArchitecture& type = gguf_architecture(file);
  const GgufKeys keys(file, std::string(type.name) + ".", "LanguageModel", ignore_keys);
  GptOptions options;
  const index_t dim = keys.count("embedding_length"), heads = keys.count("attention.head_count");
  if (dim % heads != 0 && !keys.has("attention.key_length")) {
    keys.fail("attention.head_count", concat("divide ", dim), std::to_string(heads));
  }
  const std::string embedding = "token_embd.weight";
  options.vocab_size = file.shape(embedding).empty() ? 0 : file.shape(embedding)[0];
  options.num_layers = keys.count("block_count");
  options.tied = !file.contains("output.weight");
  options.positions = Positions::none;
  options.max_positions = max_positions > 0 ? max_positions : keys.count("context_length");
  options.windows = gguf_windows(keys, type, options.num_layers);
  options.layer = {.d_model = dim,
                   .nhead = heads,
                   .dim_feedforward = keys.count("feed_forward_length"),
                   .dropout = 0,  // the value in training; the file does not contain it
                   .activation = Activation::silu,
                   .layer_norm_eps = keys.not_negative("attention.layer_norm_rms_epsilon"),
                   .norm_first = true,
                   .bias = file.contains("blk.0.ffn_up.bias"),
                   .gated = true,
                   .norm = NormKind::rms};
  MultiHeadAttentionOptions& attention = options.layer.attention;
  set_gguf_kv_heads(keys, type, options);
  attention.head_dim = keys.count("attention.key_length", (std::max)(dim / heads, index_t{1}));
  attention.head_dim_v = keys.count("attention.value_length", attention.head_dim);
  attention.separate_in_proj = true;
  const double scale = keys.finite("attention.scale", 0);
  if (scale != 0) attention.scale = scale;
  attention.softcap = keys.not_negative("attn_logit_softcapping", 0);
  options.logit_softcap = keys.not_negative("final_logit_softcapping", 0);
  attention.rotary = gguf_rotary(file, keys, type.pairs, attention.head_dim, options.max_positions);
  type.complete(keys, options);
  const auto first = std::find(options.mixers.begin(), options.mixers.end(), TokenMixer::attention);
  const auto block = options.mixers.empty() ? 0 : first - options.mixers.begin();
  attention.in_proj_bias = file.contains(concat("blk.", block, ".attn_q.bias"));
  attention.out_proj_bias = file.contains(concat("blk.", block, ".attn_output.bias"));
  keys.check_all_read(gguf_unread_model_keys());
  check_gguf_tensors(file, type.names, options);
  if (max_positions == 0 && attention.rotary) {
    check_positions(options, [&](const std::string& expected, const std::string& found) {
      keys.fail("context_length", expected, found);
    });
  }
  return options;
}

}  // namespace detail

ATTN_NAMESPACE_END
