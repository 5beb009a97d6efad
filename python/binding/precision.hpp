// Words for the formats of weights and activations.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <span>
#include <string_view>
#include <utility>

#include "attn/models/quantize.hpp"

namespace attn_python {

inline constexpr std::pair<std::string_view, attn::WeightFormat> kWeights[] = {
    {"bf16", attn::WeightFormat::bf16}, {"f16", attn::WeightFormat::f16},
    {"int8", attn::WeightFormat::int8}, {"q8_0", attn::WeightFormat::q8_0},
    {"q5_1", attn::WeightFormat::q5_1}, {"q5_0", attn::WeightFormat::q5_0},
    {"q4_1", attn::WeightFormat::q4_1}, {"q4_0", attn::WeightFormat::q4_0},
};

inline constexpr std::pair<std::string_view, attn::ActivationFormat> kActivations[] = {
    {"exact", attn::ActivationFormat::exact},
    {"bf16", attn::ActivationFormat::bf16},
    {"int8", attn::ActivationFormat::int8},
    {"int16", attn::ActivationFormat::int16},
};

/// The value of a word. Throws ValueError.
template <class Value, std::size_t N>
Value value_of(const std::pair<std::string_view, Value> (&words)[N], std::string_view word,
               std::string_view function, std::string_view argument) {
  std::string known;
  for (const auto& [name, value] : words) {
    if (name == word) return value;
    known += (known.empty() ? "'" : ", '") + std::string(name) + "'";
  }
  throw attn::ValueError(attn::message(function, argument,
                                       attn::detail::join({"be one of ", known}),
                                       attn::detail::join({"'", word, "'"})));
}

/// None for "float", which leaves weights as they are.
inline std::optional<attn::WeightFormat> weights_of(std::string_view word,
                                                    std::string_view function) {
  if (word == "float") return std::nullopt;
  return value_of(kWeights, word, function, "weights");
}

}  // namespace attn_python
