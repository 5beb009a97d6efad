// generate_texts: several conversations at once, each bit-identical to generate_text().
#include "attn/generation/generate_texts.hpp"

#include <cstring>
#include <deque>

#include <gtest/gtest.h>

#include "support/error_of.hpp"
#include "support/models/generated_text.hpp"
#include "support/models/tiny_model.hpp"

namespace attn {
namespace {

using attn_test::contains;
using attn_test::error_of;
using attn_test::tiny_language_model;
using Ids = std::vector<index_t>;

TEST(GenerateTexts, GivesEachConversationWhatItGetsAlone) {
  const LanguageModel exact = tiny_language_model(),
                      int8 = tiny_language_model(ActivationFormat::int8);
  for (std::uint64_t draw = 0; draw < attn_test::draws(40); ++draw) {
    attn_test::Random random(draw);
    SCOPED_TRACE(random.trace());
    const LanguageModel& model = draw % 2 == 0 ? exact : int8;
    const DType element = random.pick<DType>({DType::F32, DType::BF16, DType::I8});
    std::deque<GptSession<float>> sessions, alone;
    std::vector<Conversation> conversations;
    std::vector<std::string> pieces(9), pieces_alone(9);
    for (index_t n = random.integer(1, 9); n > 0; --n) {
      const index_t capacity = random.integer(41, 100);
      sessions.emplace_back(model.gpt(), 1, capacity, AttentionOptions<float>{}, element);
      alone.emplace_back(model.gpt(), 1, capacity, AttentionOptions<float>{}, element);
      Conversation& one = conversations.emplace_back();
      one.session = &sessions.back();
      for (index_t i = random.integer(1, 40); i > 0; --i) one.ids.push_back(random.integer(0, 20));
      one.options = {.max_new_tokens = random.integer(1, 70),
                     .log_probabilities = random.chance(0.7)};
      if (random.chance(0.3)) one.options.logits.repetition_penalty = 1.2;
      if (random.chance(0.5)) {
        one.options.sampling = SamplingOptions{.temperature = 0.6, .seed = draw + sessions.size()};
      }
      if (random.chance(0.4)) one.options.keep = 2;
      if (random.chance(0.2)) one.options.stop = {"e"};
      if (random.chance(0.2)) one.options.draft = PromptLookup(2);
    }
    for (std::size_t n = 0; n < conversations.size(); ++n) {
      conversations[n].options.on_text = [&pieces, n](std::string_view piece) {
        pieces[n] += piece;
        return pieces[n].size() < 40;
      };
    }
    const std::vector<GeneratedText> found = generate_texts(model, conversations);
    ASSERT_EQ(found.size(), conversations.size());
    for (std::size_t n = 0; n < found.size(); ++n) {
      conversations[n].options.on_text = [&](std::string_view piece) {
        pieces_alone[n] += piece;
        return pieces_alone[n].size() < 40;
      };
      attn_test::expect_same(
          found[n], generate_text(model, alone[n], conversations[n].ids, conversations[n].options));
      EXPECT_EQ(sessions[n].length(), alone[n].length());
    }
    EXPECT_EQ(pieces, pieces_alone);
  }
}

/// Prompts of one stem, cut and continued at random, in sessions that may differ; also models and
/// options that refuse to share.
TEST(GenerateTexts, CommonBeginningsChangeNoBit) {
  const LanguageModel exact = tiny_language_model(),
                      int8 = tiny_language_model(ActivationFormat::int8);
  for (std::uint64_t draw = 0; draw < attn_test::draws(30); ++draw) {
    attn_test::Random random(draw);
    SCOPED_TRACE(random.trace());
    const LanguageModel& model = draw % 2 == 0 ? exact : int8;
    const DType element = random.pick<DType>({DType::F32, DType::BF16, DType::I8});
    AttentionOptions<float> attention;
    if (random.chance(0.15)) attention.mask = sliding_window(random.integer(5, 200), 0);
    if (random.chance(0.15)) attention.precision = AttentionPrecision::int8;
    if (random.chance(0.15)) attention.softcap = 20;
    std::deque<GptSession<float>> sessions, alone;
    std::vector<Conversation> conversations;
    Ids stem;
    for (index_t i = 0; i < 90; ++i) stem.push_back(random.integer(0, 20));
    for (index_t n = random.integer(2, 6); n > 0; --n) {
      const index_t capacity = random.integer(100, 120);
      for (std::deque<GptSession<float>>* all : {&sessions, &alone})
        all->emplace_back(model.gpt(), 1, capacity, attention, element);
      Conversation& one = conversations.emplace_back();
      one.session = &sessions.back();
      one.ids.assign(stem.begin(), stem.begin() + random.integer(0, 90));
      for (index_t i = random.integer(1, 30); i > 0; --i) one.ids.push_back(random.integer(0, 20));
      one.options = {.max_new_tokens = random.integer(1, 12), .log_probabilities = true, .keep = 3};
      if (random.chance(0.2)) one.options.draft = PromptLookup(2);
      if (!random.chance(0.2)) continue;  // a conversation that goes on
      Tensor2<float> logits({1, model.gpt().vocab_size()});
      const TensorView2<const index_t> seen(one.ids.data(), {1, (std::ssize(one.ids) + 1) / 2});
      if (std::ssize(one.ids) == 1) continue;
      sessions.back().step(seen, logits);
      alone.back().step(seen, logits);
    }
    const std::vector<GeneratedText> found = generate_texts(model, conversations);
    for (std::size_t n = 0; n < found.size(); ++n) {
      attn_test::expect_same(
          found[n], generate_text(model, alone[n], conversations[n].ids, conversations[n].options));
      ASSERT_EQ(sessions[n].length(), alone[n].length());
      // All keys and values, by the logits of a further step.
      Tensor2<float> a({1, model.gpt().vocab_size()}), b(a.shape());
      if (sessions[n].room() < 1) continue;
      sessions[n].step({found[n].ids.data(), {1, 1}}, a);
      alone[n].step({found[n].ids.data(), {1, 1}}, b);
      EXPECT_EQ(std::memcmp(a.data(), b.data(), static_cast<std::size_t>(a.size()) * sizeof(float)),
                0);
    }
  }
}

/// Other keys are written to the first session, which the second then holds.
TEST(GenerateTexts, CommonBeginningsAreComputedOnce) {
  const LanguageModel model = tiny_language_model();
  const Ids ids(60, 3), other(60, 4);
  const TextGenerationOptions options{.max_new_tokens = 1, .log_probabilities = true};
  const auto log_probability_after = [&](const Ids& first, std::optional<DType> element) {
    GptSession<float> a(model.gpt(), 1, 64), b(model.gpt(), 1, 64, {}, element);
    detail::TextGeneration of_a("generate_texts", model, a, first, options),
        of_b("generate_texts", model, b, ids, options);
    detail::PrefilledPrompts prompts;
    prompts.prefill(of_a);
    Tensor2<float> logits({1, model.gpt().vocab_size()});
    a.clear();
    a.step({other.data(), {1, 60}}, logits);
    prompts.prefill(of_b);
    EXPECT_FALSE(prompts.step(of_b));
    return of_b.result().log_probabilities;
  };
  EXPECT_NE(log_probability_after(ids, {}), log_probability_after(other, {}));
  // Caches of other elements share nothing.
  EXPECT_EQ(log_probability_after(ids, DType::BF16), log_probability_after(other, DType::BF16));
}

TEST(GenerateTexts, CallbacksMayChangeSessionsOfCommonBeginnings) {
  const LanguageModel model = tiny_language_model();
  const Ids ids(60, 3), other(60, 4);
  GptSession<float> a(model.gpt(), 1, 80), b(model.gpt(), 1, 80), alone(model.gpt(), 1, 80);
  const TextGenerationOptions options{.max_new_tokens = 6, .log_probabilities = true};
  const auto rewrite = [&](TensorView1<float>, std::span<const index_t>) {
    Tensor2<float> logits({1, model.gpt().vocab_size()});
    a.clear();
    a.step({other.data(), {1, 60}}, logits);
  };
  const Conversation both[] = {{&a, ids, {.max_new_tokens = 1, .logit_processor = rewrite}},
                               {&b, ids, options}};
  attn_test::expect_same(generate_texts(model, both)[1], generate_text(model, alone, ids, options));
}

TEST(GenerateTexts, ChecksAllIdsBeforeItPrefills) {
  const LanguageModel model = tiny_language_model();
  const Ids ids(60, 3);
  for (const index_t bad : {-1, 262}) {
    GptSession<float> a(model.gpt(), 1, 80), b(model.gpt(), 1, 80);
    Ids wrong = ids;
    wrong.back() = bad;
    const Conversation both[] = {{&a, ids, {.max_new_tokens = 2}},
                                 {&b, wrong, {.max_new_tokens = 2}}};
    EXPECT_EQ(error_of<ValueError>([&] { generate_texts(model, both); }),
              "[generate_texts] every id must lie in 0 .. 261; found " + std::to_string(bad) + ".");
    EXPECT_EQ(a.length(), 0);
    EXPECT_EQ(b.length(), 0);
  }
}

TEST(GenerateTexts, TakesOnlySessionsThatFitTogether) {
  const LanguageModel model = tiny_language_model(),
                      other = tiny_language_model(ActivationFormat::exact, 8);
  GptSession<float> a(model.gpt(), 1, 20), b(model.gpt(), 1, 30), of_other(other.gpt(), 1, 20),
      wide(model.gpt(), 2, 20), scaled(model.gpt(), 1, 20, {.scale = 0.5});
  const auto error = [&](GptSession<float>* first, GptSession<float>* second) {
    return error_of<ValueError>([&] {
      const Conversation both[] = {{first, {1, 2}, {.max_new_tokens = 5}},
                                   {second, {3}, {.max_new_tokens = 5}}};
      generate_texts(model, both);
    });
  };
  EXPECT_EQ(error(&a, nullptr),
            "[generate_texts] sessions must be one for each conversation; found none.");
  EXPECT_EQ(error(&a, &a),
            "[generate_texts] sessions must be one for each conversation; found one twice.");
  EXPECT_TRUE(contains(error(&a, &wide), "the session's batch must lie in 1 .. 1; found 2"));
  EXPECT_EQ(a.length(), 0);
  const Tensor1<index_t> tokens({2}, {1, 2});
  Tensor2<float> logits({2, model.gpt().vocab_size()});
  for (GptSession<float>* second : {&of_other, &wide, &scaled}) {
    GptSession<float>* const both[] = {&a, second};
    EXPECT_EQ(error_of<ValueError>([&] { GptSession<float>::step_together(both, tokens, logits); }),
              "[GptSession::step_together] sessions must be of one model, of one row, and have the "
              "same options, instruction set and matmul_precision; found others.");
  }
  const Tensor4<index_t> gather({1, 1, 1, 1});
  const Tensor1<index_t> lengths({1}, {1});
  GptSession<float> gathering(model.gpt(), 1, 8, {.gather = gather}),
      of_lengths(model.gpt(), 1, 8, {.mask = key_lengths(lengths)}),
      of_codes(model.gpt(), 1, 8, {.precision = AttentionPrecision::int8});
  const auto refused = [&](GptSession<float>& first, GptSession<float>& second) {
    GptSession<float>* const both[] = {&first, &second};
    return error_of<ValueError>([&] { GptSession<float>::step_together(both, tokens, logits); });
  };
  for (const auto& [held, name] : {std::pair(&gathering, "gather"), {&of_lengths, "key_lengths"}}) {
    const std::string expected =
        std::string(
            "[GptSession::step_together] options must hold no tensor with an axis of rows, "
            "queries or keys; found ") +
        name + ".";
    EXPECT_EQ(refused(*held, a), expected);
    EXPECT_EQ(refused(a, *held), expected);
    EXPECT_EQ(refused(*held, *held), expected);
  }
  EXPECT_TRUE(contains(refused(a, of_codes), "have the same options"));
  GptSession<float>* const both[] = {&a, &b};
  const Tensor1<index_t> unknown({2}, {1, 262});
  EXPECT_THROW(GptSession<float>::step_together(both, unknown, logits), ValueError);
  EXPECT_EQ(a.length(), 0);
  GptSession<float>::step_together({}, Tensor1<index_t>({0}), Tensor2<float>({0, 262}));
  EXPECT_TRUE(generate_texts(model, {}).empty());
}

}  // namespace
}  // namespace attn
