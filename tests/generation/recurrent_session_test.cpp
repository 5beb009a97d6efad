// Sessions of models with recurrent layers: states beside the caches of attention.
#include <deque>

#include <gtest/gtest.h>

#include "attn/generation/beam_search.hpp"
#include "attn/generation/saved_session.hpp"
#include "attn/models/quantize.hpp"

#include "support/error_of.hpp"
#include "support/files/temp_folder.hpp"
#include "support/models/parameters.hpp"
#include "support/thread_executor.hpp"

namespace attn {
namespace {

using attn_test::contains;
using attn_test::error_of;
using attn_test::Random;

constexpr index_t kRecurrentVocab = 23;

GptOptions draw_options(Random& random) {
  GptOptions options{
      .vocab_size = kRecurrentVocab,
      .num_layers = 4,
      .layer = {.d_model = 16, .nhead = 4, .dim_feedforward = 24, .norm_first = true},
      .positions = Positions::none,
      .mixers = {TokenMixer::short_convolution, TokenMixer::attention}};
  options.layer.attention.rotary = RotaryOptions{.max_positions = 64};
  options.layer.convolution = {.width = random.integer(2, 4), .bias = random.chance(0.5)};
  options.layer.gated_delta = {.num_key_heads = 2,
                               .num_value_heads = 2 * random.integer(1, 2),
                               .key_dim = 3,
                               .value_dim = 5,
                               .norm_eps = 1e-2};
  if (random.chance(0.5)) options.mixers[0] = TokenMixer::gated_delta;
  if (random.chance(0.3)) std::swap(options.mixers[0], options.mixers[1]);
  if (random.chance(0.3)) options.mixers[1] = options.mixers[0];  // no attention at all
  return options;
}

template <class T>
Gpt<T> random_gpt(Random& random) {
  auto model = attn_test::random_module<Gpt<T>>(random, draw_options(random));
  if (random.chance(0.5)) model.pack();
  return model;
}

Tensor2<index_t> recurrent_tokens(Random& random, index_t batch, index_t seq) {
  Tensor2<index_t> tokens({batch, seq});
  for (index_t i = 0; i < tokens.size(); ++i)
    tokens.data()[i] = random.integer(0, kRecurrentVocab - 1);
  return tokens;
}

/// Tolerance: attention's sums of at most 40 keys in another order, through four layers.
template <class T>
void expect_near(TensorView2<const T> found, TensorView2<const T> expected) {
  for (index_t b = 0; b < found.extent(0); ++b) {
    for (index_t x = 0; x < found.extent(1); ++x) {
      ASSERT_NEAR(found(b, x), expected(b, x), 5000 * std::numeric_limits<T>::epsilon())
          << b << ", " << x;
    }
  }
}

template <class T>
void expect_steps(Random& random) {
  const Gpt<T> model = random_gpt<T>(random);
  const index_t batch = random.integer(1, 3), seq = random.integer(2, 40);
  const auto tokens = recurrent_tokens(random, batch, seq);
  const auto whole = model(tokens);
  GptSession<T> session(model, batch, seq);
  Tensor2<T> logits({batch, kRecurrentVocab});
  for (index_t begin = 0, end = 0; begin < seq; begin = end) {
    end = random.chance(0.5) ? begin + 1 : random.integer(begin + 1, seq);
    if (random.chance(0.2)) {  // the last step can be taken back
      session.step(recurrent_tokens(random, batch, end - begin), logits);
      EXPECT_TRUE(session.can_truncate_to(begin));
      session.truncate_to(begin);
    }
    session.step(const_view(tokens).slice(1, begin, end), logits);
    expect_near<T>(logits.view(), const_view(whole).select(1, end - 1));
  }
  EXPECT_EQ(session.length(), seq);
  EXPECT_EQ(session.room(), 0);
}

TEST(RecurrentSession, StepsGiveTheLogitsOfTheWholeText) {
  for (std::uint64_t n = 0; n < attn_test::draws(60); ++n) {
    Random random(n);
    SCOPED_TRACE(random.trace());
    expect_steps<float>(random);
    expect_steps<double>(random);
    if (HasFailure()) return;
  }
}

TEST(RecurrentSession, RowsAndThreadsGiveTheBitsOfSessionsOfTheirOwn) {
  const attn_test::ThreadExecutor three(3);
  for (std::uint64_t n = 0; n < attn_test::draws(20); ++n) {
    Random random(n);
    SCOPED_TRACE(random.trace());
    const Gpt<float> model = random_gpt<float>(random);
    const index_t rows = random.integer(1, 4);
    AttentionOptions<float> options;
    options.execution.executor = &three;
    std::deque<GptSession<float>> together, alone;
    std::vector<GptSession<float>*> sessions;
    Tensor2<float> logits({rows, kRecurrentVocab}), single({1, kRecurrentVocab});
    for (index_t b = 0; b < rows; ++b) {
      together.emplace_back(model, 1, 30, options);
      together.back().step(recurrent_tokens(random, 1, random.integer(1, 20)), single);
      alone.push_back(together.back());
      sessions.push_back(&together.back());
    }
    for (int step = 0; step < 3; ++step) {
      const auto next = recurrent_tokens(random, rows, 1);
      GptSession<float>::step_together(sessions, const_view(next).select(1, 0), logits);
      for (index_t b = 0; b < rows; ++b) {
        alone[static_cast<std::size_t>(b)].step(const_view(next).slice(0, b, b + 1), single);
        for (index_t x = 0; x < kRecurrentVocab; ++x) ASSERT_EQ(logits(b, x), single(0, x)) << b;
      }
    }
  }
}

TEST(RecurrentSession, BeamsAndPromptsOfAnyLengthsGiveTheTokensOfRowsAlone) {
  Random random(3);
  const Gpt<double> model = random_gpt<double>(random);
  const auto prompts = recurrent_tokens(random, 2, 6);
  const Tensor1<index_t> lengths({2}, {6, 3});
  GptSession<double> session(model, 2, 20);
  const auto both = generate(session, prompts, {.max_new_tokens = 9, .prompt_lengths = lengths});
  for (index_t b = 0; b < 2; ++b) {
    GptSession<double> one(model, 1, 20), beams(model, 3, 20);
    const auto prompt = const_view(prompts).slice(0, b, b + 1).slice(1, 0, lengths(b));
    EXPECT_EQ(generate(one, prompt, {.max_new_tokens = 9})[0], both[static_cast<std::size_t>(b)]);
    // The best of three beams is at least as likely as the greedy tokens.
    const auto found = beam_search(beams, prompt, {.num_beams = 3, .max_new_tokens = 9});
    const auto log_probability = [&](const std::vector<index_t>& ids) {
      GptSession<double> scored(model, 1, 20);
      Tensor2<double> logits({1, kRecurrentVocab});
      scored.step(prompt, logits);
      double sum = 0;
      for (const index_t id : ids) {
        log_softmax(logits, logits);
        sum += logits(0, id);
        scored.step(Tensor2<index_t>({1, 1}, {id}), logits);
      }
      return sum;
    };
    ASSERT_FALSE(found[0].empty());
    EXPECT_GE(log_probability(found[0][0].tokens),
              log_probability(both[static_cast<std::size_t>(b)]) - 1e-9);
  }
}

/// Parameters and activations of 16 bits, with states in float.
TEST(RecurrentSession, SixteenBitsAgreeWithinTheirRounding) {
  for (std::uint64_t n = 0; n < 4; ++n) {
    Random random(n);
    SCOPED_TRACE(random.trace());
    const GptOptions options = draw_options(random);
    const auto model = attn_test::random_module<Gpt<float>>(random, options);
    Gpt<bfloat16> rounded(options);
    std::vector<TensorView1<const float>> parameters;
    model.visit_parameters([&](std::string_view, const auto& view) {
      parameters.emplace_back(view.data(), Shape<1>{view.size()});
    });
    std::size_t at = 0;
    rounded.visit_parameters([&](std::string_view, const auto& view) {
      convert(parameters[at++], TensorView1<bfloat16>(view.data(), {view.size()}));
    });
    const auto tokens = recurrent_tokens(random, 1, 9);
    const auto expected = model(tokens);
    GptSession<bfloat16> session(rounded, 1, 9);
    Tensor2<float> logits({1, kRecurrentVocab});
    double difference = 0, size = 0;
    for (index_t i = 0; i < 9; ++i) {
      session.step(const_view(tokens).slice(1, i, i + 1), logits);
      for (index_t x = 0; x < kRecurrentVocab; ++x) {
        difference += std::pow(logits(0, x) - expected(0, i, x), 2);
        size += std::pow(expected(0, i, x), 2);
      }
    }
    // Four layers round about ten times each, by up to 2^-9.
    EXPECT_LT(std::sqrt(difference / size), 40 * std::ldexp(1, -9));
    EXPECT_GT(difference, 0);
  }
}

TEST(RecurrentSession, IsSavedAndGoesOnBitForBit) {
  const attn_test::TempFolder folder;
  const auto path = folder.path() / "session.safetensors";
  for (const DType element : {DType::F32, DType::BF16, DType::I8}) {
    Random random(static_cast<std::uint64_t>(element));
    const Gpt<float> model = random_gpt<float>(random);
    GptSession<float> session(model, 1, 30, {}, element), other(model, 1, 20, {}, element);
    const auto tokens = recurrent_tokens(random, 1, 9), next = recurrent_tokens(random, 1, 1);
    Tensor2<float> logits({1, kRecurrentVocab}), restored({1, kRecurrentVocab});
    session.step(tokens, logits);
    save_session(path, session, {tokens.data(), 9});
    other.step(next, restored);
    EXPECT_EQ(load_session(path, other).size(), 9u);
    session.step(next, logits);
    other.step(next, restored);
    for (index_t x = 0; x < kRecurrentVocab; ++x) ASSERT_EQ(restored(0, x), logits(0, x));
  }
}

TEST(RecurrentSession, QuantisesAsOtherLinearLayers) {
  Random random(5);
  GptOptions options = draw_options(random);
  options.layer.d_model = 32;
  options.layer.dim_feedforward = 64;
  options.layer.gated_delta.value_dim = 16;
  options.mixers = {TokenMixer::short_convolution, TokenMixer::gated_delta};
  auto model = attn_test::random_module<Gpt<float>>(random, options);
  const auto tokens = recurrent_tokens(random, 1, 12);
  const auto exact = model(tokens);
  index_t weights = 0;
  visit_weights<float>(model, [&](std::string_view name, auto&) {
    if (name.find(".short_conv.") != name.npos) ++weights;
    if (name.find(".linear_attn.") != name.npos) ++weights;
  });
  EXPECT_EQ(weights, 2 * 2 + 2 * 3);  // of two layers of each kind
  quantize(model, {});
  GptSession<float> session(model, 1, 12);
  Tensor2<float> logits({1, kRecurrentVocab});
  session.step(tokens, logits);
  double difference = 0, size = 0;
  for (index_t x = 0; x < kRecurrentVocab; ++x) {
    difference += std::pow(logits(0, x) - exact(0, 11, x), 2), size += std::pow(exact(0, 11, x), 2);
  }
  EXPECT_GT(difference, 0);
  EXPECT_LT(difference, 0.01 * size);
}

TEST(RecurrentSession, RefusesWhatAStateCannotDo) {
  Random random(7);
  GptOptions options = draw_options(random);
  options.mixers = {TokenMixer::attention, TokenMixer::short_convolution};
  const auto model = attn_test::random_module<Gpt<float>>(random, options);
  GptSession<float> session(model, 1, 30);
  Tensor2<float> logits({1, kRecurrentVocab});
  for (int step = 0; step < 3; ++step) session.step(recurrent_tokens(random, 1, 4), logits);
  // Also the attention layers in front keep their tokens.
  EXPECT_FALSE(session.can_truncate_to(10));
  EXPECT_TRUE(contains(error_of<ValueError>([&] { session.truncate_to(10); }), "recurrent layer"));
  for (const KvCache<float>& cache : session.caches()) EXPECT_EQ(cache.length(), 12);
  session.truncate_to(8);
  EXPECT_EQ(session.length(), 8);
  EXPECT_TRUE(contains(error_of<ValueError>([&] { session.truncate_to(4); }), "recurrent layer"));
  const auto tokens = recurrent_tokens(random, 2, 4);
  const auto refused = [&](const AttentionOptions<float>& given) {
    return error_of<ValueError>([&] { (void)model(tokens, given); });
  };
  constexpr const char* kWindow =
      "[EncoderLayer] mask must be causal() alone with recurrent layers; found a sliding window.";
  EXPECT_EQ(refused({.mask = sliding_window(2, 0)}), kWindow);
  EXPECT_EQ(error_of<ValueError>(
                [&] { GptSession<float>(model, 1, 30, {.mask = sliding_window(2, 0)}); }),
            kWindow);
  EXPECT_TRUE(contains(refused({.mask = chunked(2)}), "found chunks"));
  EXPECT_TRUE(contains(refused({.offset = top_left}), "be bottom_right"));
  EXPECT_TRUE(contains(refused({.offset = query_offset(3)}), "found 3"));
  EXPECT_TRUE(contains(refused({.first_key = 3}), "first_key must be 0"));
  const Tensor1<index_t> lengths({2}, {4, 2});
  EXPECT_TRUE(contains(refused({.mask = key_lengths(lengths)}),
                       "hold no tensor with an axis of rows, queries or keys"));
  EXPECT_TRUE(contains(error_of<ValueError>([&] { (void)model.make_caches(1, 8, 4); }),
                       "window, with a state,"));
  const Tensor4<index_t> gather({2, 1, 4, 1});
  EXPECT_EQ(refused({.gather = gather}),
            "[EncoderLayer] options with recurrent layers must hold no tensor with an axis of "
            "rows, queries or keys; found gather.");
  // A step that fails leaves the session as it was.
  EXPECT_TRUE(
      contains(error_of<ValueError>([&] { session.step(recurrent_tokens(random, 1, 23), logits); }),
               "must lie in 0 .. 22; found 23"));
  for (const KvCache<float>& cache : session.caches()) EXPECT_EQ(cache.length(), 8);
}

/// Attention refuses positions beyond its rotary table, after the layers in front have run.
TEST(RecurrentSession, AFailedStepLeavesAllStates) {
  for (std::uint64_t n = 0; n < 6; ++n) {
    Random random(n);
    SCOPED_TRACE(random.trace());
    GptOptions options = draw_options(random);
    options.mixers = {n % 2 == 0 ? TokenMixer::short_convolution : TokenMixer::gated_delta,
                      TokenMixer::attention};
    options.layer.attention.rotary = RotaryOptions{.max_positions = 7};
    const auto model = attn_test::random_module<Gpt<float>>(random, options);
    GptSession<float> session(model, 1, 30), other(model, 1, 30);
    Tensor2<float> logits({1, kRecurrentVocab}), expected({1, kRecurrentVocab});
    const auto prompt = recurrent_tokens(random, 1, 5), next = recurrent_tokens(random, 1, 1),
               many = recurrent_tokens(random, 1, 3);
    const auto fails = [&] {
      EXPECT_THROW(session.step(many, logits), ValueError);
      Tensor3<float> of_tree({1, 3, kRecurrentVocab});
      const Tensor1<index_t> chain({3}, {-1, 0, 1});
      EXPECT_THROW(session.step_tree(many, chain, of_tree), ValueError);
      GptSession<float>* both[] = {&other, &session};  // `other` is full
      const Tensor1<index_t> two({2}, {1, 2});
      Tensor2<float> rows({2, kRecurrentVocab});
      EXPECT_THROW(GptSession<float>::step_together(both, two, rows), ValueError);
    };
    for (GptSession<float>* one : {&session, &other}) one->step(prompt, logits);
    for (GptSession<float>* one : {&session, &other}) one->step(next, logits);
    other.step(next, expected);
    fails();
    EXPECT_TRUE(session.can_truncate_to(5));
    session.step(next, logits);
    EXPECT_TRUE(std::ranges::equal(std::span(logits.data(), kRecurrentVocab),
                                   std::span(expected.data(), kRecurrentVocab)));
    session.truncate_to(6);
    fails();
    session.step(next, logits);
    EXPECT_TRUE(std::ranges::equal(std::span(logits.data(), kRecurrentVocab),
                                   std::span(expected.data(), kRecurrentVocab)));
    EXPECT_TRUE(session.can_truncate_to(6) && other.can_truncate_to(6));
  }
}

}  // namespace
}  // namespace attn
