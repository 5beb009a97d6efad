// beam_search against all sequences with a wide beam, against a plain search with a narrow one.
#include "attn/generation/beam_search.hpp"

#include <algorithm>
#include <cmath>

#include <gtest/gtest.h>

#include "support/error_of.hpp"
#include "support/models/toy_decoder.hpp"

namespace attn {
namespace {

using attn_test::contains;
using attn_test::error_of;
using attn_test::Random;
using attn_test::Tokens;
using attn_test::toy_logits;
using attn_test::ToyDecoder;

/// Log-probabilities of the toy model after `history`, whose logits the processor may change.
std::vector<double> log_probabilities(const Tokens& history, index_t vocab_size, double scale,
                                      const LogitProcessor& processor) {
  std::vector<double> x = toy_logits(history, vocab_size, scale);
  if (processor) {
    Tensor1<float> logits({vocab_size});
    std::transform(x.begin(), x.end(), logits.data(), [](double y) { return float(y); });
    processor(logits, history);
    x.assign(logits.data(), logits.data() + vocab_size);
  }
  double total = 0;
  for (double value : x) total += std::exp(value);
  for (double& value : x) value -= std::log(total);
  return x;
}

struct Task {
  Tokens prompt;
  index_t vocab_size;
  double scale;
  BeamSearchOptions options;

