// GptSession::fork(): rows that share a prompt have the logits of sessions of their own.
#include <vector>

#include <gtest/gtest.h>

#include "attn/generation/beam_search.hpp"
#include "attn/generation/gpt_session.hpp"
#include "attn/generation/saved_session.hpp"

#include "support/draws/transformer_options.hpp"
#include "support/error_of.hpp"
#include "support/files/temp_folder.hpp"

namespace attn {
namespace {

using attn_test::contains;
using attn_test::error_of;
using attn_test::Random;

constexpr index_t kForkVocab = 23;

Gpt<float> random_model(Random& random, GptOptions options) {
  Gpt<float> model(options);
  model.visit_parameters([&](std::string_view, auto view) {
    for (index_t i = 0; i < view.size(); ++i)
      view.data()[i] = static_cast<float>(0.4 * random.normal());
  });
  return model;
}

GptOptions small_options() {
  GptOptions options{.vocab_size = kForkVocab,
                     .num_layers = 2,
                     .layer = {.d_model = 8, .nhead = 2, .dim_feedforward = 8, .norm_first = true},
                     .positions = Positions::none};
  options.layer.attention.rotary = RotaryOptions{.max_positions = 4096};
  return options;
}

Tensor2<index_t> fork_tokens(Random& random, index_t batch, index_t n) {
  Tensor2<index_t> tokens({batch, n});
  for (index_t& id : tokens.elements()) id = random.integer(0, kForkVocab - 1);
  return tokens;
}

TensorView2<const index_t> row(const Tensor2<index_t>& tokens, index_t b) {
  return tokens.view().slice(0, b, b + 1);
}

/// Steps of one and of several tokens after a prompt, with every kind of cache: keys of any
/// element, windows, windows of single layers, latents, and states of recurrent layers.
TEST(SessionFork, RowsHaveTheBitsOfSessionsOfTheirOwn) {
  for (std::uint64_t draw = 0; draw < attn_test::draws(40); ++draw) {
    Random random(draw);
    SCOPED_TRACE(random.trace());
    GptOptions options = small_options();
    options.layer.attention.num_kv_heads = random.integer(1, 2);
    AttentionOptions<float> attention;
    if (draw % 5 == 1) options.windows = {9, -1};
    if (draw % 5 == 2) attention.mask = sliding_window(random.integer(0, 12), 0);
    if (draw % 5 == 3) {
      options.layer.latent = {
          .q_lora_rank = 9, .kv_lora_rank = 12, .head_dim = 6, .rotary_dim = 4, .head_dim_v = 5};
    }
    if (draw % 5 == 4) {
      options.mixers = {TokenMixer::short_convolution, TokenMixer::attention};
    }
    const Gpt<float> model = random_model(random, options);
    const DType element = random.pick<DType>({DType::F32, DType::BF16, DType::F16, DType::I8});
    // The long prompt fills more than a split of the keys.
    const index_t prefix = draw == 0 || draw == 3 ? 2060 : random.integer(1, 40);
    const index_t batch = random.integer(1, 4);
    GptSession<float> session(model, 1, prefix + 30, attention, element);
    Tensor2<float> logits({1, kForkVocab});
    session.step(fork_tokens(random, 1, prefix), logits);
    GptSession<float> fork = session.fork(batch);
    std::vector<GptSession<float>> alone(static_cast<std::size_t>(batch), session);
    ASSERT_EQ(fork.batch(), batch);
    ASSERT_EQ(fork.room(), session.room());
    ASSERT_EQ(fork.max_decode_tokens(), session.max_decode_tokens());
    Tensor2<float> all({batch, kForkVocab});
    for (const index_t n : {index_t{1}, random.integer(1, 14), index_t{1}, index_t{1}}) {
      const Tensor2<index_t> tokens = fork_tokens(random, batch, n);
      fork.step(tokens, all);
      for (index_t b = 0; b < batch; ++b) {
        GptSession<float>& one = alone[static_cast<std::size_t>(b)];
        one.step(row(tokens, b), logits);
        for (index_t x = 0; x < kForkVocab; ++x) ASSERT_EQ(all(b, x), logits(0, x)) << "row " << b;
      }
      const index_t last = fork.length() - 1;
      if (!fork.can_truncate_to(last)) continue;
      fork.truncate_to(last);
      for (GptSession<float>& one : alone) one.truncate_to(last);
    }
  }
}

TEST(SessionPrefill, StepsOfTheTiledPathHaveTheBitsOfOneStep) {
  index_t splits = 0;
  for (std::uint64_t draw = 0; draw < attn_test::draws(40); ++draw) {
    Random random(draw);
    SCOPED_TRACE(random.trace());
    GptOptions options = small_options();
    options.layer.nhead = random.pick<index_t>({2, 4});
    options.layer.attention.num_kv_heads = random.pick<index_t>({1, 2});
    options.layer.attention.softcap = random.chance(0.2) ? 5 : 0;
    if (draw % 4 == 1) options.windows = {random.integer(1, 40), -1};
    if (draw % 4 == 2) {
      options.layer.latent = {.kv_lora_rank = random.integer(6, 12),
                              .head_dim = 6,
                              .rotary_dim = 4,
                              .head_dim_v = random.integer(2, 6)};
      options.layer.attention.num_kv_heads = {};
      options.layer.attention.softcap = 0;
    }
    const Gpt<float> model = random_model(random, options);
    const DType element = random.pick<DType>({DType::F32, DType::BF16, DType::F16, DType::I8});
    const index_t length = random.chance(0.2) ? random.integer(500, 700) : random.integer(2, 120);
    GptSession<float> whole(model, 1, length + 1, {}, element),
        parts(model, 1, length + 1, {}, element);
    const std::optional<index_t> least = whole.min_prefill_tokens();
    if (!least || length < 2 * *least) continue;
    const Tensor2<index_t> tokens = fork_tokens(random, 1, length),
                           next = fork_tokens(random, 1, 1);
    Tensor2<float> one({1, kForkVocab}), other(one.shape());
    whole.step(tokens, one);
    for (index_t begin = 0; begin < length; ++splits) {
      const index_t rest = length - begin;
      const index_t n = rest < 2 * *least ? rest : random.integer(*least, rest - *least);
      parts.step(tokens.view().slice(1, begin, begin + n), other);
      begin += n;
    }
    ASSERT_TRUE(std::ranges::equal(one.elements(), other.elements()));
    whole.step(next, one);
    parts.step(next, other);
    ASSERT_TRUE(std::ranges::equal(one.elements(), other.elements()));
  }
  EXPECT_GT(splits, 5);
  Random random(1);
  GptOptions options = small_options();
  options.mixers = {TokenMixer::short_convolution, TokenMixer::attention};
  const Gpt<float> model = random_model(random, small_options()),
                   recurrent = random_model(random, options);
  EXPECT_EQ(GptSession<float>(model, 1, 20).min_prefill_tokens(), 13);
  EXPECT_EQ(GptSession<float>(recurrent, 1, 20).min_prefill_tokens(), std::nullopt);
  EXPECT_EQ(GptSession<float>(model, 1, 20, {.mask = sliding_window(4, 0)}).min_prefill_tokens(),
            std::nullopt);
  EXPECT_EQ(
      GptSession<float>(model, 1, 20, {.precision = AttentionPrecision::int8}).min_prefill_tokens(),
      std::nullopt);
}

TEST(SessionFork, SamplesAndBeamsAreThoseOfRepeatedPrompts) {
  Random random(1);
  const Gpt<float> model = random_model(random, small_options());
  const Tensor2<index_t> prompt = fork_tokens(random, 1, 30);
  GptSession<float> session(model, 1, 60), repeated(model, 3, 60);
  Tensor2<float> logits({1, kForkVocab}), of_rows({3, kForkVocab});
  session.step(prompt.view().slice(1, 0, 29), logits);
  Tensor2<index_t> prompts({3, 30}), rest({3, 1});
  for (index_t b = 0; b < 3; ++b) {
    copy(prompt.view().select(0, 0), prompts.view().select(0, b));
    rest(b, 0) = prompt(0, 29);
  }
  const GenerationOptions sampled{.max_new_tokens = 12,
                                  .sampling = SamplingOptions{.temperature = 1, .seed = 5}};
  GptSession<float> fork = session.fork(3);
  const auto samples = generate(fork, rest, sampled);
  // A prompt in two steps: one of 30 tokens at once would round differently.
  repeated.step(prompts.view().slice(1, 0, 29), of_rows);
  EXPECT_EQ(samples, generate(repeated, rest, sampled));
  EXPECT_NE(samples[0], samples[1]);

  repeated.truncate_to(29);
  fork = session.fork(3);
  const BeamSearchOptions beams{.num_beams = 3, .max_new_tokens = 8};
  const auto last = prompt.view().slice(1, 29, 30);
  EXPECT_EQ(beam_search(fork, last, beams)[0][0].tokens,
            beam_search(repeated, last, beams)[0][0].tokens);
}

TEST(SessionFork, RefusesWhatSharedKeysCannotDo) {
  Random random(2);
  const Gpt<float> model = random_model(random, small_options());
  GptSession<float> session(model, 1, 20), two(model, 2, 20);
  Tensor2<float> logits({1, kForkVocab});
  const Tensor2<index_t> tokens = fork_tokens(random, 1, 5);
  session.step(tokens, logits);
  EXPECT_TRUE(contains(error_of<ValueError>([&] { (void)two.fork(2); }), "[KvCache::fork]"));
  EXPECT_TRUE(contains(error_of<ValueError>([&] { (void)session.fork(0); }), "batch must"));
  const Tensor1<index_t> lengths({1}, {2});
  const GptSession<float> of_lengths(model, 1, 20, {.mask = key_lengths(lengths)});
  EXPECT_EQ(error_of<ValueError>([&] { (void)of_lengths.fork(1); }),
            "[GptSession::fork] options must hold no tensor with an axis of rows, queries or keys; "
            "found key_lengths.");
  GptSession<float> fork = session.fork(1);
  EXPECT_FALSE(fork.can_truncate_to(4));
  EXPECT_THROW(fork.truncate_to(4), ValueError);
  const attn_test::TempFolder folder;
  EXPECT_TRUE(contains(
      error_of<ValueError>([&] { save_session(folder.path() / "fork", fork, tokens.elements()); }),
      "hold no keys shared by its rows"));
  fork.clear();
  EXPECT_EQ(fork.room(), 20);
  Tensor2<float> again({1, kForkVocab});
  fork.step(tokens, again);
  EXPECT_TRUE(std::ranges::equal(again.elements(), logits.elements()));
}

}  // namespace
}  // namespace attn
