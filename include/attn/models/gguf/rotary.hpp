// Rotary embedding from the metadata of a GGUF file.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>

#include "attn/layers/attention/rotary_options.hpp"
#include "attn/models/gguf/keys.hpp"

ATTN_NAMESPACE_BEGIN

namespace detail {

/// The tensor that divides each frequency, where there is one: Llama 3's scaling.
inline constexpr std::string_view kGgufFrequencyFactors = "rope_freqs.weight";

/// Scaling as llama.cpp reads it: a factor without a type is linear, a factor of 0 is 1, and
/// attn_factor multiplies cos and sin whatever the type. rope.scale_linear is the old name of the
/// factor.
inline RotaryScaling gguf_rotary_scaling(const GgufKeys& keys, index_t max_positions) {
  RotaryScaling scaling;
  const auto type = keys.get<std::string_view>("rope.scaling.type", "linear");
  if (type != "none" && type != "linear" && type != "yarn") {
    keys.fail_key("rope.scaling.type", "be none, linear or yarn", quote(type));
  }
  const auto old_factor = keys.get<double>("rope.scale_linear", 0);
  const auto factor = keys.get<double>("rope.scaling.factor", old_factor);
  const auto attention_factor = keys.get<double>("rope.scaling.attn_factor", 1);
  if (attention_factor != 1) scaling.attention_factor = attention_factor;
  if (type == "yarn") {
    scaling.kind = RotaryScalingKind::yarn;
    scaling.factor = factor == 0 ? 1 : factor;
    scaling.original_max_positions =
        keys.count("rope.scaling.original_context_length", max_positions);
    scaling.beta_fast = keys.get<double>("rope.scaling.yarn_beta_fast", 32);
    scaling.beta_slow = keys.get<double>("rope.scaling.yarn_beta_slow", 1);
    // attn_factor multiplies the method's own factor.
    const double growth = scaling.factor > 1 ? 0.1 * std::log(scaling.factor) + 1 : 1;
    scaling.attention_factor = attention_factor * growth;
  } else if (type == "linear" && factor != 0 && factor != 1) {
    scaling.kind = RotaryScalingKind::linear;
    scaling.factor = factor;
  }
  return scaling;
}

inline RotaryOptions gguf_rotary(const GgufFile& file, const GgufKeys& keys, index_t head_dim,
                                 index_t max_positions) {
  RotaryOptions rotary{.dim = keys.count("rope.dimension_count", head_dim),
                       .theta = keys.get<double>("rope.freq_base", 10000),
                       .max_positions = max_positions,
                       .scaling = gguf_rotary_scaling(keys, max_positions)};
  // Files of Llama have the rows of q and k in the order of the paper, others in that of Hugging
  // Face's files.
  rotary.pairs = keys.architecture() == "llama" ? RotaryPairs::interleaved : RotaryPairs::halves;
  if (!(rotary.theta > 0)) {
    keys.fail_key("rope.freq_base", "be positive", attn::to_string(rotary.theta));
  }
  if (!file.contains(kGgufFrequencyFactors)) return rotary;
  const Shape<1> pairs{rotary.dim / 2};
  file.check(kGgufFrequencyFactors, pairs);
  const std::string tensor = concat("tensor ", quote(kGgufFrequencyFactors));
  if (rotary.scaling.kind == RotaryScalingKind::yarn) {
    keys.fail(tensor, "be missing where there is yarn's scaling", "both");
  }
  rotary.frequencies = rotary_frequencies(rotary).values;
  rotary.scaling = {.attention_factor = rotary.scaling.attention_factor};
  const Tensor1<float> factors = file.load<1>(kGgufFrequencyFactors);
  for (index_t j = 0; j < pairs[0]; ++j) {
    const auto factor = static_cast<double>(factors(j));
    if (!(factor > 0)) keys.fail(tensor, "be positive", attn::to_string(factor));
    rotary.frequencies[static_cast<std::size_t>(j)] /= factor;
  }
  return rotary;
}

}  // namespace detail

ATTN_NAMESPACE_END
