// generate: greedy, sampled, forced and constrained tokens of a toy decoder, prompts of several
// lengths, errors.
#include "attn/generation/generate.hpp"

#include <limits>
#include <map>
#include <utility>

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

constexpr index_t kWords = 9;
constexpr float kInfinity = std::numeric_limits<float>::infinity();

/// One prompt, token by token, everything recomputed each time.
Tokens continuation(Tokens history, const GenerationOptions& options, std::uint32_t stream) {
  std::optional<Sampler> sampler;
  if (options.sampling) sampler.emplace(*options.sampling, kWords, stream);
  Tokens tokens;
  const auto add = [&](index_t token) {
    tokens.push_back(token);
    history.push_back(token);
    return std::ranges::count(options.stop_tokens, token) == 0 &&
           std::ssize(tokens) < options.max_new_tokens;
  };
  for (const index_t forced : options.forced_tokens) {
    if (!add(forced)) return tokens;
  }
  while (true) {
    const auto values = toy_logits(history, kWords, 1);
    Tensor1<float> logits({kWords});
    for (index_t i = 0; i < kWords; ++i)
      logits(i) = static_cast<float>(values[static_cast<std::size_t>(i)]);
    if (options.logit_processor) options.logit_processor(logits, history);
    adjust_logits(logits.view(), history, options.logits);
    for (const index_t stop : options.stop_tokens) {
      if (std::ssize(tokens) < options.min_new_tokens) {
        logits(stop) = -kInfinity;
      }
    }
    if (!add(sampler ? (*sampler)(logits) : likeliest_token(logits))) return tokens;
  }
}

TEST(Generate, EveryRowIsItsPromptsContinuation) {
  for (std::uint64_t draw = 0; draw < attn_test::draws(200); ++draw) {
    Random random(draw);
    SCOPED_TRACE(random.trace());
    const index_t batch = random.integer(1, 5), prompt_len = random.integer(1, 6);
    Tensor2<index_t> prompts({batch, prompt_len});
    Tensor1<index_t> lengths({batch});
    for (index_t& token : prompts.elements()) token = random.integer(0, kWords - 1);
    for (index_t& length : lengths.elements()) length = random.integer(1, prompt_len);
    GenerationOptions options{.max_new_tokens = random.integer(1, 12)};
    if (random.chance(0.3)) options.min_new_tokens = random.integer(0, options.max_new_tokens);
    for (int n = 0; n < 2; ++n) {
      if (random.chance(0.5)) options.stop_tokens.push_back(random.integer(0, kWords - 1));
    }
    if (random.chance(0.6))
      options.sampling = SamplingOptions{.top_k = random.integer(0, 5), .seed = draw};
    if (random.chance(0.3)) {
      for (index_t n = random.integer(1, options.max_new_tokens); n > 0; --n)
        options.forced_tokens.push_back(random.integer(0, kWords - 1));
    }
    if (random.chance(0.3)) options.logits = {.repetition_penalty = 1.3, .no_repeat_ngram = 4};
    std::map<Tokens, int> calls;
    if (random.chance(0.5)) {
      options.logit_processor = [&](TensorView1<float> logits, std::span<const index_t> ids) {
        ++calls[{ids.begin(), ids.end()}];
        for (index_t i = 1; i < kWords; ++i) {
          if ((i + ids.back() + std::ssize(ids)) % 3 == 0) logits(i) = -kInfinity;
        }
      };
    }
    if (random.chance(0.6)) {
      options.prompt_lengths = lengths;
      for (index_t b = 0; b < batch; ++b) {  // memory after a prompt's end is not read
        for (index_t i = lengths(b); i < prompt_len; ++i) prompts(b, i) = -1;
      }
    }
    ToyDecoder model(batch, kWords);
    const auto generated = generate(model, prompts, options);
    ASSERT_EQ(std::ssize(generated), batch);
    const std::map<Tokens, int> calls_of_generate = std::exchange(calls, {});
    for (index_t b = 0; b < batch; ++b) {
      const index_t length = options.prompt_lengths ? lengths(b) : prompt_len;
      Tokens prompt;
      for (index_t i = 0; i < length; ++i) prompt.push_back(prompts(b, i));
      EXPECT_EQ(generated[static_cast<std::size_t>(b)],
                continuation(prompt, options, static_cast<std::uint32_t>(b)))
          << "row " << b;
    }
    EXPECT_EQ(calls_of_generate, calls);
  }
}

