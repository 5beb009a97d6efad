// XTC, Mirostat 2 and DRY against plain loops from the definitions of llama.cpp.
#include <cmath>
#include <limits>
#include <numeric>

#include <gtest/gtest.h>

#include "attn/generation/logits.hpp"
#include "attn/generation/sampling.hpp"

#include "support/random.hpp"

namespace attn {
namespace {

using attn_test::Random;
using Numbers = std::vector<double>;

/// exp(logits / temperature) over their sum; 0 where a logit is -inf.
Numbers softmax_at(const Numbers& logits, double temperature) {
  Numbers p;
  for (const double logit : logits) p.push_back(std::exp(logit / temperature));
  const double total = std::accumulate(p.begin(), p.end(), 0.0);
  for (double& x : p) x /= total;
  return p;
}

/// The likeliest token, and with `last` the least likely of those above 0.
std::size_t extreme_of(const Numbers& p, bool last) {
  std::size_t best = 0;
  for (std::size_t i = 0; i < p.size(); ++i) {
    const bool is_better = last ? p[i] < p[best] : p[i] > p[best];
    if (p[i] > 0 && (is_better || p[best] == 0)) best = i;
  }
  return best;
}

/// The number of times that an event came, and what its probabilities predict.
struct Events {
  double found = 0, expected = 0, variance = 0;

