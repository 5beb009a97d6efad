// likeliest_token and Sampler: which tokens can be drawn, how often, and errors.
#include "attn/generation/sampling.hpp"

#include <cmath>
#include <fstream>
#include <limits>
#include <numeric>
#include <set>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "attn/generation/logits.hpp"

#include "support/error_of.hpp"
#include "support/random.hpp"

namespace attn {
namespace {

using attn_test::contains;
using attn_test::error_of;
using attn_test::Random;

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

/// The number of times that each token occurs in `draws` draws.
template <class T>
std::vector<int> counts(const SamplingOptions& options, const Tensor1<T>& logits, int draws) {
  Sampler sampler(options, logits.size());
  std::vector<int> count(static_cast<std::size_t>(logits.size()));
  for (int i = 0; i < draws; ++i) count.at(static_cast<std::size_t>(sampler(logits))) += 1;
  return count;
}

/// Probabilities by the definitions, in order: top n sigma, temperature, top k, top p, min p,
/// typical p.
template <class T>
std::vector<double> probabilities(const SamplingOptions& options, const Tensor1<T>& logits) {
  const auto n = static_cast<std::size_t>(logits.size());
  std::vector<double> p(n);
  for (std::size_t i = 0; i < n; ++i)
    p[i] = std::exp(static_cast<double>(logits.data()[i]) / options.temperature);
  if (options.top_n_sigma > 0) {
    std::vector<double> finite;
    for (const T x : logits.elements()) {
      if (x != -std::numeric_limits<T>::infinity()) finite.push_back(static_cast<double>(x));
    }
    const double count = static_cast<double>(finite.size());
    const double mean = std::accumulate(finite.begin(), finite.end(), 0.0) / count;
    double squares = 0;
    for (const double x : finite) squares += (x - mean) * (x - mean);
    const double lowest = *std::max_element(finite.begin(), finite.end()) -
                          options.top_n_sigma * std::sqrt(squares / count);
    for (std::size_t i = 0; i < n; ++i) {
      if (static_cast<double>(logits.data()[i]) < lowest) p[i] = 0;
    }
  }
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
  if (options.typical_p < 1) {
    double entropy = 0;
    for (const double x : p) entropy -= x > 0 ? x * std::log(x) : 0;
    std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
      return std::abs(-std::log(p[a]) - entropy) < std::abs(-std::log(p[b]) - entropy);
    });
    reached = 0;
    for (std::size_t i : order) {
      if (reached >= options.typical_p) p[i] = 0;
      reached += p[i];
    }
    normalise();
  }
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

TEST(Sampling, FrequenciesAreTheProbabilities) {
  for (std::uint64_t draw = 0; draw < attn_test::draws(30); ++draw) {
    Random random(draw);
    SCOPED_TRACE(random.trace());
    auto logits = random.tensor<float, 1>({12}, 2);
    if (random.chance(0.3)) logits(3) = -kInf;
    SamplingOptions options{.seed = draw};
    if (random.chance(0.7)) options.temperature = random.pick<double>({0.3, 1, 2.5});
    if (random.chance(0.5)) options.top_k = random.integer(1, 14);
    if (random.chance(0.5)) options.top_p = random.pick<double>({0.05, 0.5, 0.9, 0.999});
    if (random.chance(0.3)) options.min_p = random.pick<double>({0.01, 0.1, 0.5, 1});
    if (random.chance(0.3)) options.typical_p = random.pick<double>({0.2, 0.7, 0.95});
    if (random.chance(0.3)) options.top_n_sigma = random.pick<double>({0.5, 1, 2});
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

/// no_repeat_ngram, then temperature, top k, top p, min p and typical p as in transformers.
TEST(Sampling, KeepsWhatTransformersKeeps) {
  std::ifstream file(ATTN_TEST_DATA_DIR "/sampling/cases.json");
  for (const nlohmann::json& one : nlohmann::json::parse(file)) {
    const auto list = one.at("logits").get<std::vector<double>>();
    Tensor1<double> logits({std::ssize(list)});
    std::copy(list.begin(), list.end(), logits.data());
    const auto ids = one.at("ids").get<std::vector<index_t>>();
    adjust_logits(logits.view(), ids, {.no_repeat_ngram = one.at("no_repeat_ngram")});
    constexpr int kDraws = 20000;
    const auto count = counts({.temperature = one.at("temperature"),
                               .top_k = one.at("top_k"),
                               .top_p = one.at("top_p"),
                               .min_p = one.at("min_p"),
                               .typical_p = one.at("typical_p")},
                              logits, kDraws);
    const auto p = one.at("probabilities").get<std::vector<double>>();
    for (std::size_t i = 0; i < p.size(); ++i) {
      EXPECT_EQ(count[i] > 0, p[i] > 0) << "token " << i;
      EXPECT_LE(std::abs(count[i] - kDraws * p[i]), 6 * std::sqrt(kDraws * p[i] * (1 - p[i])));
    }
  }
}

/// The share of the last token rounds to 0, whose logarithm is infinite.
TEST(Sampling, TypicalTakesSharesThatUnderflow) {
  const double likeliest = std::log(4.0);
  const Tensor1<double> logits({8}, {likeliest, 0, 0, 0, 0, 0, 0, likeliest - 744.4});
  // Probabilities 0.4 and six times 0.1: the entropy 1.75 is nearer to -log(0.1) than to -log(0.4).
  const auto count = counts({.typical_p = 0.55}, logits, 500);
  for (std::size_t i = 0; i < 8; ++i) EXPECT_EQ(count[i] > 0, i >= 1 && i <= 6) << i;
}

TEST(Sampling, XtcRemovesAllButTheLastOfTheTopChoices) {
  // Probabilities 0.5, 0.25, 0.15, 0.1 at temperature 1; the limits ignore the temperature.
  Tensor1<double> logits({4}, {std::log(0.15), std::log(0.5), std::log(0.1), std::log(0.25)});
  SamplingOptions options{.temperature = 2, .xtc_probability = 1, .xtc_threshold = 0.2};
  std::vector<int> count = counts(options, logits, 2000);
  EXPECT_EQ(count[1], 0);
  EXPECT_GT(count[0] * count[2] * count[3], 0);
  options.xtc_threshold = 0.3;  // one token only
  EXPECT_GT(counts(options, logits, 2000)[1], 0);
  options.xtc_threshold = 0.2;
  options.xtc_probability = 0.25;
  const double share =
      std::sqrt(0.5) / (std::sqrt(0.5) + std::sqrt(0.25) + std::sqrt(0.15) + std::sqrt(0.1));
  constexpr int kDraws = 20000;
  const double p = 0.75 * share;
  EXPECT_NEAR(counts(options, logits, kDraws)[1], kDraws * p, 6 * std::sqrt(kDraws * p * (1 - p)));
}

TEST(Sampling, MirostatDrawsTokensOfTheTargetSurprise) {
  Random random(60);
  const auto logits = random.tensor<double, 1>({500}, 2);
  for (const double tau : {2.0, 4.0, 5.5}) {
    Sampler sampler({.mirostat_tau = tau, .mirostat_eta = 0.1}, 500);
    // The surprise over all tokens is at least that over the kept tokens.
    double total = 0, sum = 0;
    for (const double x : logits.elements()) total += std::exp(x);
    constexpr int kDraws = 3000;
    for (int i = 0; i < kDraws; ++i) sum -= std::log2(std::exp(logits(sampler(logits))) / total);
    EXPECT_GT(sum / kDraws, tau - 0.1) << tau;
  }
  // With a limit that does not move, tokens above twice the target are never drawn.
  Sampler fixed({.mirostat_tau = 1.5, .mirostat_eta = 0}, 4);
  const Tensor1<double> four({4}, {std::log(0.5), std::log(0.3), std::log(0.11), std::log(0.09)});
  for (int i = 0; i < 2000; ++i) EXPECT_LT(fixed(four), 2);
}

TEST(SamplingLogits, DryGrowsWithTheRepetition) {
  // 4 followed 1 2 3, and 5 followed 2 3: both continue the end 1 2 3.
  const std::vector<index_t> ids{1, 2, 3, 4, 2, 3, 5, 1, 2, 3};
  Tensor1<float> logits({8});
  adjust_logits(logits.view(), ids, {.dry_multiplier = 2, .dry_base = 3, .dry_allowed_length = 2});
  EXPECT_EQ(logits(4), -2.0f * 3);
  EXPECT_EQ(logits(5), -2.0f);
  for (const index_t other : {0, 1, 2, 3, 6, 7}) EXPECT_EQ(logits(other), 0);
  Tensor1<float> broken({8});
  adjust_logits(broken.view(), ids,
                {.dry_multiplier = 2, .dry_allowed_length = 2, .dry_breakers = {2}});
  for (const float logit : broken.elements()) EXPECT_EQ(logit, 0);
}

/// Compares every end of the text with every earlier place.
TEST(SamplingLogits, ContinuationsAreThoseOfPlainLoops) {
  for (std::uint64_t draw = 0; draw < attn_test::draws(300); ++draw) {
    Random random(draw);
    SCOPED_TRACE(random.trace());
    std::vector<index_t> ids(static_cast<std::size_t>(random.integer(0, 40)));
    for (index_t& id : ids) id = random.integer(0, 2);
    std::vector<index_t> breakers;
    if (random.chance(0.3)) breakers.push_back(2);
    std::multiset<std::pair<index_t, index_t>> expected, found;
    for (std::size_t next = 1; next < ids.size(); ++next) {
      std::size_t n = 0;
      while (n < next && ids[next - 1 - n] == ids[ids.size() - 1 - n] &&
             (breakers.empty() || ids[next - 1 - n] != 2)) {
        ++n;
      }
      if (n > 0) expected.emplace(ids[next], static_cast<index_t>(n));
    }
    detail::for_continuations(ids, breakers, [&](index_t id, index_t n) { found.emplace(id, n); });
    EXPECT_EQ(found, expected);
  }
}

TEST(SamplingLogits, ErrorsOfTheNewOptions) {
  const auto error = [](const LogitOptions& options) {
    Tensor1<float> logits({4});
    return error_of<ValueError>([&] { adjust_logits(logits.view(), {}, options); });
  };
  EXPECT_TRUE(
      contains(error({.dry_multiplier = -1}), "dry_multiplier must be finite and at least 0"));
  EXPECT_TRUE(contains(error({.dry_base = 0.5}), "dry_base must be finite and at least 1"));
  EXPECT_TRUE(contains(error({.dry_allowed_length = 0}), "dry_allowed_length must be at least 1"));
  EXPECT_TRUE(contains(error({.no_repeat_ngram = -1}), "no_repeat_ngram must be at least 0"));
  // Added to a logit of -inf, +inf would give a NaN.
  EXPECT_EQ(error({.bias = {{1, kInf}}}),
            "[adjust_logits] bias must be a number below +inf; found inf.");
  EXPECT_TRUE(
      contains(error({.bias = {{1, kNaN}}}), "bias must be a number below +inf; found nan"));
}

TEST(Sampling, OneCandidateIsTheLikeliest) {
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
  // The first of equal logits.
  Sampler first({.top_k = 1}, 3);
  EXPECT_EQ(first(Tensor1<float>({3}, {0, 1, 1})), 1);
  // The likeliest token among those whose probabilities round to the same value.
  EXPECT_EQ(first(Tensor1<double>({3}, {0, 1e-20, -1})), 1);
}

TEST(Sampling, SeedAndStreamFixTheTokens) {
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
  // Computed from the definitions of seed_seq and mt19937_64 in the standard: equal for every
  // standard library.
  EXPECT_EQ(draws(20170612, 3),
            (std::vector<index_t>{7, 7, 1, 9, 1, 6, 4, 8, 8, 2, 2, 2, 5, 8, 2, 0}));
}

TEST(SamplingErrors, OptionsAndLogits) {
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
  EXPECT_TRUE(contains(error({.top_n_sigma = -1}), "top_n_sigma must be finite and at least 0"));
  EXPECT_TRUE(contains(error({.typical_p = 0}), "typical_p must lie in (0, 1]"));
  EXPECT_TRUE(contains(error({.xtc_probability = 2}), "xtc_probability must lie in [0, 1]"));
  EXPECT_TRUE(contains(error({.xtc_threshold = -1}), "xtc_threshold must lie in [0, 1]"));
  EXPECT_TRUE(contains(error({.mirostat_tau = kInf}), "mirostat_tau must be finite"));
  EXPECT_TRUE(contains(error({.mirostat_eta = -1}), "mirostat_eta must be finite"));
  EXPECT_TRUE(contains(error({}, 0), "vocab_size must be at least 1; found 0"));

  // A refused row draws nothing: later draws are unaffected.
  const Tensor1<float> good({4}), bad({4}, {0, kNaN, 0, 0});
  Sampler a({}, 4), b({}, 4);
  EXPECT_THROW(a(bad), ValueError);
  for (int i = 0; i < 10; ++i) EXPECT_EQ(a(good), b(good));
}

}  // namespace
}  // namespace attn
