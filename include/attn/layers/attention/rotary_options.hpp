// RotaryOptions: rotated coordinates and frequencies of a rotary embedding.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <initializer_list>
#include <numbers>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "attn/core/error.hpp"
#include "attn/core/shape.hpp"

ATTN_NAMESPACE_BEGIN

/// Selects which coordinates form a pair. Models differ, and the wrong choice raises no error but
/// gives wrong results.
enum class RotaryPairs {
  halves,       ///< (j, j + rotary_dim / 2), as in Llama and GPT-NeoX
  interleaved,  ///< (2 j, 2 j + 1), as in the paper and GPT-J
};

/// How frequencies change for texts longer than those of training. The names are those of
/// `rope_scaling` in a config.json, the formulas those of the Python package transformers.
enum class RotaryScalingKind {
  none,
  linear,  ///< all frequencies are divided by `factor`
  /// Dynamic NTK: calls that reach beyond original_max_positions use a greater base. It depends on
  /// the last position of a batch row and applies to all tokens of the row in this call; cached
  /// keys keep their rotation.
  dynamic,
  llama3,  ///< only low frequencies are scaled, by wavelength
  yarn,    ///< low frequencies are scaled, by number of turns, and so are queries and keys
  /// Each frequency has its own divisor: from short_factors or, in calls that reach beyond
  /// original_max_positions, from long_factors, as for dynamic.
  longrope,
};

/// Whether frequencies depend on the length of a sequence.
constexpr bool depends_on_length(RotaryScalingKind kind) {
  return kind == RotaryScalingKind::dynamic || kind == RotaryScalingKind::longrope;
}

struct RotaryScaling {
  RotaryScalingKind kind = RotaryScalingKind::none;  ///< scaling method
  double factor = 1;                                 ///< ratio of the new and the trained length
  /// Trained length; required by query_beta and by all kinds but none and linear.
  index_t original_max_positions = 0;
  double low_freq_factor = 1;  ///< llama3: wavelengths above original / low_freq_factor are scaled
  /// Llama3: wavelengths below original / high_freq_factor are not scaled.
  double high_freq_factor = 4;
  double beta_fast = 32;  ///< yarn: frequencies with more turns are not scaled
  double beta_slow = 1;   ///< yarn: frequencies with fewer turns are scaled by the factor
  bool truncate = true;   ///< yarn: round these bounds to whole pairs
  /// Multiplies cos and sin, for every kind; default: 0.1 ln(factor) + 1 for yarn, sqrt(1 +
  /// ln(factor) / ln(original_max_positions)) for longrope, each if factor > 1, otherwise 1.
  std::optional<double> attention_factor = {};
  /// Layers multiply queries of position p by 1 + query_beta ln(1 + floor(p /
  /// original_max_positions)), for every kind, as in Llama 4.
  double query_beta = 0;

  friend bool operator==(const RotaryScaling&, const RotaryScaling&) = default;
};

/// Up to 256 numbers, stored inside the object, so that options are trivially destructible: for
/// nested braces of other types g++ 12 warns (-Wmaybe-uninitialized) in the user's code.
class RotaryAngles {
 public:
  static constexpr std::size_t kMax = 256;

  constexpr RotaryAngles() = default;
  /// Throws ValueError for more than kMax numbers.
  RotaryAngles(std::span<const double> values) : size_(values.size()) {
    if (size_ > kMax) {
      throw ValueError(message("RotaryAngles", "the angles", "be at most " + std::to_string(kMax),
                               std::to_string(size_)));
    }
    std::copy(values.begin(), values.end(), values_.begin());
  }
  RotaryAngles(std::initializer_list<double> values)
      : RotaryAngles(std::span<const double>(values.begin(), values.size())) {}
  RotaryAngles(const std::vector<double>& values) : RotaryAngles(std::span(values)) {}

  constexpr std::size_t size() const { return size_; }
  constexpr bool empty() const { return size_ == 0; }
  constexpr double* begin() { return values_.data(); }
  constexpr double* end() { return values_.data() + size_; }
  constexpr const double* begin() const { return values_.data(); }
  constexpr const double* end() const { return values_.data() + size_; }
  constexpr double& operator[](std::size_t i) { return values_[i]; }
  constexpr double operator[](std::size_t i) const { return values_[i]; }

  friend bool operator==(const RotaryAngles&, const RotaryAngles&) = default;

 private:
  std::array<double, kMax> values_{};
  std::size_t size_ = 0;
};

