// generate_samples: continuations of one prompt, each bit-identical to generate_text().
#include <gtest/gtest.h>

#include "attn/generation/generate_texts.hpp"

#include "support/error_of.hpp"
#include "support/models/generated_text.hpp"
#include "support/models/tiny_model.hpp"

namespace attn {
namespace {

using attn_test::contains;
using attn_test::error_of;
using attn_test::tiny_language_model;

TEST(GenerateSamples, GivesEachContinuationWhatItGetsAlone) {
  const LanguageModel exact = tiny_language_model(),
                      int8 = tiny_language_model(ActivationFormat::int8);
  for (std::uint64_t draw = 0; draw < attn_test::draws(30); ++draw) {
    attn_test::Random random(draw);
    SCOPED_TRACE(random.trace());
    const LanguageModel& model = draw % 2 == 0 ? exact : int8;
    const DType element = random.pick<DType>({DType::F32, DType::BF16, DType::I8});
    AttentionOptions<float> attention;
    if (random.chance(0.2)) attention.mask = sliding_window(random.integer(0, 30), 0);
    std::vector<index_t> ids;
    for (index_t i = random.integer(2, 40); i > 0; --i) ids.push_back(random.integer(0, 20));
    GptSession<float> session(model.gpt(), 1, random.integer(41, 70), attention, element);
    if (random.chance(0.3)) {  // continues what it has processed
      Tensor2<float> logits({1, session.vocab_size()});
      session.step({ids.data(), {1, random.integer(1, std::ssize(ids) - 1)}}, logits);
    }
    const GptSession<float> before = session;
    const std::size_t count = static_cast<std::size_t>(random.integer(1, 6));
    std::vector<std::string> pieces(count), pieces_alone(count);
    std::vector<TextGenerationOptions> options(count);
    for (std::size_t n = 0; n < count; ++n) {
      options[n] = {.max_new_tokens = random.integer(1, 50),
                    .log_probabilities = random.chance(0.7)};
      if (random.chance(0.3)) options[n].logits.repetition_penalty = 1.2;
      if (random.chance(0.8)) {
        options[n].sampling = SamplingOptions{.temperature = 0.8, .seed = draw + n};
      }
      if (random.chance(0.2)) options[n].stop = {"e"};
      if (random.chance(0.2)) options[n].min_new_tokens = 1;
      options[n].on_text = [&pieces, n](std::string_view piece) {
        pieces[n] += piece;
        return pieces[n].size() < 40;
      };
    }
    const std::vector<GeneratedText> found = generate_samples(model, session, ids, options);
    ASSERT_EQ(found.size(), count);
    EXPECT_EQ(session.length(), std::ssize(ids));
    for (std::size_t n = 0; n < count; ++n) {
      GptSession<float> alone = before;
      options[n].on_text = [&](std::string_view piece) {
        pieces_alone[n] += piece;
        return pieces_alone[n].size() < 40;
      };
      attn_test::expect_same(found[n], generate_text(model, alone, ids, options[n]));
    }
    EXPECT_EQ(pieces, pieces_alone);
  }
}

TEST(GenerateSamples, RefusesWhatRowsOfOneSessionCannotDo) {
  const LanguageModel model = tiny_language_model();
  GptSession<float> session(model.gpt(), 1, 20), wide(model.gpt(), 2, 20);
  const std::vector<index_t> ids = {1, 2, 3};
  const auto error = [&](GptSession<float>& one, const TextGenerationOptions& options) {
    const TextGenerationOptions both[] = {{.max_new_tokens = 2}, options};
    return error_of<ValueError>([&] { (void)generate_samples(model, one, ids, both); });
  };
  EXPECT_EQ(error(session, {.max_new_tokens = 2, .keep = 1}),
            "[generate_samples] options must have neither draft nor keep; found keep.");
  EXPECT_EQ(error(session, {.max_new_tokens = 2, .draft = PromptLookup(2)}),
            "[generate_samples] options must have neither draft nor keep; found draft.");
  EXPECT_TRUE(contains(error(session, {}), "max_new_tokens must"));
  EXPECT_TRUE(contains(error(wide, {.max_new_tokens = 2}), "the session's batch must"));
  EXPECT_TRUE(generate_samples(model, session, ids, {}).empty());
  const std::vector<index_t> unknown = {1, 262};
  const TextGenerationOptions one[] = {{.max_new_tokens = 2}};
  EXPECT_EQ(error_of<ValueError>([&] { (void)generate_samples(model, session, unknown, one); }),
            "[generate_samples] every id must lie in 0 .. 261; found 262.");
  const Tensor1<index_t> lengths({1}, {2});
  GptSession<float> of_lengths(model.gpt(), 1, 20, {.mask = key_lengths(lengths)});
  EXPECT_EQ(error(of_lengths, {.max_new_tokens = 2}),
            "[generate_samples] the session's options must hold no tensor with an axis of rows, "
            "queries or keys; found key_lengths.");
  EXPECT_EQ(of_lengths.length(), 0);
  GptSession<float> of_dropout(model.gpt(), 1, 20, {.dropout = {.p = 0.5F}});
  EXPECT_TRUE(
      contains(error(of_dropout, {.max_new_tokens = 2}),
               "[generate_samples] the session's options must have no dropout; found p = "));
  EXPECT_EQ(of_dropout.length(), 0);
  EXPECT_EQ(session.length(), 0);
}

}  // namespace
}  // namespace attn