TEST(Generate, ForcedTokensAndProcessorsChooseByRow) {
  ToyDecoder model(2, kWords);
  // The row of prompt 1 counts up from the forced token, that of prompt 5 down.
  const auto count = [](TensorView1<float> logits, std::span<const index_t> ids) {
    const index_t next = ids.back() + (ids[0] == 1 ? 1 : -1);
    for (index_t i = 0; i < kWords; ++i) logits(i) = i == next ? 0 : -kInfinity;
  };
  EXPECT_EQ(generate(model, Tensor2<index_t>({2, 1}, {1, 5}),
                     {.max_new_tokens = 4,
                      .forced_tokens = {7, 4},
                      .sampling = SamplingOptions{},
                      .logit_processor = count}),
            (std::vector<Tokens>{{7, 4, 5, 6}, {7, 4, 3, 2}}));
  // A forced stop token ends the row, and no logits are read.
  EXPECT_EQ(generate(model, Tensor2<index_t>({2, 1}, {1, 5}),
                     {.max_new_tokens = 4,
                      .min_new_tokens = 3,
                      .stop_tokens = {8},
                      .forced_tokens = {0, 8, 1},
                      .logit_processor = [](auto, auto) { FAIL(); }}),
            (std::vector<Tokens>{{0, 8}, {0, 8}}));
}

TEST(Generate, EndsWhenEveryRowHasStopped) {
  // Makes the first generated token the stop token.
  ToyDecoder probe(1, kWords);
  const Tensor2<index_t> prompt({1, 3}, {1, 2, 3});
  const index_t first = generate(probe, prompt, {.max_new_tokens = 1}).at(0).at(0);
  ToyDecoder model(2, kWords);
  const auto generated = generate(model, Tensor2<index_t>({2, 3}, {1, 2, 3, 1, 2, 3}),
                                  {.max_new_tokens = 100, .stop_tokens = {first}});
  EXPECT_EQ(generated, (std::vector<Tokens>{{first}, {first}}));
  EXPECT_EQ(model.steps, 1);
}

TEST(Generate, PromptsContinueWhatTheModelHasSeen) {
  ToyDecoder in_turns(1, kWords), at_once(1, kWords);
  Tensor2<float> logits({1, kWords});
  in_turns.step(Tensor2<index_t>({1, 2}, {4, 5}), logits);
  EXPECT_EQ(generate(in_turns, Tensor2<index_t>({1, 2}, {6, 7}), {.max_new_tokens = 8}),
            generate(at_once, Tensor2<index_t>({1, 4}, {4, 5, 6, 7}), {.max_new_tokens = 8}));
}

TEST(GenerateErrors, BeforeTheModelIsCalled) {
  ToyDecoder model(2, kWords);
  const Tensor2<index_t> prompts({2, 3});
  const Tensor1<index_t> lengths({2}, {3, 4}), three({3});
  const auto error = [&](const Tensor2<index_t>& given, const GenerationOptions& options) {
    return error_of<std::invalid_argument>([&] { generate(model, given, options); });
  };
  EXPECT_EQ(error(Tensor2<index_t>({3, 3}), {.max_new_tokens = 1}),
            "[generate] prompts must have shape (batch, prompt_len) = (2, 3); found (3, 3).");
  EXPECT_TRUE(contains(error(Tensor2<index_t>({2, 0}), {.max_new_tokens = 1}),
                       "[generate] prompt_len must lie in 1 .. "));
  EXPECT_TRUE(contains(error(prompts, {}), "[generate] max_new_tokens must lie in 1 .. "));
  EXPECT_EQ(error(prompts, {.max_new_tokens = 1, .prompt_lengths = lengths}),
            "[generate] prompt_lengths must lie in 1 .. 3; found 4.");
  EXPECT_TRUE(contains(error(prompts, {.max_new_tokens = 1, .prompt_lengths = three}),
                       "(batch) = (2); found (3)"));
  EXPECT_TRUE(
      contains(error(prompts, {.max_new_tokens = 1, .sampling = SamplingOptions{.top_p = 2}}),
               "top_p must"));
  EXPECT_EQ(error(prompts, {.max_new_tokens = 1, .forced_tokens = {kWords}}),
            "[generate] forced_tokens must lie in 0 .. 8; found 9.");
  EXPECT_EQ(error(prompts, {.max_new_tokens = 1, .forced_tokens = {1, 2}}),
            "[generate] the number of forced_tokens must lie in 0 .. 1; found 2.");
  EXPECT_EQ(model.steps, 0);
}

TEST(GenerateErrors, LogitProcessorsChangeFloats) {
  struct DoubleDecoder {
    using value_type = double;
    index_t batch() const { return 1; }
    index_t vocab_size() const { return kWords; }
    void step(TensorView2<const index_t>, TensorView2<double>) { FAIL(); }
    void reorder(TensorView1<const index_t>) { FAIL(); }
  };
  DoubleDecoder model;
  EXPECT_EQ(error_of<ValueError>([&] {
              generate(model, Tensor2<index_t>({1, 1}),
                       {.max_new_tokens = 1, .logit_processor = [](auto, auto) {}});
            }),
            "[generate] logit_processor must be empty for a session whose logits are not float; "
            "found a function.");
}

}  // namespace
}  // namespace attn