/// Defines which coordinates a rotary embedding rotates, and by which angles.
struct RotaryOptions {
  index_t dim = 0;  ///< rotates the first `dim` coordinates of a head; 0: head_dim
  RotaryPairs pairs = RotaryPairs::halves;  ///< which coordinates form a pair
  double theta = 10000;                     ///< base of the frequencies
  index_t max_positions = 4096;             ///< size of the table of angles
  RotaryScaling scaling = {};               ///< of the frequencies, for longer texts
  RotaryAngles frequencies = {};  ///< angle per position of each pair; replaces theta and scaling
  // longrope: divisors of the frequencies, one for each pair.
  RotaryAngles short_factors = {};  ///< longrope: divisors for sequences up to
                                    ///< original_max_positions
  RotaryAngles long_factors = {};   ///< longrope: divisors for longer sequences

  friend bool operator==(const RotaryOptions&, const RotaryOptions&) = default;
};

static_assert(std::is_trivially_destructible_v<RotaryOptions>);

/// The angle per position of each pair, and the factor of cos and sin.
struct RotaryFrequencies {
  std::vector<double> values;
  double attention_factor = 1;
};

/// Computes RotaryFrequencies from options with `dim` set: theta^(-2 j / dim) before scaling; only
/// dynamic and longrope scaling use `length`. Sources: Su et al., "RoFormer" (2021), section 3.2.2;
/// linear scaling: Chen et al., "Extending Context Window of Large Language Models via Positional
/// Interpolation" (2023); yarn: Peng et al., "YaRN" (2023), section 3; longrope: Ding et al.,
/// "LongRoPE" (2024).
inline RotaryFrequencies rotary_frequencies(const RotaryOptions& options, index_t length = 0) {
  const RotaryScaling& scaling = options.scaling;
  if (!options.frequencies.empty()) {
    return {.values = {options.frequencies.begin(), options.frequencies.end()},
            .attention_factor = scaling.attention_factor.value_or(1)};
  }
  const double dim = static_cast<double>(options.dim), factor = scaling.factor;
  const double original = static_cast<double>(scaling.original_max_positions);
  double theta = options.theta;
  if (scaling.kind == RotaryScalingKind::dynamic && length > scaling.original_max_positions) {
    const double stretch = factor * static_cast<double>(length) / original - (factor - 1);
    theta *= std::pow(stretch, dim / (dim - 2));
  }
  RotaryFrequencies result;
  result.attention_factor = scaling.attention_factor.value_or(1);
  for (index_t j = 0; j < options.dim / 2; ++j) {
    result.values.push_back(std::pow(theta, -2 * static_cast<double>(j) / dim));
  }
  if (scaling.kind == RotaryScalingKind::linear) {
    for (double& value : result.values) value /= factor;
  } else if (scaling.kind == RotaryScalingKind::llama3) {
    const double low = scaling.low_freq_factor, high = scaling.high_freq_factor;
    for (double& value : result.values) {
      const double turns = original * value / (2 * std::numbers::pi);
      const double kept = std::clamp((turns - low) / (high - low), 0.0, 1.0);
      value *= kept + (1 - kept) / factor;
    }
  } else if (scaling.kind == RotaryScalingKind::longrope) {
    const bool is_long = length > scaling.original_max_positions;
    const RotaryAngles& factors = is_long ? options.long_factors : options.short_factors;
    for (std::size_t j = 0; j < result.values.size(); ++j) result.values[j] /= factors[j];
    if (!scaling.attention_factor && factor > 1) {
      result.attention_factor = std::sqrt(1 + std::log(factor) / std::log(original));
    }
  } else if (scaling.kind == RotaryScalingKind::yarn) {
    // The (fractional) index of the pair that completes this many rotations within
    // original_max_positions.
    const auto pair_of = [&](double turns) {
      return dim * std::log(original / (2 * std::numbers::pi * turns)) / (2 * std::log(theta));
    };
    double low = pair_of(scaling.beta_fast), high = pair_of(scaling.beta_slow);
    if (scaling.truncate) {
      low = std::floor(low);
      high = std::ceil(high);
    }
    low = (std::max)(low, 0.0);
    high = (std::min)(high, dim - 1);
    if (low == high) high += 0.001;
    for (std::size_t j = 0; j < result.values.size(); ++j) {
      const double slowed = std::clamp((static_cast<double>(j) - low) / (high - low), 0.0, 1.0);
      result.values[j] *= 1 - slowed + slowed / factor;
    }
    if (!scaling.attention_factor && factor > 1)
      result.attention_factor = 0.1 * std::log(factor) + 1;
  }
  return result;
}

