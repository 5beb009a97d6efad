// adjust_logits: repetition, presence and frequency penalties, and biases.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "attn/core/tensor.hpp"

ATTN_NAMESPACE_BEGIN

struct LogitOptions {
  /// Divides positive logits of tokens that occurred, multiplies negative ones.
  double repetition_penalty = 1;
  double presence_penalty = 0;   ///< subtracted from the logit of each token that occurred
  double frequency_penalty = 0;  ///< subtracted once per occurrence
  std::vector<std::pair<index_t, float>> bias = {};  ///< (token, value added to its logit)

  bool changes() const {
    return repetition_penalty != 1 || presence_penalty != 0 || frequency_penalty != 0 ||
           !bias.empty();
  }
};

/// Changes logits (vocab_size) of the token after `ids`, in place: applies the repetition penalty
/// (divides positive logits of tokens in `ids`, multiplies negative ones), the other penalties,
/// then biases; -inf stays -inf. Throws ValueError for a penalty out of range and for an id outside
/// the vocabulary, before anything is written. Sources: Keskar et al., "CTRL" (2019), section 4.1;
/// the API of OpenAI for presence and frequency.
template <class T>
void adjust_logits(TensorView1<T> logits, std::span<const index_t> ids,
                   const LogitOptions& options) {
  const auto check = [](bool good, std::string_view argument, std::string_view expected,
                        const std::string& found) {
    if (!good) throw ValueError(message("adjust_logits", argument, expected, found));
  };
  check(options.repetition_penalty > 0 && std::isfinite(options.repetition_penalty),
        "repetition_penalty", "be finite and above 0", to_string(options.repetition_penalty));
  check(std::isfinite(options.presence_penalty), "presence_penalty", "be finite",
        to_string(options.presence_penalty));
  check(std::isfinite(options.frequency_penalty), "frequency_penalty", "be finite",
        to_string(options.frequency_penalty));
  const auto check_id = [&](index_t id) {
    check(id >= 0 && id < logits.extent(0), "every token",
          "lie in 0 .. " + std::to_string(logits.extent(0) - 1), std::to_string(id));
  };
  std::unordered_map<index_t, index_t> counts;
  for (const index_t id : ids) {
    check_id(id);
    ++counts[id];
  }
  for (const auto& [id, gain] : options.bias) {
    check_id(id);
    check(!std::isnan(gain), "bias", "be a number", "NaN");
  }
  for (const auto& [id, count] : counts) {
    double logit = static_cast<double>(logits(id));
    logit = logit > 0 ? logit / options.repetition_penalty : logit * options.repetition_penalty;
    logit -= options.presence_penalty + options.frequency_penalty * static_cast<double>(count);
    logits(id) = static_cast<T>(logit);
  }
  for (const auto& [id, gain] : options.bias) logits(id) += static_cast<T>(gain);
}

ATTN_NAMESPACE_END
