// GuidedSession: guidance against loops over the whole history and transformers' numbers, the errors.
#include "attn/generation/guided_session.hpp"

#include <cmath>

#include <gtest/gtest.h>

#include "attn/generation/beam_search.hpp"

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

constexpr index_t kGuidedWords = 11;
constexpr double kMaskedOut = -std::numeric_limits<double>::infinity();

/// log(softmax(logits)).
std::vector<double> log_softmax(std::vector<double> logits) {
  double sum = 0;
  for (const double logit : logits) sum += std::exp(logit);
  for (double& logit : logits) logit -= std::log(sum);
  return logits;
}

/// The logits of one row after two histories.
std::vector<double> guided_logits(const Tokens& history, const Tokens& other_history,
                                  const GuidanceOptions& options) {
  const auto c = log_softmax(toy_logits(history, kGuidedWords, 1));
  const auto u = log_softmax(toy_logits(other_history, kGuidedWords, 2));
  const double largest = *std::ranges::max_element(c);
  std::vector<double> guided(c.size());
  for (std::size_t i = 0; i < c.size(); ++i) {
    const bool is_plausible = std::exp(c[i] - largest) >= options.plausibility;
    guided[i] = u[i] == kMaskedOut ? c[i] : u[i] + options.scale * (c[i] - u[i]);
    if (c[i] == kMaskedOut || !is_plausible) guided[i] = kMaskedOut;
  }
  return guided;
}

Tokens tokens_of(const Tensor2<index_t>& prompts, index_t row) {
  Tokens tokens;
  for (index_t i = 0; i < prompts.extent(1); ++i) tokens.push_back(prompts(row, i));
  return tokens;
}

TEST(GuidedSession, StepsAndGeneratesAsLoopsOverBothHistories) {
  for (std::uint64_t draw = 0; draw < attn_test::draws(100); ++draw) {
    Random random(draw);
    SCOPED_TRACE(random.trace());
    const index_t batch = random.integer(1, 3);
    Tensor2<index_t> prompts({batch, random.integer(1, 5)}),
        other_prompts({batch, random.integer(1, 5)});
    for (index_t& token : prompts.elements()) token = random.integer(0, kGuidedWords - 1);
    for (index_t& token : other_prompts.elements()) token = random.integer(0, kGuidedWords - 1);
    GuidanceOptions options{.scale = random.chance(0.2) ? 0 : 3 * random.uniform()};
    if (random.chance(0.5)) options.plausibility = 0.3 * random.uniform();
    const bool has_own_prompts = random.chance(0.5);
    if (has_own_prompts) options.other_prompts = other_prompts;

    ToyDecoder session(batch, kGuidedWords, 1), other(batch, kGuidedWords, 2);
    GuidedSession guided(session, other, options);
    Tensor2<float> logits({batch, kGuidedWords});
    std::vector<Tokens> histories, other_histories;
    for (index_t b = 0; b < batch; ++b) {
      histories.push_back(tokens_of(prompts, b));
      other_histories.push_back(has_own_prompts ? tokens_of(other_prompts, b) : histories.back());
    }
    Tensor2<index_t> tokens = prompts;
    for (int n = 0; n < 4; ++n) {
      guided.step(tokens, logits);
      tokens = Tensor2<index_t>({batch, 1});
      for (index_t b = 0; b < batch; ++b) {
        const auto row = static_cast<std::size_t>(b);
        const auto expected = guided_logits(histories[row], other_histories[row], options);
        for (index_t i = 0; i < kGuidedWords; ++i) {
          const double value = expected[static_cast<std::size_t>(i)];
          if (value == kMaskedOut) {
            EXPECT_EQ(static_cast<double>(logits(b, i)), kMaskedOut) << i;
          } else {
            // Two log-probabilities below 2^4, each of an error of at most two units of float,
            // 2^-19, times at most 2 and 3; the result is rounded once.
            EXPECT_NEAR(static_cast<double>(logits(b, i)), value, 6 * 0x1p-19) << i;
          }
        }
        tokens(b, 0) = likeliest_token(logits.view().select(0, b));
        histories[row].push_back(tokens(b, 0));
        other_histories[row].push_back(tokens(b, 0));
      }
    }

    ToyDecoder again(batch, kGuidedWords, 1), other_again(batch, kGuidedWords, 2);
    GuidedSession generating(again, other_again, options);
    const auto generated = generate(generating, prompts, {.max_new_tokens = 4});
    for (index_t b = 0; b < batch; ++b) {
      const Tokens& history = histories[static_cast<std::size_t>(b)];
      EXPECT_EQ(generated[static_cast<std::size_t>(b)], Tokens(history.end() - 4, history.end()));
    }
  }
}