  Hypothesis hypothesis(const Tokens& tokens, double log_probability) const {
    const double penalty =
        std::pow((5.0 + static_cast<double>(tokens.size())) / 6, options.length_penalty);
    return {tokens, log_probability, log_probability / penalty};
  }
  bool is_finished(const Tokens& tokens) const {
    return std::ssize(tokens) == options.max_new_tokens ||
           (!tokens.empty() && std::ranges::count(options.stop_tokens, tokens.back()) > 0);
  }
  /// All continuations by one token.
  std::vector<Hypothesis> continued(const Hypothesis& from) const {
    Tokens history = prompt;
    history.insert(history.end(), from.tokens.begin(), from.tokens.end());
    const auto p = log_probabilities(history, vocab_size, scale, options.logit_processor);
    std::vector<Hypothesis> result;
    for (index_t token = 0; token < vocab_size; ++token) {
      const double added = p[static_cast<std::size_t>(token)];
      if (std::isinf(added)) continue;
      Tokens tokens = from.tokens;
      tokens.push_back(token);
      result.push_back(hypothesis(tokens, from.log_probability + added));
    }
    return result;
  }
};

void keep_best(std::vector<Hypothesis>& all, index_t n, double Hypothesis::*by) {
  std::stable_sort(all.begin(), all.end(),
                   [&](const Hypothesis& a, const Hypothesis& b) { return a.*by > b.*by; });
  if (std::ssize(all) > n) all.resize(static_cast<std::size_t>(n));
}

/// All finished sequences, by score.
std::vector<Hypothesis> all_finished(const Task& task) {
  std::vector<Hypothesis> open = {task.hypothesis({}, 0)}, finished;
  while (!open.empty()) {
    const Hypothesis from = open.back();
    open.pop_back();
    for (const Hypothesis& h : task.continued(from))
      (task.is_finished(h.tokens) ? finished : open).push_back(h);
  }
  keep_best(finished, task.options.num_beams, &Hypothesis::score);
  return finished;
}

/// A beam search up to the maximum length, without early end.
std::vector<Hypothesis> plain_search(const Task& task) {
  const index_t beams = task.options.num_beams;
  std::vector<Hypothesis> live = {task.hypothesis({}, 0)}, finished;
  while (!live.empty()) {
    std::vector<Hypothesis> candidates;
    for (const Hypothesis& from : live) {
      const auto more = task.continued(from);
      candidates.insert(candidates.end(), more.begin(), more.end());
    }
    keep_best(candidates, 2 * beams, &Hypothesis::log_probability);
    live.clear();
    for (const Hypothesis& h : candidates) {
      const bool stops = std::ranges::count(task.options.stop_tokens, h.tokens.back()) > 0;
      if (stops) finished.push_back(h);
      if (!stops && std::ssize(live) < beams) live.push_back(h);
    }
    if (!live.empty() && task.is_finished(live.front().tokens)) {
      finished.insert(finished.end(), live.begin(), live.end());
      live.clear();
    }
  }
  keep_best(finished, beams, &Hypothesis::score);
  return finished;
}

void expect_same(const std::vector<Hypothesis>& got, const std::vector<Hypothesis>& expected) {
  ASSERT_EQ(got.size(), expected.size());
  for (std::size_t i = 0; i < got.size(); ++i) {
    EXPECT_EQ(got[i].tokens, expected[i].tokens) << "hypothesis " << i;
    // Log-probabilities are sums of a few floats.
    EXPECT_NEAR(got[i].log_probability, expected[i].log_probability, 1e-5);
    EXPECT_NEAR(got[i].score, expected[i].score, 1e-5);
  }
}

/// Searches batches of random prompts and compares each prompt with reference(task).
template <class Reference>
void compare(Random& random, index_t vocab_size, BeamSearchOptions options, Reference reference) {
  if (random.chance(0.3)) {
    options.logit_processor = [](TensorView1<float> logits, std::span<const index_t> ids) {
      logits(0) += 1;
      for (index_t i = 1; i < logits.extent(0); ++i) {
        if ((i + ids.back() + std::ssize(ids)) % 3 == 0) logits(i) = -INFINITY;
      }
    };
  }
  const index_t batch = random.integer(1, 3), prompt_len = random.integer(1, 3);
  const double scale = random.pick<double>({0.5, 1, 3});
  Tensor2<index_t> prompts({batch, prompt_len});
  for (index_t& token : prompts.elements()) token = random.integer(0, vocab_size - 1);
  ToyDecoder model(batch * options.num_beams, vocab_size, scale);
  const auto found = beam_search(model, prompts, options);
  ASSERT_EQ(std::ssize(found), batch);
  for (index_t b = 0; b < batch; ++b) {
    Task task{.prompt = {}, .vocab_size = vocab_size, .scale = scale, .options = options};
    for (index_t i = 0; i < prompt_len; ++i) task.prompt.push_back(prompts(b, i));
    SCOPED_TRACE("prompt " + std::to_string(b));
    expect_same(found[static_cast<std::size_t>(b)], reference(task));
  }
}

TEST(BeamSearch, AWideBeamFindsTheBestOfAllSequences) {
  for (std::uint64_t draw = 0; draw < attn_test::draws(60); ++draw) {
    Random random(draw);
    SCOPED_TRACE(random.trace());
    BeamSearchOptions options{.num_beams = 81, .max_new_tokens = random.integer(1, 5)};
    options.length_penalty = random.pick<double>({0, 0.6, 1, 2});
    if (random.chance(0.8)) options.stop_tokens = {random.integer(0, 2)};
    compare(random, 3, options, all_finished);
  }
}

TEST(BeamSearch, ANarrowBeamIsAPlainSearch) {
  for (std::uint64_t draw = 0; draw < attn_test::draws(200); ++draw) {
    Random random(1000 + draw);
    SCOPED_TRACE(random.trace());
    BeamSearchOptions options{.num_beams = random.integer(1, 6),
                              .max_new_tokens = random.integer(1, 12)};
    options.length_penalty = random.pick<double>({0, 0.6, 1, 2});
    if (random.chance(0.8)) options.stop_tokens = {random.integer(0, 4)};
    compare(random, random.integer(5, 12), options, plain_search);
  }
}

TEST(BeamSearch, OneBeamWithoutStopIsGreedy) {
  const Tensor2<index_t> prompts({2, 2}, {1, 2, 3, 4});
  ToyDecoder a(2, 10), b(2, 10);
  const auto greedy = generate(a, prompts, {.max_new_tokens = 20});
  const auto beam = beam_search(b, prompts, {.num_beams = 1, .max_new_tokens = 20});
  for (std::size_t i = 0; i < 2; ++i) EXPECT_EQ(beam.at(i).at(0).tokens, greedy.at(i));
}

/// A bigram table: the likelier first token has no likely continuation. Token 0 stops.
struct Bigrams {
  using value_type = double;
  static constexpr double kTable[4][4] = {{0.97, 0.01, 0.01, 0.01},
                                          {0.4, 0.2, 0.2, 0.2},
                                          {0.9, 0.05, 0.03, 0.02},
                                          {0.05, 0.5, 0.4, 0.05}};
  index_t rows;
  int steps = 0;

