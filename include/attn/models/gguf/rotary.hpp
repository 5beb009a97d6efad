// Rotary embedding from the metadata of a GGUF file.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attn/layers/attention/rotary_options.hpp"
#include "attn/models/gguf/keys.hpp"

ATTN_NAMESPACE_BEGIN

namespace detail {

/// The optional tensor that divides each frequency: Llama 3's scaling.
inline constexpr std::string_view kGgufFrequencyFactors = "rope_freqs.weight";
/// Optional tensors that divide each frequency, of short and of long sequences: longrope.
inline constexpr std::string_view kGgufShortFactors = "rope_factors_short.weight",
                                  kGgufLongFactors = "rope_factors_long.weight";

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

/// A tensor of one positive divisor for each of `count` frequencies.
inline std::vector<double> gguf_divisors(const GgufFile& file, std::string_view name,
                                         index_t count) {
  file.check(name, Shape<1>{count});
  std::vector<double> divisors;
  const Tensor1<float> values = file.load<1>(name);
  for (const float value : values.elements()) {
    const auto factor = static_cast<double>(value);
    if (!(factor > 0)) {
      throw ValueError(message("LanguageModel",
                               concat(quote(file.file_name()), ": tensor ", quote(name)),
                               "be positive", attn::to_string(factor)));
    }
    divisors.push_back(factor);
  }
  return divisors;
}

inline RotaryOptions gguf_rotary(const GgufFile& file, const GgufKeys& keys, RotaryPairs pairs,
                                 index_t head_dim, index_t max_positions) {
  RotaryOptions rotary{.dim = keys.count("rope.dimension_count", head_dim),
                       .pairs = pairs,
                       .theta = keys.positive("rope.freq_base", 10000),
                       .max_positions = max_positions,
                       .scaling = gguf_rotary_scaling(keys)};
  const index_t frequencies = rotary.dim / 2;
  if (file.contains(kGgufShortFactors)) {
    rotary.scaling.kind = RotaryScalingKind::longrope;
    rotary.scaling.original_max_positions =
        keys.count("rope.scaling.original_context_length", keys.count("context_length"));
    rotary.short_factors = gguf_divisors(file, kGgufShortFactors, frequencies);
    rotary.long_factors = gguf_divisors(file, kGgufLongFactors, frequencies);
  }
  if (!file.contains(kGgufFrequencyFactors)) return rotary;
  const RotaryFrequencies scaled = rotary_frequencies(rotary);
  rotary.frequencies = scaled.values;
  rotary.scaling = {.attention_factor = scaled.attention_factor};
  const auto factors = gguf_divisors(file, kGgufFrequencyFactors, frequencies);
  for (std::size_t j = 0; j < factors.size(); ++j) rotary.frequencies[j] /= factors[j];
  return rotary;
}

}  // namespace detail

ATTN_NAMESPACE_END
