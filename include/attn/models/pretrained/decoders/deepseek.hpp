// DeepSeek V2 and V3: latent attention, experts after the first layers.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attn/models/pretrained/decoders/experts.hpp"

ATTN_NAMESPACE_BEGIN

namespace detail {

/// Sets the scale of attention. With yarn, mscale_all_dim adds a factor for longer texts, once for
/// queries and once for keys.
inline void set_latent_scale(GptOptions& options, const ConfigFile& config) {
  const LatentAttentionOptions& latent = options.layer.latent;
  const RotaryScaling& scaling = options.layer.attention.rotary->scaling;
  double factor = 1;
  if (scaling.kind == RotaryScalingKind::yarn && scaling.factor > 1) {
    const char* key = config.has("rope_parameters") ? "rope_parameters" : "rope_scaling";
    const double all = config.object(key).get<double>("mscale_all_dim", 0);
    factor += 0.1 * all * std::log(scaling.factor);
  }
  options.layer.attention.scale =
      factor * factor / std::sqrt(static_cast<double>(latent.head_dim + latent.rotary_dim));
}

/// The options of V2 and V3, except for the router. `dense`: transformers' default of
/// first_k_dense_replace; `router`: the required value of scoring_func.
inline GptOptions deepseek_options(const ConfigFile& config, const PretrainedOptions& given,
                                   RotaryPairs pairs, index_t dense, const std::string& router) {
  LatentAttentionOptions latent{
      .q_lora_rank = config.lacks("q_lora_rank") ? 1536 : config.count("q_lora_rank", 0),
      .kv_lora_rank = config.count("kv_lora_rank", 512),
      .head_dim = config.count("qk_nope_head_dim", 128),
      .rotary_dim = config.count("qk_rope_head_dim", 64),
      .head_dim_v = config.count("v_head_dim", 128),
      .bias = config.get<bool>("attention_bias", false)};
  check_only(config, "qk_head_dim", latent.head_dim + latent.rotary_dim,
             "qk_nope_head_dim + qk_rope_head_dim");
  check_only(config, "head_dim", latent.rotary_dim, "qk_rope_head_dim");
  GptOptions options = llama_style_options(
      config, given, {.head_dim = latent.rotary_dim, .rotary = {.pairs = pairs}});
  check_only(config, "num_key_value_heads", options.layer.nhead, "num_attention_heads");
  options.layer.latent = latent;
  set_latent_scale(options, config);
  options.dense_layers = config.get<index_t>("first_k_dense_replace", dense);
  if (options.dense_layers < 0 || options.dense_layers > options.num_layers) {
    config.fail("first_k_dense_replace", concat("lie in 0 .. ", options.num_layers),
                std::to_string(options.dense_layers));
  }
  check_only<index_t>(config, "moe_layer_freq", 1, "1");
  check_only(config, "scoring_func", router, router);
  for (const char* unused :
       {"aux_loss_alpha", "ep_size", "num_mtp_layers", "num_nextn_predict_layers", "seq_aux"}) {
    static_cast<void>(config.has(unused));
  }
  return options;
}

/// Experts in groups of equal size. `scale` and `shared`: transformers' defaults of
/// routed_scaling_factor and n_shared_experts.
inline MixtureOfExpertsOptions deepseek_experts(const ConfigFile& config, double scale,
                                                index_t shared, index_t groups,
                                                index_t chosen_groups) {
  MixtureOfExpertsOptions experts{.num_experts = config.count("n_routed_experts"),
                                  .experts_per_token = config.count("num_experts_per_tok"),
                                  .dim_feedforward = config.count("moe_intermediate_size"),
                                  .scale = config.get<double>("routed_scaling_factor", scale),
                                  .num_groups = groups,
                                  .groups_per_token = chosen_groups};
  experts.dim_shared = config.count("n_shared_experts", shared) * experts.dim_feedforward;
  if (experts.num_experts % groups != 0) {
    config.fail("n_group", concat("divide n_routed_experts = ", experts.num_experts),
                std::to_string(groups));
  }
  if (chosen_groups > groups) {
    config.fail("topk_group", concat("be at most n_group = ", groups),
                std::to_string(chosen_groups));
  }
  const index_t eligible = experts.num_experts / groups * chosen_groups;
  if (experts.experts_per_token > eligible) {
    config.fail("num_experts_per_tok", concat("be at most ", eligible),
                std::to_string(experts.experts_per_token));
  }
  return experts;
}

inline GptOptions deepseek_v2_options(const ConfigFile& config, const PretrainedOptions& given) {
  GptOptions options = deepseek_options(config, given, RotaryPairs::interleaved, 0, "softmax");
  const auto method = config.get<std::string>("topk_method", "greedy");
  const bool limited = method == "group_limited_greedy";
  if (!limited && method != "greedy") {
    config.fail("topk_method", "be greedy or group_limited_greedy", quote(method));
  }
  const index_t groups = config.count("n_group", 1), chosen = config.count("topk_group", 1);
  options.layer.experts =
      deepseek_experts(config, 1, 2, limited ? groups : 1, limited ? chosen : 1);
  check_only(config, "norm_topk_prob", false, "false");
  options.layer.experts.normalize = false;
  return options;
}

inline GptOptions deepseek_v3_options(const ConfigFile& config, const PretrainedOptions& given) {
  const bool interleaved = config.get<bool>("rope_interleave", true);
  GptOptions options = deepseek_options(
      config, given, interleaved ? RotaryPairs::interleaved : RotaryPairs::halves, 3, "sigmoid");
  check_only<std::string>(config, "topk_method", "noaux_tc", "noaux_tc");
  options.layer.experts =
      deepseek_experts(config, 2.5, 1, config.count("n_group", 8), config.count("topk_group", 4));
  options.layer.experts.score = RouterScore::sigmoid;
  options.layer.experts.normalize = config.get<bool>("norm_topk_prob", true);
  return options;
}

/// Ignores layers after the last one, which predict further tokens.
inline LoadOptions deepseek_names(const std::string& prefix, const ConfigFile& config) {
  const NamePairs latent{{".kv_a_proj.", ".kv_a_proj_with_mqa."},
                         {".kv_a_norm.", ".kv_a_layernorm."},
                         {".q_a_norm.", ".q_a_layernorm."}};
  LoadOptions names = llama_names_but(prefix, latent);
  const LoadOptions experts =
      llama_names_with(prefix, {{".moe.router.", ".mlp.gate."},
                                {".moe.correction_bias", ".mlp.gate.e_score_correction_bias"},
                                {".moe.shared_expert.", ".mlp.shared_experts."},
                                {".moe.", ".mlp."}});
  names.rename = [dense = names.rename, sparse = experts.rename](std::string_view name) {
    return name.find(".moe.") == name.npos ? dense(name) : sparse(name);
  };
  names.ignore.push_back(concat(prefix, "layers.", config.count("num_hidden_layers"), "."));
  return names;
}

inline constexpr DecoderType kDeepseekTypes[] = {
    {.model_type = "deepseek_v2", .options = deepseek_v2_options, .names = deepseek_names},
    {.model_type = "deepseek_v3", .options = deepseek_v3_options, .names = deepseek_names}};

}  // namespace detail

ATTN_NAMESPACE_END
