// adjust_logits: penalties of repetition, forbidden n-grams, and biases.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
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
  /// DRY: a token that would continue a repetition of the last n >= dry_allowed_length tokens loses
  /// dry_multiplier dry_base^(n - dry_allowed_length); 0: off.
  double dry_multiplier = 0;
  double dry_base = 1.75;          ///< growth of the loss with each token of the repetition
  index_t dry_allowed_length = 2;  ///< the shortest repetition that is penalised
  /// Tokens that no repetition contains and that are not penalised, such as newlines.
  std::vector<index_t> dry_breakers = {};
  index_t no_repeat_ngram = 0;  ///< no sequence of this many tokens occurs twice; 0: off
  std::vector<std::pair<index_t, float>> bias = {};  ///< (token, value added to its logit)

  bool changes() const {
    return repetition_penalty != 1 || presence_penalty != 0 || frequency_penalty != 0 ||
           dry_multiplier != 0 || no_repeat_ngram != 0 || !bias.empty();
  }
};

namespace detail {

/// Calls f(token, n) for each token that followed an earlier occurrence of the last n tokens, with
/// the largest n of that occurrence; `breakers` end an occurrence. Takes linear time by the Z
/// function of the reversed tokens: Gusfield, "Algorithms on Strings" (1997), section 1.4.
template <class F>
void for_continuations(std::span<const index_t> ids, std::span<const index_t> breakers, F f) {
  const std::size_t count = ids.size();
  const auto from_end = [&](std::size_t i) { return ids[count - 1 - i]; };
  std::size_t longest = 0;  // number of last tokens without a breaker
  while (longest < count && std::ranges::count(breakers, from_end(longest)) == 0) ++longest;
  std::vector<std::size_t> common(count, 0);  // common end of ids and ids less the last i
  for (std::size_t i = 1, begin = 0, end = 0; i < count; ++i) {
    std::size_t n = i < end ? (std::min)(end - i, common[i - begin]) : 0;
    while (i + n < count && from_end(n) == from_end(i + n)) ++n;
    if (i + n > end) begin = i, end = i + n;
    common[i] = n;
    if (const std::size_t most = (std::min)(n, longest); most > 0) {
      f(from_end(i - 1), static_cast<index_t>(most));
    }
  }
}

}  // namespace detail

/// Changes logits (vocab_size) of the token after `ids`, in place: applies the repetition penalty
/// (divides positive logits of tokens in `ids`, multiplies negative ones), the other penalties,
/// DRY, biases, then no_repeat_ngram; -inf stays -inf. Throws ValueError for an option out of range
/// and for an id outside the vocabulary, before anything is written. Sources: Keskar et al., "CTRL"
/// (2019), section 4.1; the API of OpenAI for presence and frequency; DRY: the option of llama.cpp;
/// n-grams: Paulus et al., "A deep reinforced model" (2017), section 2.5.
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
  check(options.dry_multiplier >= 0 && std::isfinite(options.dry_multiplier), "dry_multiplier",
        "be finite and at least 0", to_string(options.dry_multiplier));
  check(options.dry_base >= 1 && std::isfinite(options.dry_base), "dry_base",
        "be finite and at least 1", to_string(options.dry_base));
  check(options.dry_allowed_length >= 1, "dry_allowed_length", "be at least 1",
        std::to_string(options.dry_allowed_length));
  check(options.no_repeat_ngram >= 0, "no_repeat_ngram", "be at least 0",
        std::to_string(options.no_repeat_ngram));
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
    check(gain < std::numeric_limits<float>::infinity(), "bias", "be a number below +inf",
          to_string(static_cast<double>(gain)));
  }
  for (const auto& [id, count] : counts) {
    double logit = static_cast<double>(logits(id));
    logit = logit > 0 ? logit / options.repetition_penalty : logit * options.repetition_penalty;
    logit -= options.presence_penalty + options.frequency_penalty * static_cast<double>(count);
    logits(id) = static_cast<T>(logit);
  }
  if (options.dry_multiplier > 0) {
    std::unordered_map<index_t, index_t> longest;
    detail::for_continuations(ids, options.dry_breakers, [&](index_t id, index_t n) {
      if (n < options.dry_allowed_length) return;
      if (std::ranges::count(options.dry_breakers, id) == 0) {
        longest[id] = (std::max)(longest[id], n);
      }
    });
    for (const auto& [id, n] : longest) {
      const auto power = static_cast<double>(n - options.dry_allowed_length);
      const double loss = options.dry_multiplier * std::pow(options.dry_base, power);
      logits(id) = static_cast<T>(static_cast<double>(logits(id)) - loss);
    }
  }
  for (const auto& [id, gain] : options.bias) logits(id) += static_cast<T>(gain);
  if (options.no_repeat_ngram == 1) {
    for (const auto& [id, count] : counts) logits(id) = -std::numeric_limits<T>::infinity();
  } else if (options.no_repeat_ngram > 1) {
    detail::for_continuations(ids, {}, [&](index_t id, index_t n) {
      if (n >= options.no_repeat_ngram - 1) logits(id) = -std::numeric_limits<T>::infinity();
    });
  }
}

ATTN_NAMESPACE_END