  index_t batch() const { return rows; }
  index_t vocab_size() const { return 4; }
  void step(TensorView2<const index_t> tokens, TensorView2<double> logits) {
    ++steps;
    for (index_t b = 0; b < rows; ++b) {
      const index_t last = tokens(b, tokens.extent(1) - 1);
      for (index_t i = 0; i < 4; ++i) logits(b, i) = std::log(kTable[last][i]);
    }
  }
  void reorder(TensorView1<const index_t>) {}
};

TEST(BeamSearch, SeesBeyondTheLikeliestFirstToken) {
  const Tensor2<index_t> prompts({1, 1}, {3});
  Bigrams greedy{1}, model{2};
  EXPECT_EQ(generate(greedy, prompts, {.max_new_tokens = 50, .stop_tokens = {0}}).at(0),
            (Tokens{1, 0}));
  const auto found =
      beam_search(model, prompts,
                  {.num_beams = 2, .max_new_tokens = 50, .stop_tokens = {0}, .length_penalty = 0});
  EXPECT_EQ(found.at(0).at(0).tokens, (Tokens{2, 0}));
  EXPECT_NEAR(found.at(0).at(0).log_probability, std::log(0.4 * 0.9), 1e-12);
  EXPECT_EQ(found.at(0).at(1).tokens, (Tokens{1, 0}));
  // 0.5 * 0.2, of the likeliest unfinished sequence, is too small to win.
  EXPECT_EQ(model.steps, 2);
}

TEST(BeamSearchErrors, LogitProcessorsChangeFloats) {
  Bigrams model{2};
  EXPECT_EQ(error_of<ValueError>([&] {
              beam_search(
                  model, Tensor2<index_t>({1, 1}),
                  {.num_beams = 2, .max_new_tokens = 1, .logit_processor = [](auto, auto) {}});
            }),
            "[beam_search] logit_processor must be empty for a session whose logits are not float; "
            "found a function.");
}

TEST(BeamSearchErrors, BeforeTheModelIsCalled) {
  ToyDecoder model(4, 9);
  const Tensor2<index_t> prompts({2, 3});
  const auto error = [&](const Tensor2<index_t>& given, const BeamSearchOptions& options) {
    return error_of<ValueError>([&] { beam_search(model, given, options); });
  };
  EXPECT_EQ(error(prompts, {.num_beams = 3, .max_new_tokens = 1}),
            "[beam_search] the model's batch must be batch * num_beams = 6; found 4.");
  EXPECT_TRUE(contains(error(prompts, {.num_beams = 0, .max_new_tokens = 1}),
                       "num_beams must lie in 1 .. "));
  EXPECT_TRUE(contains(error(prompts, {.num_beams = 2}), "max_new_tokens must lie in 1 .. "));
  EXPECT_TRUE(contains(error(Tensor2<index_t>({2, 0}), {.num_beams = 2, .max_new_tokens = 1}),
                       "prompt_len must lie"));
  EXPECT_TRUE(contains(error(prompts, {.num_beams = 2, .max_new_tokens = 1, .length_penalty = -1}),
                       "length_penalty must be finite and at least 0; found -1"));
  EXPECT_EQ(model.steps, 0);
}

TEST(BeamSearchErrors, NotANumber) {
  struct Broken : ToyDecoder {
    using ToyDecoder::ToyDecoder;
    void step(TensorView2<const index_t>, TensorView2<float> logits) {
      logits(1, 2) = std::nanf("");
    }
  } model(2, 9);
  EXPECT_EQ(
      error_of<ValueError>([&] {
        beam_search(model, Tensor2<index_t>({1, 1}), {.num_beams = 2, .max_new_tokens = 3});
      }),
      "[beam_search] the model's logits of beam 1 must be finite or -inf; found NaN or +inf.");
}

TEST(BeamSearchErrors, NoTokenIsLeft) {
  struct DeadEnd : ToyDecoder {
    using ToyDecoder::ToyDecoder;
    void step(TensorView2<const index_t>, TensorView2<float> logits) {
      const float least = -std::numeric_limits<float>::infinity();
      for (index_t b = 0; b < logits.extent(0); ++b) {
        for (index_t i = 0; i < logits.extent(1); ++i) logits(b, i) = steps < good ? 0 : least;
      }
      ++steps;
    }
    int good = 0;
  };
  for (const int good : {0, 2}) {
    DeadEnd model(2, 9);
    model.good = good;
    EXPECT_EQ(error_of<ValueError>([&] {
                beam_search(model, Tensor2<index_t>({1, 1}), {.num_beams = 2, .max_new_tokens = 3});
              }),
              "[beam_search] the model's logits of live hypotheses must leave at least one token; "
              "found -inf everywhere.");
  }
}

TEST(BeamSearchErrors, NumbersFarAway) {
  constexpr index_t most = std::numeric_limits<index_t>::max();
  ToyDecoder model(4, 9);
  for (const index_t beams : {most, most / 2, most / 3}) {
    EXPECT_TRUE(contains(
        error_of<ValueError>([&] {
          beam_search(model, Tensor2<index_t>({2, 3}), {.num_beams = beams, .max_new_tokens = 1});
        }),
        "[beam_search] num_beams must lie in 1 .. 2305843009213693951"));
  }
}

}  // namespace
}  // namespace attn