namespace detail {

/// Returns the options with `dim` set. Throws ValueError for options that contradict each other or
/// are out of range.
inline RotaryOptions resolved_rotary(RotaryOptions o, index_t head_dim) {
  const auto check = [](bool good, std::string_view argument, std::string_view expected,
                        const std::string& found) {
    if (!good) throw ValueError(message("MultiHeadAttention", argument, expected, found));
  };
  const auto check_positive = [&](std::string_view argument, double value) {
    check(value > 0 && std::isfinite(value), argument, "be positive and finite",
          attn::to_string(value));
  };
  if (o.dim == 0) o.dim = head_dim;
  check(o.dim > 0 && o.dim % 2 == 0 && o.dim <= head_dim, "rotary.dim",
        "be even and at most head_dim = " + std::to_string(head_dim), std::to_string(o.dim));
  check(o.max_positions > 0, "rotary.max_positions", "be positive",
        std::to_string(o.max_positions));
  check_positive("rotary.theta", o.theta);
  check_positive("rotary.scaling.attention_factor", o.scaling.attention_factor.value_or(1));
  const RotaryScaling& s = o.scaling;
  const RotaryScalingKind kind = s.kind;
  if (!o.frequencies.empty()) {
    check(static_cast<index_t>(o.frequencies.size()) == o.dim / 2, "rotary.frequencies",
          "be one for each of " + std::to_string(o.dim / 2) + " pairs",
          std::to_string(o.frequencies.size()));
    check(kind == RotaryScalingKind::none, "rotary.scaling", "be none with given frequencies",
          "another");
    for (const double value : o.frequencies)
      check(std::isfinite(value), "rotary.frequencies", "be finite", attn::to_string(value));
  }
  for (const auto& [name, factors] :
       {std::pair<std::string_view, const RotaryAngles&>("rotary.short_factors", o.short_factors),
        {"rotary.long_factors", o.long_factors}}) {
    const bool needed = kind == RotaryScalingKind::longrope;
    check(static_cast<index_t>(factors.size()) == (needed ? o.dim / 2 : 0), name,
          needed ? "be one for each of " + std::to_string(o.dim / 2) + " pairs"
                 : std::string("be none without longrope"),
          std::to_string(factors.size()));
    for (const double value : factors) check_positive(name, value);
  }
  check(std::isfinite(s.query_beta), "rotary.scaling.query_beta", "be finite",
        attn::to_string(s.query_beta));
  check(s.query_beta == 0 || s.original_max_positions > 0, "rotary.scaling.original_max_positions",
        "be positive with query_beta", std::to_string(s.original_max_positions));
  if (kind == RotaryScalingKind::none) {
    check(s.factor == 1, "rotary.scaling.factor", "be 1 without a kind of scaling",
          attn::to_string(s.factor));
    return o;
  }
  check_positive("rotary.scaling.factor", s.factor);
  if (kind == RotaryScalingKind::linear) return o;
  check(s.original_max_positions > 0, "rotary.scaling.original_max_positions", "be positive",
        std::to_string(s.original_max_positions));
  if (kind == RotaryScalingKind::dynamic) {
    check(o.dim > 2, "rotary.dim", "be more than 2 with dynamic scaling", std::to_string(o.dim));
    check(s.factor >= 1, "rotary.scaling.factor", "be at least 1 with dynamic scaling",
          attn::to_string(s.factor));
  } else if (kind == RotaryScalingKind::llama3) {
    check_positive("rotary.scaling.low_freq_factor", s.low_freq_factor);
    check(s.high_freq_factor > s.low_freq_factor && std::isfinite(s.high_freq_factor),
          "rotary.scaling.high_freq_factor",
          "be more than low_freq_factor = " + attn::to_string(s.low_freq_factor),
          attn::to_string(s.high_freq_factor));
  } else if (kind == RotaryScalingKind::longrope) {
    check(s.original_max_positions > 1, "rotary.scaling.original_max_positions",
          "be more than 1 with longrope", std::to_string(s.original_max_positions));
  } else {
    check_positive("rotary.scaling.beta_fast", s.beta_fast);
    check_positive("rotary.scaling.beta_slow", s.beta_slow);
    check(o.theta != 1, "rotary.theta", "not be 1 with yarn", "1");
  }
  return o;
}

}  // namespace detail

ATTN_NAMESPACE_END
