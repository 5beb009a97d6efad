// generate_text: same tokens in one call or turn by turn, stop texts, callbacks, penalties, and the
// reason why each answer ends.
#include "attn/generation/generate_text.hpp"

#include <gtest/gtest.h>

#include "support/error_of.hpp"
#include "support/models/generated_text.hpp"
#include "support/models/tiny_model.hpp"

namespace attn {
namespace {

using attn_test::contains;
using attn_test::error_of;
using Ids = std::vector<index_t>;

const LanguageModel& tiny_model() {
  static const LanguageModel model = attn_test::tiny_language_model();
  return model;
}

GeneratedText answer_to(const Ids& ids, const TextGenerationOptions& options,
                        index_t capacity = 128, const LanguageModel& model = tiny_model()) {
  GptSession<float> session(model.gpt(), 1, capacity);
  return generate_text(model, session, ids, options);
}

TEST(GenerateText, EndTokensWaitForMinNewTokens) {
  const Ids prompt = tiny_model().encode_raw("hello");
  const std::vector<index_t>& ends = tiny_model().end_tokens();
  TextGenerationOptions options{.max_new_tokens = 40};
  for (const index_t end : ends) options.logits.bias.emplace_back(end, 1000.0f);
  EXPECT_EQ(answer_to(prompt, options).ids.size(), 1u);
  options.min_new_tokens = 7;
  const GeneratedText found = answer_to(prompt, options);
  EXPECT_EQ(found.ids.size(), 8u);
  EXPECT_EQ(found.end, AnswerEnd::end_token);
  for (const index_t wrong : {-3, 41}) {
    options.min_new_tokens = wrong;
    EXPECT_EQ(
        error_of<ValueError>([&] { answer_to(prompt, options); }),
        "[generate_text] min_new_tokens must lie in 0 .. 40; found " + std::to_string(wrong) + ".");
  }
}

TEST(GenerateText, IsGreedyGenerateWithItsText) {
  const Ids prompt = tiny_model().encode_raw("hello");
  const GeneratedText found = answer_to(prompt, {.max_new_tokens = 20, .log_probabilities = true});
  GptSession<float> session(tiny_model().gpt(), 1, 128);
  const auto expected =
      generate(session, TensorView2<const index_t>(prompt.data(), {1, std::ssize(prompt)}),
               {.max_new_tokens = 20, .stop_tokens = {261}});
  EXPECT_EQ(found.ids, expected[0]);
  EXPECT_EQ(found.text, valid_utf8(tiny_model().tokenizer().decode(found.ids, false)));
  // The reported log-probabilities equal those of scoring the whole text.
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
  std::size_t at = 4;
  while ((static_cast<unsigned char>(all.text[at]) & 0xC0) == 0x80) ++at;
  const std::string_view behind = std::string_view(all.text).substr(at);
  const std::string stop(behind.substr(0, first_char(behind).size));
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
  // The model's 128 positions also end an answer in a session with more room.
  const GeneratedText whole = answer_to(prompt, {.max_new_tokens = 200}, 4096);
  EXPECT_EQ(whole.end, AnswerEnd::context);
  EXPECT_EQ(std::ssize(whole.context), 129);
  for (const std::optional<index_t> kept : {std::optional<index_t>(), std::optional<index_t>(3)}) {
    for (const bool drafts : {false, true}) {
      options = {.max_new_tokens = 200, .log_probabilities = true, .keep = kept};
      if (drafts) options.draft = PromptLookup(2);
      const GeneratedText found = answer_to(prompt, options, 4096);
      options.draft = {};
      attn_test::expect_same(found, answer_to(prompt, options, 128));
    }
  }
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

TEST(GenerateText, AFullContextGoesOnAsAFreshSessionWould) {
  const Ids prompt = tiny_model().encode_raw("hello world");
  const index_t capacity = 20, keep = 3;
  const GeneratedText found =
      answer_to(prompt, {.max_new_tokens = 60, .log_probabilities = true, .keep = keep}, capacity);
  ASSERT_EQ(found.end, AnswerEnd::length);
  // Expected tokens: a fresh session for each answer, run to its end.
  Ids all = prompt, ids;
  std::vector<double> log_probabilities;
  while (std::ssize(ids) < 60) {
    if (std::ssize(all) > capacity) {
      const std::ptrdiff_t newest = (std::ssize(all) - keep) / 2;
      Ids less(all.begin(), all.begin() + keep);
      less.insert(less.end(), all.end() - newest, all.end());
      all = less;
    }
    const index_t left = std::min(60 - std::ssize(ids), capacity + 1 - std::ssize(all));
    const GeneratedText part =
        answer_to(all, {.max_new_tokens = left, .log_probabilities = true}, capacity);
    for (const auto& [from, to] : {std::pair{&part.ids, &all}, {&part.ids, &ids}})
      to->insert(to->end(), from->begin(), from->end());
    log_probabilities.insert(log_probabilities.end(), part.log_probabilities.begin(),
                             part.log_probabilities.end());
  }
  EXPECT_EQ(found.ids, ids);
  EXPECT_EQ(found.log_probabilities, log_probabilities);
  EXPECT_EQ(found.context, all);
  EXPECT_LE(std::ssize(found.context), capacity + 1);
  // A prompt that is too long is shortened, too; `keep` must leave room.
  const Ids text(50, 'a');
  EXPECT_EQ(answer_to(text, {.max_new_tokens = 4, .keep = 0}, capacity).ids,
            answer_to(Ids(12, 'a'), {.max_new_tokens = 4}, capacity).ids);
  EXPECT_EQ(shortened_context({0, 1, 2, 3, 4, 5, 6, 7, 8, 9}, 8, 2), (Ids{0, 1, 6, 7, 8, 9}));
  EXPECT_TRUE(contains(error_of<ValueError>([&] {
                         answer_to(prompt, {.max_new_tokens = 3, .keep = capacity}, capacity);
                       }),
                       "keep must lie in 0 .. 19; found 20"));
}

TEST(GenerateText, SpeculationChangesNoBit) {
  const LanguageModel small = attn_test::tiny_language_model(ActivationFormat::exact, 8),
                      int8 = attn_test::tiny_language_model(ActivationFormat::int8);
  for (std::uint64_t draw = 0; draw < attn_test::draws(40); ++draw) {
    attn_test::Random random(draw);
    const LanguageModel& model = draw % 2 == 0 ? tiny_model() : int8;
    SCOPED_TRACE(random.trace());
    Ids prompt;
    for (index_t i = random.integer(1, 40); i > 0; --i) prompt.push_back(random.integer(0, 20));
    TextGenerationOptions options{.max_new_tokens = random.integer(1, 70),
                                  .log_probabilities = true};
    if (random.chance(0.3)) options.logits.repetition_penalty = 1.2;
    if (random.chance(0.3)) options.sampling = SamplingOptions{.temperature = 0.4, .seed = draw};
    if (random.chance(0.5)) options.keep = 2;
    if (random.chance(0.2)) options.stop = {"e"};
    const index_t capacity = random.integer(41, 100);
    GptSession<float> session(model.gpt(), 1, capacity), draft(small.gpt(), 1, capacity),
        same(model.gpt(), 1, capacity);
    const GeneratedText plain = answer_to(prompt, options, capacity, model);
    EXPECT_EQ(plain.drafted, 0);
    DraftModel<float> by_other(draft), by_itself(same);
    const auto oracle = [&](std::span<const index_t> ids, index_t most) {
      // A draft that is right half of the time.
      Ids guesses;
      for (index_t i = std::ssize(ids) - std::ssize(prompt); std::ssize(guesses) < most; ++i)
        guesses.push_back(i < std::ssize(plain.ids) && random.chance(0.7)
                              ? plain.ids[static_cast<std::size_t>(i)]
                              : random.integer(0, 261));
      return guesses;
    };
    for (const Draft& one :
         {Draft(PromptLookup(3)), Draft(std::ref(by_other)), Draft(std::ref(by_itself)),
          options.keep ? Draft(PromptLookup(1)) : Draft(oracle)}) {
      options.draft = one;
      session.clear();
      const GeneratedText found = generate_text(model, session, prompt, options);
      attn_test::expect_same(found, plain);
      EXPECT_EQ(session.length(), std::ssize(found.context) - 1);
      EXPECT_LE(found.accepted, found.drafted);
    }
    options.draft = std::ref(by_itself);
    if (!options.keep && !options.sampling && !options.logits.changes() && plain.ids.size() > 4) {
      session.clear();
      const GeneratedText found = generate_text(model, session, prompt, options);
      EXPECT_GT(found.drafted, 0);
    }
  }
}

TEST(GenerateText, ADraftIsTakenBackWhateverIsThrown) {
  const Ids prompt = tiny_model().encode_raw("hello");
  const GeneratedText plain = answer_to(prompt, {.max_new_tokens = 30});
  GptSession<float> session(tiny_model().gpt(), 1, 128);
  TextGenerationOptions options{.max_new_tokens = 30};
  options.draft = [](std::span<const index_t>, index_t most) {
    return Ids(static_cast<std::size_t>(most), 'z');
  };
  options.logit_processor = [&](TensorView1<float>, std::span<const index_t> ids) {
    if (std::ssize(ids) == std::ssize(prompt) + 10) throw std::runtime_error("enough");
  };
  EXPECT_THROW(generate_text(tiny_model(), session, prompt, options), std::runtime_error);
  EXPECT_EQ(session.length(), std::ssize(prompt) + 10);
  options.draft = [](std::span<const index_t>, index_t most) {
    return Ids(static_cast<std::size_t>(most) + 1, 'z');
  };
  options.logit_processor = {};
  session.clear();
  EXPECT_TRUE(
      contains(error_of<ValueError>([&] { generate_text(tiny_model(), session, prompt, options); }),
               "the number of drafted tokens"));
  EXPECT_TRUE(contains(error_of<ValueError>([] { PromptLookup(0); }), "max_ngram"));
  EXPECT_TRUE(contains(error_of<ValueError>([&] { DraftModel<float> late(session); }), "length"));
}

TEST(PromptLookup, FindsWhatFollowedTheLongestOfTheLastTokens) {
  const Ids ids = {1, 2, 3, 4, 9, 2, 3, 5, 1, 2, 3};
  EXPECT_EQ(PromptLookup(3)(ids, 2), (Ids{4, 9}));
  EXPECT_EQ(PromptLookup(2)(ids, 9), (Ids{5, 1, 2, 3}));
  EXPECT_EQ(PromptLookup(2)(ids, 1), (Ids{5}));
  EXPECT_EQ(PromptLookup(3)(Ids{1, 2, 3}, 4), Ids{});
  EXPECT_EQ(PromptLookup(3)(Ids{7, 7}, 4), (Ids{7}));
  EXPECT_EQ(PromptLookup(3)(Ids{}, 4), Ids{});
}

TEST(ScoreText, BeginsWhereItIsAskedTo) {
  Ids ids;
  for (index_t i = 0; i < 100; ++i) ids.push_back(i * i % 256);
  const auto all = score_text(tiny_model(), ids);
  for (const index_t first : {1, 2, 50, 99, 100}) {
    const auto some = score_text(tiny_model(), ids, {}, first);
    ASSERT_EQ(std::ssize(some), 100 - first);
    for (std::size_t i = 0; i < some.size(); ++i)
      EXPECT_NEAR(some[i], all[static_cast<std::size_t>(first) - 1 + i], 1e-5);
  }
  EXPECT_TRUE(contains(error_of<ValueError>([&] { score_text(tiny_model(), ids, {}, 0); }),
                       "first must lie in 1"));
}

TEST(SamplingLogits, DoesWhatItsOptionsSay) {
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
