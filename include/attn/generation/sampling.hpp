// Sampling: greedy or random choice of the next token from logits.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
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

/// Sampling from softmax(logits / temperature). Each option filters the tokens that the options
/// before it keep.
struct SamplingOptions {
  double temperature = 1;  ///< above 0; towards 0 the most likely token
  /// Keeps logits of at least the largest one minus n standard deviations of all finite logits; 0:
  /// all. Does not depend on the temperature.
  double top_n_sigma = 0;
  index_t top_k = 0;  ///< keeps the k most likely tokens; 0: all
  double top_p = 1;   ///< keeps the smallest set whose probabilities reach p, in (0, 1]
  double min_p = 0;   ///< keeps tokens with at least p times the largest probability, in [0, 1]
  /// Keeps the smallest set of tokens whose probabilities reach p, in (0, 1], in the order of the
  /// distance between -log(probability) and the entropy.
  double typical_p = 1;
  /// XTC: with this probability, removes all tokens whose probability before the temperature is at
  /// least xtc_threshold, except the least likely of them.
  double xtc_probability = 0;
  double xtc_threshold = 0.1;  ///< probability of a top choice
  /// Mirostat 2: removes tokens whose surprise, -log2(probability), exceeds a limit. Each draw
  /// adjusts the limit so that the surprise of drawn tokens approaches this target; 0: off.
  double mirostat_tau = 0;
  double mirostat_eta = 0.1;  ///< learning rate of the limit
  std::uint64_t seed = 0;     ///< seed of the draws
};

/// Draws tokens. Seed and stream determine the draws for given logits; one stream per batch row
/// makes rows independent of one another. Constructed for one vocabulary size; calls then allocate
/// nothing. Sources: top_p: Holtzman et al., "The curious case of neural text degeneration" (2020);
/// min_p: Nguyen et al., "Turning up the heat: min-p sampling" (2024); typical_p: Meister et al.,
/// "Locally typical sampling" (2022); top_n_sigma: Tang et al., "Top-n-sigma" (2024); Mirostat:
/// Basu et al. (2021), algorithm 2; XTC: the option of llama.cpp.
class Sampler {
 public:
  /// Throws ValueError for an option out of range.
  Sampler(const SamplingOptions& options, index_t vocab_size, std::uint32_t stream = 0)
      : options_(options),
        engine_({static_cast<std::uint32_t>(options.seed),
                 static_cast<std::uint32_t>(options.seed >> 32), stream}),
        surprise_limit_(2 * options.mirostat_tau) {
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
    check(options.top_n_sigma >= 0 && std::isfinite(options.top_n_sigma), "top_n_sigma",
          "be finite and at least 0", options.top_n_sigma);
    check(options.typical_p > 0 && options.typical_p <= 1, "typical_p", "lie in (0, 1]",
          options.typical_p);
    check(options.xtc_probability >= 0 && options.xtc_probability <= 1, "xtc_probability",
          "lie in [0, 1]", options.xtc_probability);
    check(options.xtc_threshold >= 0 && options.xtc_threshold <= 1, "xtc_threshold",
          "lie in [0, 1]", options.xtc_threshold);
    check(options.mirostat_tau >= 0 && std::isfinite(options.mirostat_tau), "mirostat_tau",
          "be finite and at least 0", options.mirostat_tau);
    check(options.mirostat_eta >= 0 && std::isfinite(options.mirostat_eta), "mirostat_eta",
          "be finite and at least 0", options.mirostat_eta);
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
    const double lowest = lowest_logit(row, largest);
    candidates_.clear();
    for (index_t i = 0; i < row.extent(0); ++i) {
      const auto logit = static_cast<double>(row(i));
      if (logit < lowest) continue;
      const double weight = std::exp((logit - largest) / options_.temperature);
      if (weight > 0) candidates_.push_back({weight, logit, i});
    }
    keep_top_k();
    keep_top_p();
    keep_min_p();
    keep_typical();
    exclude_top_choices();
    keep_surprise();
    const double total = sum();
    // If rounding makes the sum end below the target, takes the last candidate.
    const double target = uniform() * total;
    double reached = 0;
    const Candidate* drawn = &candidates_.back();
    for (const Candidate& candidate : candidates_) {
      reached += candidate.weight;
      if (reached <= target) continue;
      drawn = &candidate;
      break;
    }
    if (options_.mirostat_tau > 0) {
      const double surprise = -std::log2(drawn->weight / total);
      surprise_limit_ -= options_.mirostat_eta * (surprise - options_.mirostat_tau);
    }
    return drawn->token;
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

  /// 53 bits in [0, 1).
  double uniform() { return static_cast<double>(engine_() >> 11) * 0x1p-53; }

  /// The limit of top_n_sigma.
  template <class T>
  double lowest_logit(const TensorView1<T>& row, double largest) const {
    constexpr double kInfinity = std::numeric_limits<double>::infinity();
    if (options_.top_n_sigma == 0) return -kInfinity;
    double total = 0, squares = 0, count = 0;
    for (index_t i = 0; i < row.extent(0); ++i) {
      const double below = largest - static_cast<double>(row(i));
      if (below == kInfinity) continue;
      total += below;
      squares += below * below;
      count += 1;
    }
    const double mean = total / count;
    const double variance = (std::max)(squares / count - mean * mean, 0.0);
    return largest - options_.top_n_sigma * std::sqrt(variance);
  }

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

  void keep_typical() {
    if (options_.typical_p == 1) return;
    const double total = sum();
    double entropy = 0;
    for (const Candidate& c : candidates_) {
      const double share = c.weight / total;
      if (share > 0) entropy -= share * std::log(share);  // a tiny weight may round to 0
    }
    const auto distance = [&](const Candidate& c) {
      return std::abs(-std::log(c.weight / total) - entropy);
    };
    std::sort(candidates_.begin(), candidates_.end(), [&](const Candidate& a, const Candidate& b) {
      const double x = distance(a), y = distance(b);
      return x != y ? x < y : a < b;
    });
    double reached = 0;
    std::size_t kept = 0;
    while (kept < candidates_.size() && reached < options_.typical_p * total)
      reached += candidates_[kept++].weight;
    candidates_.resize((std::max)(kept, std::size_t{1}));
  }

  /// Draws a number of its own, whatever the candidates are.
  void exclude_top_choices() {
    if (options_.xtc_probability == 0 || uniform() >= options_.xtc_probability) return;
    std::sort(candidates_.begin(), candidates_.end());
    double total = 0;
    for (const Candidate& c : candidates_) total += std::exp(c.logit - candidates_[0].logit);
    std::size_t above = 0;
    while (above < candidates_.size() &&
           std::exp(candidates_[above].logit - candidates_[0].logit) >=
               options_.xtc_threshold * total) {
      ++above;
    }
    if (above > 1) {
      candidates_.erase(candidates_.begin(),
                        candidates_.begin() + static_cast<std::ptrdiff_t>(above - 1));
    }
  }

  void keep_surprise() {
    if (options_.mirostat_tau == 0) return;
    std::sort(candidates_.begin(), candidates_.end());
    const double least = std::exp2(-surprise_limit_) * sum();
    std::size_t kept = 1;
    while (kept < candidates_.size() && candidates_[kept].weight >= least) ++kept;
    candidates_.resize(kept);
  }

  SamplingOptions options_;
  detail::MersenneTwister engine_;
  double surprise_limit_;  ///< of Mirostat
  std::vector<Candidate> candidates_;
};

ATTN_NAMESPACE_END
