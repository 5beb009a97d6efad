// Cohere and Cohere 2: parallel attention and feed-forward with one layer norm.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attn/models/pretrained/decoders/decoder_type.hpp"

ATTN_NAMESPACE_BEGIN

namespace detail {

inline GptOptions cohere_options(const ConfigFile& config, const PretrainedOptions& given) {
  GptOptions options = llama_style_options(config, given,
                                           {.norm_eps = "layer_norm_eps",
                                            .default_norm_eps = 1e-5,
                                            .tied = true,
                                            .rotary = {.pairs = RotaryPairs::interleaved}});
  set_layer_norm(options, false);
  options.layer.parallel = options.layer.shared_norm = true;
  const bool bias = config.get<bool>("attention_bias", false);
  set_attention_bias(options, bias, bias);
  options.logit_scale = config.get<double>("logit_scale", 0.0625);
  check_only(config, "use_qk_norm", false, "false");
  // Keys of older files; all models have these values.
  check_only(config, "use_gated_activation", true, "true");
  check_only(config, "use_parallel_block", true, "true");
  check_only(config, "use_embedding_sharing", options.tied, "tie_word_embeddings");
  check_only<std::string>(config, "position_embedding_type", "rope_gptj", "rope_gptj");
  check_only<double>(config, "rotary_pct", 1, "1");
  return options;
}

/// Every fourth layer sees all keys, without rotary embedding.
inline GptOptions cohere2_options(const ConfigFile& config, const PretrainedOptions& given) {
  GptOptions options = cohere_options(config, given);
  const index_t pattern =
      config.count("sliding_window_pattern",
                   config.count("_sliding_window_pattern", config.count("layer_switch", 4)));
  check_only<std::string>(config, "order_of_interleaved_layers", "local_attn_first",
                          "local_attn_first");
  options.windows = windows_of(config, options.num_layers, true,
                               [&](index_t n) { return (n + 1) % pattern != 0; });
  set_rotary_by_window(options, options.layer.attention.rotary, std::nullopt);
  return options;
}

inline constexpr DecoderType kCohereTypes[] = {
    {.model_type = "cohere", .options = cohere_options},
    {.model_type = "cohere2", .options = cohere2_options}};

}  // namespace detail

ATTN_NAMESPACE_END
