// Keys of a GGUF file's architecture, and the rotary embeddings that they ask for.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attn/io/gguf.hpp"
#include "attn/layers/attention/rotary_options.hpp"

ATTN_NAMESPACE_BEGIN

namespace detail {

/// Keys such as "llama.block_count" by what stands behind the architecture's name, with errors that
/// name file and key.
class GgufKeys {
 public:
  explicit GgufKeys(const GgufFile& file)
      : file_(file), architecture_(file.get<std::string_view>("general.architecture")) {}

  const std::string& architecture() const { return architecture_; }
  std::string key(std::string_view name) const { return concat(architecture_, ".", name); }
  bool has(std::string_view name) const { return file_.has(key(name)); }
  template <GgufElement T>
  T get(std::string_view name) const {
    return file_.get<T>(key(name));
  }
  template <GgufElement T>
  T get(std::string_view name, T otherwise) const {
    return file_.get<T>(key(name), otherwise);
  }

  /// A size: 1 .. 2^24.
  index_t count(std::string_view name) const {
    const index_t value{get<std::uint32_t>(name)};
    if (value < 1 || value > index_t{1} << 24) {
      fail_key(name, "lie in 1 .. 2^24", std::to_string(value));
    }
    return value;
  }
  index_t count(std::string_view name, index_t otherwise) const {
    return has(name) ? count(name) : otherwise;
  }

  [[noreturn]] void fail(std::string_view what, std::string_view expected,
                         std::string_view found) const {
    throw ValueError(
        message("LanguageModel", concat(quote(file_.file_name()), ": ", what), expected, found));
  }
  [[noreturn]] void fail_key(std::string_view name, std::string_view expected,
                             std::string_view found) const {
    fail(concat("key ", quote(key(name))), expected, found);
  }

 private:
  const GgufFile& file_;
  std::string architecture_;
};

/// The tensor that divides each frequency, where there is one: Llama 3's scaling.
inline constexpr std::string_view kGgufFrequencyFactors = "rope_freqs.weight";

inline RotaryScaling gguf_rotary_scaling(const GgufKeys& keys, index_t max_positions) {
  if (keys.has("rope.scale_linear")) {
    keys.fail_key("rope.scale_linear", "be spelled as newer files have it: rope.scaling.factor",
                  "one");
  }
  RotaryScaling scaling;
  const auto type = keys.get<std::string_view>("rope.scaling.type", "none");
  if (type == "none") return scaling;
  if (type != "linear" && type != "yarn") {
    keys.fail_key("rope.scaling.type", "be none, linear or yarn", quote(type));
  }
  const bool is_yarn = type == "yarn";
  scaling.kind = is_yarn ? RotaryScalingKind::yarn : RotaryScalingKind::linear;
  scaling.factor = keys.get<double>("rope.scaling.factor");
  if (!is_yarn) return scaling;
  scaling.original_max_positions =
      keys.count("rope.scaling.original_context_length", max_positions);
  scaling.beta_fast = keys.get<double>("rope.scaling.yarn_beta_fast", 32);
  scaling.beta_slow = keys.get<double>("rope.scaling.yarn_beta_slow", 1);
  // The files' factor is one more beside that of the method.
  const double growth = scaling.factor > 1 ? 0.1 * std::log(scaling.factor) + 1 : 1;
  scaling.attention_factor = keys.get<double>("rope.scaling.attn_factor", 1) * growth;
  for (const std::string_view name :
       {"rope.scaling.yarn_ext_factor", "rope.scaling.yarn_attn_factor",
        "rope.scaling.yarn_log_multiplier"}) {
    if (keys.has(name)) keys.fail_key(name, "be missing", "one");
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
  rotary.scaling = {};
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
