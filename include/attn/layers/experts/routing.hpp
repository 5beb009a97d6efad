// Options of a mixture of experts, and the choice of experts from the router's scores.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <span>
#include <string>
#include <utility>

#include "attn/core/view.hpp"

ATTN_NAMESPACE_BEGIN

/// The score of an expert, a function of the router's logits.
enum class RouterScore {
  softmax,  ///< over all experts: Mixtral, Qwen, OLMoE
  sigmoid,  ///< of each expert; a correction bias is added for the choice alone: DeepSeek-V3
};

struct MixtureOfExpertsOptions {
  index_t num_experts = 0;        ///< 0: none, an ordinary feed-forward
  index_t experts_per_token = 2;  ///< with the highest scores; of equal scores, the first
  index_t dim_feedforward = 0;    ///< hidden features of an expert
  RouterScore score = RouterScore::softmax;  ///< from logits to scores
  bool normalize = true;  ///< divide the weights of a token's experts, their scores, by their sum
  double scale = 1;       ///< factor of the weights
  /// Experts are divided into this many groups of consecutive experts; only experts of the
  /// groups_per_token groups with the highest scores are chosen. A group's score is its highest
  /// score, or with RouterScore::sigmoid the sum of its two highest. Sources: DeepSeek-V2 (2024),
  /// section 2.2.2; DeepSeek-V3 (2024), section 2.1.2.
  index_t num_groups = 1;
  index_t groups_per_token = 1;  ///< groups of which a token's experts are chosen
  index_t dim_shared = 0;        ///< hidden features of an expert that every token uses; 0: none
  bool shared_gate = false;  ///< the shared expert's result is multiplied by sigmoid(a linear map)
  bool gated = true;         ///< experts are gated feed-forwards: see FeedForwardOptions
  bool bias = false;         ///< of the router and of the experts' linear layers
  double glu_limit = std::numeric_limits<double>::infinity();  ///< gated: see GatedUnit
  double glu_offset = 0;                                       ///< gated: see GatedUnit
};

