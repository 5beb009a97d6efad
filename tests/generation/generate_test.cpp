// generate: greedy and sampled tokens of a toy decoder, prompts of several lengths, errors.
#include "attn/generation/generate.hpp"

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

/// One prompt, token by token, everything recomputed each time.
Tokens continuation(Tokens history, const GenerationOptions& options, std::uint32_t stream) {
  std::optional<Sampler> sampler;
  if (options.sampling) sampler.emplace(*options.sampling, kWords, stream);
  Tokens tokens;
  while (std::ssize(tokens) < options.max_new_tokens) {
    const auto values = toy_logits(history, kWords, 1);
    Tensor1<float> logits({kWords});
    for (index_t i = 0; i < kWords; ++i)
      logits(i) = static_cast<float>(values[static_cast<std::size_t>(i)]);
    for (const index_t stop : options.stop_tokens) {
      if (std::ssize(tokens) < options.min_new_tokens) {
        logits(stop) = -std::numeric_limits<float>::infinity();
      }
    }
    tokens.push_back(sampler ? (*sampler)(logits) : likeliest_token(logits));
    history.push_back(tokens.back());
    if (std::ranges::count(options.stop_tokens, tokens.back()) > 0) break;
  }
  return tokens;
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
    if (random.chance(0.6)) {
      options.prompt_lengths = lengths;
      for (index_t b = 0; b < batch; ++b) {  // memory after a prompt's end is not read
        for (index_t i = lengths(b); i < prompt_len; ++i) prompts(b, i) = -1;
      }
    }
    ToyDecoder model(batch, kWords);
    const auto generated = generate(model, prompts, options);
    ASSERT_EQ(std::ssize(generated), batch);
    for (index_t b = 0; b < batch; ++b) {
      const index_t length = options.prompt_lengths ? lengths(b) : prompt_len;
      Tokens prompt;
      for (index_t i = 0; i < length; ++i) prompt.push_back(prompts(b, i));
      EXPECT_EQ(generated[static_cast<std::size_t>(b)],
                continuation(prompt, options, static_cast<std::uint32_t>(b)))
          << "row " << b;
    }
  }
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
  EXPECT_EQ(model.steps, 0);
}

}  // namespace
}  // namespace attn