  void add(bool came, double p) {
    found += came ? 1 : 0;
    expected += p;
    variance += p * (1 - p);
  }
  /// Within six standard deviations, once in 10^9, and 3 since rare events are not normal.
  void check(const char* what) const {
    EXPECT_LE(std::abs(found - expected), 6 * std::sqrt(variance) + 3) << what;
  }
};

/// Before the temperature, of the tokens with at least the threshold's probability only the least
/// likely stays, in a share xtc_probability of the draws.
TEST(LlamaSampling, XtcHasTheProbabilitiesOfItsDefinition) {
  int removals = 0;
  for (std::uint64_t draw = 0; draw < attn_test::draws(60); ++draw) {
    Random random(draw);
    SCOPED_TRACE(random.trace());
    const auto logits = random.tensor<double, 1>({random.integer(1, 12)}, 1.5);
    const SamplingOptions options{.temperature = random.pick<double>({0.5, 1, 3}),
                                  .xtc_probability = random.pick<double>({0.2, 0.5, 1}),
                                  .xtc_threshold = random.pick<double>({0.02, 0.1, 0.3, 0.6}),
                                  .seed = draw};
    const Numbers all(logits.data(), logits.data() + logits.size());
    Numbers rest = all;
    const Numbers plain = softmax_at(all, 1);
    double least = 2;
    for (const double p : plain) {
      if (p >= options.xtc_threshold) least = std::min(least, p);
    }
    for (std::size_t i = 0; i < rest.size(); ++i) {
      if (plain[i] <= least) continue;
      rest[i] = -std::numeric_limits<double>::infinity();
      removals += 1;
    }
    if (least > 1) rest = all;
    const Numbers with = softmax_at(rest, options.temperature),
                  without = softmax_at(all, options.temperature);
    std::vector<Events> events(all.size());
    Sampler sampler(options, logits.size());
    for (int n = 0; n < 4000; ++n) {
      const auto token = static_cast<std::size_t>(sampler(logits));
      for (std::size_t i = 0; i < all.size(); ++i) {
        const double x = options.xtc_probability, p = x * with[i] + (1 - x) * without[i];
        events[i].add(i == token, p);
        ASSERT_TRUE(i != token || p > 0) << "token " << i;
      }
    }
    for (const Events& one : events) one.check("frequency");
  }
  EXPECT_GT(removals, 10);
}

/// mu starts at 2 tau. A draw comes from the tokens of surprise -log2(p) <= mu, at least from the
/// likeliest; then mu -= eta (surprise among these - tau).
TEST(LlamaSampling, MirostatMovesItsLimitAsDefined) {
  for (std::uint64_t draw = 0; draw < attn_test::draws(20); ++draw) {
    Random random(draw);
    SCOPED_TRACE(random.trace());
    const SamplingOptions options{.temperature = random.pick<double>({0.7, 1, 1.5}),
                                  .mirostat_tau = random.pick<double>({0.3, 1, 2, 3.5}),
                                  .mirostat_eta = random.pick<double>({0.02, 0.1, 0.5}),
                                  .seed = draw};
    const index_t vocab_size = random.integer(2, 40);
    Sampler sampler(options, vocab_size);
    double mu = 2 * options.mirostat_tau;
    Events likeliest, last;
    for (int step = 0; step < 1000; ++step) {
      const auto logits = random.tensor<double, 1>({vocab_size}, 2);
      const Numbers all(logits.data(), logits.data() + logits.size());
      const Numbers p = softmax_at(all, options.temperature);
      const std::size_t first = extreme_of(p, false);
      Numbers kept = all;
      for (std::size_t i = 0; i < kept.size(); ++i) {
        if (i != first && -std::log2(p[i]) > mu) kept[i] = -std::numeric_limits<double>::infinity();
      }
      const Numbers among = softmax_at(kept, options.temperature);
      const auto token = static_cast<std::size_t>(sampler(logits));
      ASSERT_GT(among[token], 0) << "step " << step;
      mu -= options.mirostat_eta * (-std::log2(among[token]) - options.mirostat_tau);
      const std::size_t end = extreme_of(among, true);
      likeliest.add(token == first, among[first]);
      last.add(token == end, among[end]);
    }
    likeliest.check("likeliest token");
    last.check("last token within the limit");
  }
}

/// A token loses multiplier base^(n - allowed_length) if it followed the last n tokens before, for
/// the largest n; breakers are neither among these nor lose anything.
TEST(LlamaSampling, DrySubtractsWhatItsDefinitionSays) {
  std::uint64_t losses = 0;
  const std::uint64_t draws = attn_test::draws(400);
  for (std::uint64_t draw = 0; draw < draws; ++draw) {
    Random random(draw);
    SCOPED_TRACE(random.trace());
    const index_t vocab_size = random.integer(2, 6);
    std::vector<index_t> ids(static_cast<std::size_t>(random.integer(0, 60)));
    for (index_t& id : ids) id = random.integer(0, vocab_size - 1);
    LogitOptions options{.dry_multiplier = random.pick<double>({0.3, 1, 5}),
                         .dry_base = random.pick<double>({1, 1.75, 3}),
                         .dry_allowed_length = random.integer(1, 3)};
    for (index_t id = 0; id < vocab_size; ++id) {
      if (random.chance(0.15)) options.dry_breakers.push_back(id);
    }
    const auto is_breaker = [&](index_t id) {
      return std::ranges::count(options.dry_breakers, id) > 0;
    };
    auto logits = random.tensor<double, 1>({vocab_size});
    const auto before = logits;
    adjust_logits(logits.view(), ids, options);
    for (index_t id = 0; id < vocab_size; ++id) {
      std::size_t longest = 0;
      for (std::size_t at = 0; at < ids.size(); ++at) {
        std::size_t n = 0;
        while (n < at && ids[at - 1 - n] == ids[ids.size() - 1 - n] && !is_breaker(ids[at - 1 - n]))
          ++n;
        if (ids[at] == id) longest = std::max(longest, n);
      }
      double expected = before(id);
      const auto beyond = static_cast<double>(longest) - double(options.dry_allowed_length);
      if (beyond >= 0 && !is_breaker(id)) {
        expected -= options.dry_multiplier * std::pow(options.dry_base, beyond);
        losses += 1;
      }
      EXPECT_NEAR(logits(id), expected, 1e-14 * (1 + std::abs(expected))) << "token " << id;
    }
  }
  EXPECT_GE(losses, draws / 8);
}

}  // namespace
}  // namespace attn
