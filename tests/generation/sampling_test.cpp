// likeliest_token and Sampler: which tokens can be drawn, how often, and their errors.
#include "attn/generation/sampling.hpp"

#include <cmath>
#include <limits>
#include <numeric>

#include <gtest/gtest.h>

#include "support/error_of.hpp"
#include "support/random.hpp"

namespace attn {
namespace {

using attn_test::contains;
using attn_test::error_of;
using attn_test::Random;

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

/// How often each token comes in `draws` draws.
template <class T>
std::vector<int> counts(const SamplingOptions& options, const Tensor1<T>& logits, int draws) {
  Sampler sampler(options, logits.size());
  std::vector<int> count(static_cast<std::size_t>(logits.size()));
  for (int i = 0; i < draws; ++i) count.at(static_cast<std::size_t>(sampler(logits))) += 1;
  return count;
}

/// Probabilities as the definitions say, one after the other: temperature, top k, top p, min p.
template <class T>
std::vector<double> probabilities(const SamplingOptions& options, const Tensor1<T>& logits) {
  const auto n = static_cast<std::size_t>(logits.size());
  std::vector<double> p(n);
  for (std::size_t i = 0; i < n; ++i)
    p[i] = std::exp(static_cast<double>(logits.data()[i]) / options.temperature);
  const auto normalise = [&] {
    const double total = std::accumulate(p.begin(), p.end(), 0.0);
    for (double& x : p) x /= total;
  };
  std::vector<std::size_t> order(n);
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return p[a] > p[b]; });
  normalise();
  if (options.top_k > 0) {
    for (std::size_t i = static_cast<std::size_t>(options.top_k); i < n; ++i) p[order[i]] = 0;
    normalise();
  }
  double reached = 0;
  for (std::size_t i : order) {
    if (reached >= options.top_p) p[i] = 0;
    reached += p[i];
  }
  for (double& x : p) {
    if (x < options.min_p * p[order[0]]) x = 0;
  }
  normalise();
  return p;
}

TEST(LikeliestToken, IsArgmaxOfLogitsThatLeaveOne) {
  EXPECT_EQ(likeliest_token(Tensor1<float>({5}, {-kInf, 2, 3, 3, 1})), 2);
  const auto error = [](float a, float b) {
    return error_of<ValueError>([&] { likeliest_token(Tensor1<float>({2}, {a, b})); });
  };
  EXPECT_EQ(error(1, kNaN), "[argmax] element 1 must be a number; found nan.");
  EXPECT_EQ(error(1, kInf), "[likeliest_token] the largest logit must be finite; found inf at 1.");
  EXPECT_TRUE(contains(error(-kInf, -kInf), "must be finite; found -inf"));
}

TEST(Sampler, FrequenciesAreTheProbabilities) {
  for (std::uint64_t draw = 0; draw < 30; ++draw) {
    Random random(draw);
    SCOPED_TRACE(random.trace());
    auto logits = random.tensor<float, 1>({12}, 2);
    if (random.chance(0.3)) logits(3) = -kInf;
    SamplingOptions options{.seed = draw};
    if (random.chance(0.7)) options.temperature = random.pick<double>({0.3, 1, 2.5});
    if (random.chance(0.5)) options.top_k = random.integer(1, 14);
    if (random.chance(0.5)) options.top_p = random.pick<double>({0.05, 0.5, 0.9, 0.999});
    if (random.chance(0.3)) options.min_p = random.pick<double>({0.01, 0.1, 0.5, 1});
    options.top_k = std::min(options.top_k, logits.size());
    constexpr int kDraws = 20000;
    const auto p = probabilities(options, logits);
    const auto count = counts(options, logits, kDraws);
    for (std::size_t i = 0; i < p.size(); ++i) {
      // Six standard deviations of a binomial count: once in 10^9.
      EXPECT_LE(std::abs(count[i] - kDraws * p[i]), 6 * std::sqrt(kDraws * p[i] * (1 - p[i])))
          << "token " << i << ": " << count[i] << " of probability " << p[i];
    }
  }
}

TEST(Sampler, OneCandidateIsTheLikeliest) {
  Random random(50);
  for (int i = 0; i < 20; ++i) {
    const auto logits = random.tensor<double, 1>({100});
    for (const SamplingOptions& options :
         {SamplingOptions{.top_k = 1}, SamplingOptions{.top_p = 1e-9}, SamplingOptions{.min_p = 1},
          SamplingOptions{.temperature = 1e-300}}) {
      Sampler sampler(options, 100);
      EXPECT_EQ(sampler(logits), likeliest_token(logits));
    }
  }
  // Of equals, the first.
  Sampler first({.top_k = 1}, 3);
  EXPECT_EQ(first(Tensor1<float>({3}, {0, 1, 1})), 1);
  // Of what rounds to the same probability, the likeliest.
  EXPECT_EQ(first(Tensor1<double>({3}, {0, 1e-20, -1})), 1);
}

TEST(Sampler, SeedAndStreamFixTheTokens) {
  const Tensor1<float> logits({10});
  const auto draws = [&](std::uint64_t seed, std::uint32_t stream) {
    Sampler sampler({.seed = seed}, 10, stream);
    std::vector<index_t> tokens(16);
    for (index_t& token : tokens) token = sampler(logits);
    return tokens;
  };
  EXPECT_EQ(draws(1, 0), draws(1, 0));
  EXPECT_NE(draws(1, 0), draws(1, 1));
  EXPECT_NE(draws(1, 0), draws(2, 0));
  EXPECT_NE(draws(1, 0), draws(1 + (std::uint64_t{1} << 32), 0));
  // Computed from the definitions of seed_seq and mt19937_64 in the standard: the same with every
  // library.
  EXPECT_EQ(draws(20170612, 3),
            (std::vector<index_t>{7, 7, 1, 9, 1, 6, 4, 8, 8, 2, 2, 2, 5, 8, 2, 0}));
}

TEST(SamplerErrors, OptionsAndLogits) {
  const auto error = [](const SamplingOptions& options, index_t vocab_size = 4) {
    return error_of<ValueError>([&] { Sampler sampler(options, vocab_size); });
  };
  EXPECT_EQ(error({.temperature = 0}),
            "[Sampler] temperature must be finite and above 0; found 0.");
  EXPECT_TRUE(contains(error({.temperature = kNaN}), "temperature must"));
  EXPECT_TRUE(contains(error({.temperature = kInf}), "temperature must"));
  EXPECT_TRUE(contains(error({.top_k = -1}), "top_k must be at least 0; found -1"));
  EXPECT_TRUE(contains(error({.top_p = 0}), "top_p must lie in (0, 1]"));
  EXPECT_TRUE(contains(error({.top_p = 1.5}), "top_p must lie in (0, 1]"));
  EXPECT_TRUE(contains(error({.top_p = kNaN}), "top_p must lie in (0, 1]"));
  EXPECT_TRUE(contains(error({.min_p = -0.1}), "min_p must lie in [0, 1]; found -0.1"));
  EXPECT_TRUE(contains(error({.min_p = kNaN}), "min_p must lie in [0, 1]"));
  EXPECT_TRUE(contains(error({}, 0), "vocab_size must be at least 1; found 0"));

  // A refused row draws nothing: what follows is as if it had not been there.
  const Tensor1<float> good({4}), bad({4}, {0, kNaN, 0, 0});
  Sampler a({}, 4), b({}, 4);
  EXPECT_THROW(a(bad), ValueError);
  for (int i = 0; i < 10; ++i) EXPECT_EQ(a(good), b(good));
}

}  // namespace
}  // namespace attn
