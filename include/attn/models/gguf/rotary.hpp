// Rotary embedding from the metadata of a GGUF file.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attn/layers/attention/rotary_options.hpp"
#include "attn/models/gguf/keys.hpp"

ATTN_NAMESPACE_BEGIN

namespace detail {

/// The optional tensor that divides each frequency: Llama 3's scaling.
inline constexpr std::string_view kGgufFrequencyFactors = "rope_freqs.weight";

/// As in llama.cpp: without a type the scaling is linear, a factor of 0 disables it, and
/// attn_factor multiplies cos and sin for every type.
inline RotaryScaling gguf_rotary_scaling(const GgufKeys& keys) {
  constexpr std::string_view kType = "rope.scaling.type", kFactor = "rope.scaling.factor",
                             kOldFactor = "rope.scale_linear",
                             kOriginal = "rope.scaling.original_context_length";
  const auto type = keys.get<std::string_view>(kType, "linear");
  const bool is_none = type == "none", is_yarn = type == "yarn";
  if (!is_none && !is_yarn && type != "linear") {
    keys.fail(kType, "be none, linear or yarn", quote(type));
  }
  const double factor = keys.not_negative(kFactor, keys.not_negative(kOldFactor, 0));
  if (!is_none && keys.has(kType) && !keys.has(kFactor) && !keys.has(kOldFactor)) {
    keys.fail(kFactor, concat("be in the file with type ", type), "none");
  }
  const index_t original = keys.count(keys.has(kOriginal) ? kOriginal : "context_length");
  const double beta_fast = keys.positive("rope.scaling.yarn_beta_fast", 32),
               beta_slow = keys.positive("rope.scaling.yarn_beta_slow", 1);
  RotaryScaling scaling{.attention_factor = keys.positive("rope.scaling.attn_factor", 1)};
  if (is_none || factor == 0) return scaling;
  scaling.kind = is_yarn ? RotaryScalingKind::yarn : RotaryScalingKind::linear;
  scaling.factor = factor;
  if (!is_yarn) return scaling;
  scaling.original_max_positions = original;
  scaling.beta_fast = beta_fast;
  scaling.beta_slow = beta_slow;
  // The key's factor multiplies the factor of the method.
  if (factor > 1) *scaling.attention_factor *= 0.1 * std::log(factor) + 1;
  return scaling;
}

inline RotaryOptions gguf_rotary(const GgufFile& file, const GgufKeys& keys, RotaryPairs pairs,
                                 index_t head_dim, index_t max_positions) {
  RotaryOptions rotary{.dim = keys.count("rope.dimension_count", head_dim),
                       .pairs = pairs,
                       .theta = keys.positive("rope.freq_base", 10000),
                       .max_positions = max_positions,
                       .scaling = gguf_rotary_scaling(keys)};
  if (!file.contains(kGgufFrequencyFactors)) return rotary;
  const Shape<1> pairs_of_head{rotary.dim / 2};
  file.check(kGgufFrequencyFactors, pairs_of_head);
  const RotaryFrequencies scaled = rotary_frequencies(rotary);
  rotary.frequencies = scaled.values;
  rotary.scaling = {.attention_factor = scaled.attention_factor};
  const Tensor1<float> factors = file.load<1>(kGgufFrequencyFactors);
  for (index_t j = 0; j < pairs_of_head[0]; ++j) {
    const auto factor = static_cast<double>(factors(j));
    if (!(factor > 0)) {
      throw ValueError(
          message("LanguageModel",
                  concat(quote(file.file_name()), ": tensor ", quote(kGgufFrequencyFactors)),
                  "be positive", attn::to_string(factor)));
    }
    rotary.frequencies[static_cast<std::size_t>(j)] /= factor;
  }
  return rotary;
}

}  // namespace detail

ATTN_NAMESPACE_END