namespace detail {

/// The experts of each token, and the tokens of each expert.
template <class Acc>
struct Routing {
  TensorView2<index_t> experts;  ///< (tokens, experts_per_token), ascending
  TensorView2<Acc> weights;      ///< weights of these experts
  TensorView2<index_t> slots;    ///< the row of each (token, expert) in an order by expert
  TensorView1<index_t> starts;   ///< (num_experts + 1): the first row of each expert
};

/// Throws ValueError for options that contradict each other.
inline void check_experts(const MixtureOfExpertsOptions& o) {
  const auto check = [](bool good, std::string_view argument, std::string_view expected,
                        index_t found) {
    if (good) return;
    throw ValueError(message("MixtureOfExperts", argument, expected, std::to_string(found)));
  };
  check(o.num_experts > 0, "num_experts", "be positive", o.num_experts);
  check(o.num_groups > 0 && o.num_experts % o.num_groups == 0, "num_groups",
        "divide num_experts = " + std::to_string(o.num_experts), o.num_groups);
  check(o.groups_per_token > 0 && o.groups_per_token <= o.num_groups, "groups_per_token",
        "lie in 1 .. num_groups = " + std::to_string(o.num_groups), o.groups_per_token);
  const index_t eligible = o.num_experts / o.num_groups * o.groups_per_token;
  check(o.experts_per_token > 0 && o.experts_per_token <= eligible, "experts_per_token",
        "lie in 1 .. " + std::to_string(eligible), o.experts_per_token);
  check(o.dim_feedforward > 0, "dim_feedforward", "be positive", o.dim_feedforward);
  check(o.dim_shared > 0 || !o.shared_gate, "dim_shared", "be positive with shared_gate",
        o.dim_shared);
  const bool has_unit = o.glu_limit < std::numeric_limits<double>::infinity() || o.glu_offset != 0;
  if (!o.gated && has_unit) {
    throw ValueError(
        message("MixtureOfExperts", "gated", "be true with glu_limit or glu_offset", "false"));
  }
}

/// Replaces one token's logits by scores, in place.
template <class Acc>
void score_experts(RouterScore score, std::span<Acc> logits) {
  if (score == RouterScore::sigmoid) {
    for (Acc& x : logits) x = 1 / (1 + std::exp(-x));
    return;
  }
  const Acc most = *std::max_element(logits.begin(), logits.end());
  Acc sum = 0;
  for (Acc& x : logits) sum += x = std::exp(x - most);
  for (Acc& x : logits) x /= sum;
}

/// Chooses the experts of one token, ascending, by the scores `choice`, which it changes. `order`
/// is memory for num_experts indices, `sums` for num_groups sums.
template <class Acc>
void choose_experts(const MixtureOfExpertsOptions& o, std::span<Acc> choice,
                    std::span<index_t> order, std::span<Acc> sums, index_t* chosen) {
  constexpr Acc kLowest = -std::numeric_limits<Acc>::infinity();
  const auto rank = [&](std::span<const Acc> by, index_t count) {
    std::iota(order.begin(), order.begin() + std::ssize(by), index_t{0});
    std::partial_sort(order.begin(), order.begin() + count, order.begin() + std::ssize(by),
                      [&](index_t a, index_t b) {
                        const Acc x = by[static_cast<std::size_t>(a)],
                                  y = by[static_cast<std::size_t>(b)];
                        return x != y ? x > y : a < b;
                      });
  };
  if (o.groups_per_token < o.num_groups) {
    const auto size = static_cast<std::size_t>(o.num_experts / o.num_groups);
    for (std::size_t g = 0; g < sums.size(); ++g) {
      Acc first = kLowest, second = kLowest;
      for (const Acc x : choice.subspan(g * size, size)) {
        if (x > first) {
          second = std::exchange(first, x);
        } else {
          second = (std::max)(second, x);
        }
      }
      sums[g] = o.score == RouterScore::sigmoid && size > 1 ? first + second : first;
    }
    rank(std::span<const Acc>(sums), o.num_groups);
    for (index_t n = o.groups_per_token; n < o.num_groups; ++n) {
      const auto g = static_cast<std::size_t>(order[static_cast<std::size_t>(n)]);
      std::ranges::fill(choice.subspan(g * size, size), kLowest);
    }
  }
  rank(std::span<const Acc>(choice), o.experts_per_token);
  std::copy_n(order.begin(), o.experts_per_token, chosen);
  std::sort(chosen, chosen + o.experts_per_token);
}

/// The divisor of normalised weights. Sigmoids may all be 0: DeepSeek-V3 adds 1e-20.
template <class Acc>
Acc weight_divisor(RouterScore score, Acc sum) {
  return score == RouterScore::sigmoid ? sum + Acc(1e-20) : sum;
}

/// weights = the chosen scores, normalised and scaled as in the options.
template <class Acc>
void weigh_experts(const MixtureOfExpertsOptions& o, std::span<const Acc> scores,
                   const index_t* chosen, Acc* weights) {
  Acc sum = 0;
  for (index_t j = 0; j < o.experts_per_token; ++j) {
    sum += weights[j] = scores[static_cast<std::size_t>(chosen[j])];
  }
  const Acc factor =
      static_cast<Acc>(o.scale) / (o.normalize ? weight_divisor(o.score, sum) : Acc{1});
  for (index_t j = 0; j < o.experts_per_token; ++j) weights[j] *= factor;
}

/// Orders the rows of all tokens by expert, then by token.
template <class Acc>
void order_by_expert(const Routing<Acc>& routing) {
  const index_t experts = routing.starts.extent(0) - 1;
  for (index_t e = 0; e <= experts; ++e) routing.starts(e) = 0;
  for (index_t n = 0; n < routing.experts.size(); ++n) {
    routing.starts(routing.experts.data()[n] + 1) += 1;
  }
  for (index_t e = 0; e < experts; ++e) routing.starts(e + 1) += routing.starts(e);
  for (index_t n = 0; n < routing.experts.size(); ++n) {
    routing.slots.data()[n] = routing.starts(routing.experts.data()[n])++;
  }
  for (index_t e = experts; e > 0; --e) routing.starts(e) = routing.starts(e - 1);
  routing.starts(0) = 0;
}

}  // namespace detail

ATTN_NAMESPACE_END
