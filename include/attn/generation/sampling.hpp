// Sampling: greedy or random choice of the next token from logits.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "attn/core/random.hpp"
#include "attn/core/ranking.hpp"

ATTN_NAMESPACE_BEGIN

/// The most likely token: argmax() of the logits. Shape: logits (vocab_size). Throws ValueError if
/// a logit is NaN or +inf, or all are -inf.
template <TensorLike Logits>
index_t likeliest_token(const Logits& logits) {
  ATTN_ASSERT_AXES(Logits, 1, "likeliest_token, Sampler: logits", "(vocab_size)");
  const auto row = detail::view_as<const scalar_t<Logits>, 1>(logits);
  const index_t best = argmax(row);
  const auto largest = static_cast<double>(row(best));
  if (!std::isfinite(largest)) {
    throw ValueError(message("likeliest_token", "the largest logit", "be finite",
                             to_string(largest) + " at " + std::to_string(best)));
  }
  return best;
}

/// Sampling from softmax(logits / temperature).
struct SamplingOptions {
  double temperature = 1;  ///< above 0; towards 0 the most likely token
  index_t top_k = 0;       ///< sample only from the k most likely tokens; 0: all
  double top_p = 1;        ///< then from the smallest set whose probabilities reach p, in (0, 1]
  double min_p = 0;  ///< then from tokens with at least p times the largest probability, in [0, 1]
  std::uint64_t seed = 0;  ///< seed of the draws
};

/// Draws tokens. Seed and stream determine the draws for given logits; one stream per batch row
/// makes rows independent of one another. Constructed for one vocabulary size; calls then allocate
/// nothing. Sources: top_p: Holtzman et al., "The curious case of neural text degeneration" (2020);
/// min_p: Nguyen et al., "Turning up the heat: min-p sampling" (2024).
class Sampler {
 public:
  /// Throws ValueError for an option out of range.
  Sampler(const SamplingOptions& options, index_t vocab_size, std::uint32_t stream = 0)
      : options_(options),
        engine_({static_cast<std::uint32_t>(options.seed),
                 static_cast<std::uint32_t>(options.seed >> 32), stream}) {
    const auto check = [](bool good, std::string_view argument, std::string_view expected,
                          auto found) {
      if (good) return;
      throw ValueError(
          message("Sampler", argument, expected, to_string(static_cast<double>(found))));
    };
    check(options.temperature > 0 && std::isfinite(options.temperature), "temperature",
          "be finite and above 0", options.temperature);
    check(options.top_k >= 0, "top_k", "be at least 0", options.top_k);
    check(options.top_p > 0 && options.top_p <= 1, "top_p", "lie in (0, 1]", options.top_p);
    check(options.min_p >= 0 && options.min_p <= 1, "min_p", "lie in [0, 1]", options.min_p);
    check(vocab_size >= 1, "vocab_size", "be at least 1", vocab_size);
    candidates_.reserve(static_cast<std::size_t>(vocab_size));
  }

  /// Draws the next token. Shape: logits (vocab_size). Throws ValueError for the reasons of
  /// likeliest_token(), and then draws nothing.
  template <TensorLike Logits>
  index_t operator()(const Logits& logits) {
    ATTN_ASSERT_AXES(Logits, 1, "likeliest_token, Sampler: logits", "(vocab_size)");
    const auto row = detail::view_as<const scalar_t<Logits>, 1>(logits);
    const auto largest = static_cast<double>(row(likeliest_token(row)));
    candidates_.clear();
    for (index_t i = 0; i < row.extent(0); ++i) {
      const auto logit = static_cast<double>(row(i));
      const double weight = std::exp((logit - largest) / options_.temperature);
      if (weight > 0) candidates_.push_back({weight, logit, i});
    }
    keep_top_k();
    keep_top_p();
    keep_min_p();
    // 53 bits in [0, 1). If rounding makes the sum end below the target, takes the last candidate.
    const double target = static_cast<double>(engine_() >> 11) * 0x1p-53 * sum();
    double reached = 0;
    for (const Candidate& candidate : candidates_) {
      reached += candidate.weight;
      if (reached > target) return candidate.token;
    }
    return candidates_.back().token;
  }

 private:
  struct Candidate {
    double weight;  ///< probability up to a common factor
    double logit;   ///< orders candidates whose weights are equal after rounding
    index_t token;

    /// The more likely first; a strict order, so that sorting has a unique result.
    friend bool operator<(const Candidate& a, const Candidate& b) {
      return a.logit != b.logit ? a.logit > b.logit : a.token < b.token;
    }
  };

  double sum() const {
    double total = 0;
    for (const Candidate& candidate : candidates_) total += candidate.weight;
    return total;
  }

  void keep_top_k() {
    const auto k = static_cast<std::size_t>(options_.top_k);
    if (k == 0 || k >= candidates_.size()) return;
    std::nth_element(candidates_.begin(), candidates_.begin() + options_.top_k, candidates_.end());
    candidates_.resize(k);
    std::sort(candidates_.begin(), candidates_.end());
  }

  void keep_top_p() {
    if (options_.top_p == 1) return;
    const double total = sum();
    // Candidates below this share have less than 1 - top_p in total: they are not needed and not
    // sorted.
    const double min_weight =
        (1 - options_.top_p) * total / static_cast<double>(candidates_.size());
    std::erase_if(candidates_,
                  [&](const Candidate& candidate) { return candidate.weight < min_weight; });
    std::sort(candidates_.begin(), candidates_.end());
    double reached = 0;
    std::size_t kept = 0;
    while (kept < candidates_.size() && reached < options_.top_p * total)
      reached += candidates_[kept++].weight;
    candidates_.resize(kept);
  }

  /// The most likely candidate has weight 1.
  void keep_min_p() {
    if (options_.min_p == 0) return;
    std::erase_if(candidates_,
                  [&](const Candidate& candidate) { return candidate.weight < options_.min_p; });
  }

  SamplingOptions options_;
  detail::MersenneTwister engine_;
  std::vector<Candidate> candidates_;
};

ATTN_NAMESPACE_END
