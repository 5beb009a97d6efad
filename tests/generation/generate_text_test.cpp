// generate_text: the same tokens whole or turn by turn, stop texts, callbacks, penalties, and how
// each answer ends.
#include "attn/generation/generate_text.hpp"

#include <gtest/gtest.h>

#include "support/error_of.hpp"
#include "support/temp_folder.hpp"
#include "support/tiny_llama.hpp"

namespace attn {
namespace {

using attn_test::contains;
using attn_test::error_of;
using Ids = std::vector<index_t>;

const LanguageModel& tiny_model() {
  static const LanguageModel model = [] {
    const attn_test::TempFolder folder;
    return LanguageModel(attn_test::TinyLlama(7).save(folder));
  }();
  return model;
}

GeneratedText answer_to(const Ids& ids, const TextGenerationOptions& options,
                        index_t capacity = 128) {
  GptSession<float> session(tiny_model().gpt(), 1, capacity);
  return generate_text(tiny_model(), session, ids, options);
}

TEST(GenerateText, IsGreedyGenerateWithItsText) {
  const Ids prompt = tiny_model().encode_raw("hello");
  const GeneratedText found = answer_to(prompt, {.max_new_tokens = 20, .log_probabilities = true});
  GptSession<float> session(tiny_model().gpt(), 1, 128);
  const auto expected =
      generate(session, TensorView2<const index_t>(prompt.data(), {1, std::ssize(prompt)}),
               {.max_new_tokens = 20, .stop_token = 261});
  EXPECT_EQ(found.ids, expected[0]);
  EXPECT_EQ(found.text, valid_utf8(tiny_model().tokenizer().decode(found.ids, false)));
  // What it says of its own tokens is what the whole text is scored with.
  Ids whole = prompt;
  whole.insert(whole.end(), found.ids.begin(), found.ids.end());
  const auto scores = score_text(tiny_model(), whole);
  ASSERT_EQ(scores.size(), whole.size() - 1);
  ASSERT_EQ(found.log_probabilities.size(), found.ids.size());
  for (std::size_t i = 0; i < found.ids.size(); ++i) {
    EXPECT_NEAR(found.log_probabilities[i], scores[prompt.size() - 1 + i], 1e-4);
  }
  EXPECT_TRUE(score_text(tiny_model(), Ids{1}).empty());
}

TEST(GenerateText, LaterTurnsComputeOnlyWhatIsNew) {
  GptSession<float> session(tiny_model().gpt(), 1, 128);
  Ids ids = tiny_model().encode_raw("hello");
  const GeneratedText first = generate_text(tiny_model(), session, ids, {.max_new_tokens = 5});
  ids.insert(ids.end(), first.ids.begin(), first.ids.end());
  EXPECT_EQ(session.length(), std::ssize(ids) - 1);
  for (const index_t id : tiny_model().encode_raw(" world")) ids.push_back(id);
  const GeneratedText second = generate_text(tiny_model(), session, ids, {.max_new_tokens = 5});
  EXPECT_EQ(second.ids, answer_to(ids, {.max_new_tokens = 5}).ids);
  session.truncate_to(3);
  EXPECT_EQ(generate_text(tiny_model(), session, ids, {.max_new_tokens = 5}).ids, second.ids);
  EXPECT_TRUE(contains(error_of<ValueError>([&] {
                         generate_text(tiny_model(), session, Ids{1}, {.max_new_tokens = 5});
                       }),
                       "number of ids"));
}

TEST(GenerateText, EndsWhereItIsTold) {
  const Ids prompt = tiny_model().encode_raw("hello");
  const GeneratedText all = answer_to(prompt, {.max_new_tokens = 30});
  ASSERT_GT(all.text.size(), 8u);
  const std::string stop = all.text.substr(4, 3);
  const GeneratedText stopped = answer_to(prompt, {.max_new_tokens = 30, .stop = {stop}});
  EXPECT_EQ(stopped.end, AnswerEnd::stop_text);
  EXPECT_EQ(stopped.text, all.text.substr(0, all.text.find(stop)));

  std::string pieces;
  TextGenerationOptions options{.max_new_tokens = 30};
  options.on_text = [&](std::string_view piece) {
    pieces += piece;
    return pieces.size() < 5;
  };
  const GeneratedText interrupted = answer_to(prompt, options);
  EXPECT_EQ(interrupted.end, AnswerEnd::caller);
  EXPECT_EQ(interrupted.text, pieces);
  EXPECT_LT(pieces.size(), all.text.size());

  const GeneratedText full = answer_to(prompt, {.max_new_tokens = 30}, std::ssize(prompt) + 3);
  EXPECT_EQ(full.end, AnswerEnd::context);
  EXPECT_EQ(full.ids, Ids(all.ids.begin(), all.ids.begin() + 4));
  EXPECT_EQ(answer_to(prompt, {.max_new_tokens = 3}).end, AnswerEnd::length);
  EXPECT_TRUE(contains(error_of<ValueError>([&] { answer_to(prompt, {.max_new_tokens = 3}, 2); }),
                       "lie in 1 .. 2; found 3"));

  options = {.max_new_tokens = 30};
  options.logit_processor = [&](TensorView1<float> logits, std::span<const index_t> ids) {
    if (std::ssize(ids) == std::ssize(prompt) + 2) logits(261) = 1e6f;
  };
  const GeneratedText ended = answer_to(prompt, options);
  EXPECT_EQ(ended.end, AnswerEnd::end_token);
  EXPECT_EQ(ended.ids.size(), 3u);
  EXPECT_EQ(ended.ids.back(), 261);
}

TEST(AdjustLogits, DoesWhatItsOptionsSay) {
  Tensor1<float> logits({4}, {2, -2, 1, 3});
  const Ids ids = {0, 1, 1};
  adjust_logits(logits.view(), ids,
                {.repetition_penalty = 2,
                 .presence_penalty = 0.5,
                 .frequency_penalty = 0.25,
                 .bias = {{2, 4.0f}}});
  EXPECT_EQ(logits(0), 2.0f / 2 - 0.5f - 0.25f);
  EXPECT_EQ(logits(1), -2.0f * 2 - 0.5f - 0.5f);
  EXPECT_EQ(logits(2), 5.0f);
  EXPECT_EQ(logits(3), 3.0f);
  const auto fails = [&](const LogitOptions& options, std::string_view part) {
    EXPECT_TRUE(
        contains(error_of<ValueError>([&] { adjust_logits(logits.view(), ids, options); }), part));
  };
  fails({.repetition_penalty = 0}, "repetition_penalty must be finite and above 0; found 0");
  fails({.presence_penalty = INFINITY}, "presence_penalty must be finite");
  fails({.bias = {{4, 1.0f}}}, "lie in 0 .. 3; found 4");
  EXPECT_EQ(logits(2), 5.0f);
}

}  // namespace
}  // namespace attn