TEST(GuidedSession, ScaleOneIsThePlainSession) {
  const Tensor2<index_t> prompts({2, 1}, {3, 8});
  ToyDecoder plain(2, kGuidedWords), session(2, kGuidedWords), other(2, kGuidedWords, 2);
  GuidedSession guided(session, other, {});
  EXPECT_EQ(generate(guided, prompts, {.max_new_tokens = 6}),
            generate(plain, prompts, {.max_new_tokens = 6}));
}

TEST(GuidedSession, ReordersBothSessions) {
  // Beams reorder: with a scale of 1 they are those of the plain session, if the other follows.
  const Tensor2<index_t> prompts({1, 1}, {5});
  ToyDecoder plain(3, kGuidedWords), session(3, kGuidedWords), other(3, kGuidedWords);
  GuidedSession guided(session, other, {});
  const BeamSearchOptions options{.num_beams = 3, .max_new_tokens = 5};
  const auto expected = beam_search(plain, prompts, options);
  const auto found = beam_search(guided, prompts, options);
  EXPECT_EQ(found[0][0].tokens, expected[0][0].tokens);
  EXPECT_EQ(session.histories, plain.histories);
  EXPECT_EQ(other.histories, session.histories);
}

/// Gives the same logits at each step, and has room for a few tokens.
struct FixedDecoder {
  using value_type = double;
  std::vector<double> row;
  index_t free = 100;
  index_t batch() const { return 1; }
  index_t room() const { return free; }
  index_t vocab_size() const { return std::ssize(row); }
  void step(TensorView2<const index_t> tokens, TensorView2<double> logits) {
    free -= tokens.extent(1);
    for (index_t i = 0; i < vocab_size(); ++i) logits(0, i) = row[static_cast<std::size_t>(i)];
  }
  void reorder(TensorView1<const index_t>) {}
};

// By UnbatchedClassifierFreeGuidanceLogitsProcessor of transformers 5.24, scale 1.7, in double.
TEST(GuidedSession, HasTheNumbersOfTransformers) {
  FixedDecoder session{{0.5, -1.25, 2.0, 0.0, 1.5, -0.75}},
      other{{1.0, 0.25, 0.5, -2.0, 1.75, 0.0}};
  GuidedSession guided(session, other, {.scale = 1.7});
  Tensor2<double> logits({1, 6});
  guided.step(Tensor2<index_t>({1, 1}, {3}), logits);
  const double expected[] = {-2.7146407679775191, -5.1646407679775193, 0.18535923202248039,
                             -1.46464076797752,   -1.5396407679775193, -4.1396407679775198};
  for (index_t i = 0; i < 6; ++i) EXPECT_NEAR(logits(0, i), expected[i], 1e-14);
}

TEST(GuidedSession, StepsBothSessionsOrNeither) {
  FixedDecoder session{{1, 2}, 9}, other{{2, 1}, 5};
  const Tensor2<index_t> three({1, 3}), six({1, 6}), seven({1, 7});
  Tensor2<double> logits({1, 2});
  GuidedSession guided(session, other, {.other_prompts = six});
  EXPECT_EQ(guided.room(), 9);
  EXPECT_EQ(error_of<ValueError>([&] { guided.step(three, logits); }),
            "[GuidedSession::step] other must have room for 6 tokens; found room for 5.");
  EXPECT_EQ(session.free, 9);
  other.free = 8;
  guided.step(three, logits);
  EXPECT_EQ(guided.room(), 2);
  EXPECT_THROW(guided.step(seven, logits), ValueError);
  EXPECT_EQ(session.free, 6);
  EXPECT_EQ(other.free, 2);
}

TEST(GuidedSession, ErrorsNameTheArgument) {
  ToyDecoder session(2, kGuidedWords), other(2, kGuidedWords), narrow(2, 3),
      single(1, kGuidedWords);
  const auto shape_error = [&](ToyDecoder& second, const GuidanceOptions& options) {
    return error_of<ShapeError>([&] { GuidedSession(session, second, options); });
  };
  const auto error = [&](ToyDecoder& second, const GuidanceOptions& options) {
    return error_of<ValueError>([&] { GuidedSession(session, second, options); });
  };
  EXPECT_TRUE(contains(shape_error(narrow, {}), "[GuidedSession] other"));
  EXPECT_TRUE(contains(shape_error(single, {}), "[GuidedSession] other"));
  EXPECT_TRUE(contains(error(other, {.scale = -1}), "[GuidedSession] scale must be finite and at"));
  EXPECT_TRUE(contains(error(other, {.plausibility = 1.5}), "plausibility must lie in [0, 1]"));
  const Tensor2<index_t> prompts({1, 4});
  EXPECT_TRUE(contains(shape_error(other, {.other_prompts = prompts}), "other_prompts"));
  const Tensor2<index_t> empty({2, 0});
  EXPECT_TRUE(contains(error(other, {.other_prompts = empty}), "length of other_prompts must lie"));
  EXPECT_EQ(error(session, {}), "[GuidedSession] other must be another session; found the same.");
}

}  // namespace
}  // namespace attn
