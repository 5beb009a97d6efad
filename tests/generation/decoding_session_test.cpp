// GptSession and Seq2SeqSession: caches give the tokens of recomputing everything.
#include "attn/generation/decoding_session.hpp"

#include <functional>

#include <gtest/gtest.h>

#include "attn/generation/beam_search.hpp"
#include "attn/generation/gpt_session.hpp"

#include "support/draws/transformer_options.hpp"
#include "support/error_of.hpp"
#include "support/models/toy_decoder.hpp"
#include "support/placed.hpp"
#include "support/references/reference_transformer.hpp"

namespace attn {
namespace {

using attn_test::contains;
using attn_test::error_of;
using attn_test::Random;
using attn_test::randomize;
using attn_test::Tokens;

template <class T>
class DecodingSessionTest : public ::testing::Test {};
using Types = ::testing::Types<float, double>;
TYPED_TEST_SUITE(DecodingSessionTest, Types);

constexpr index_t kVocab = 23;

/// A CachedDecoder without a cache: every step recomputes logits (batch, seq, vocab_size) of all
/// tokens.
template <class T>
class Uncached {
 public:
  using value_type = T;
  using Model = std::function<Tensor3<T>(const Tensor2<index_t>& tokens)>;

  Uncached(index_t batch, Model model) : tokens_({batch, 0}), model_(std::move(model)) {}

  index_t batch() const { return tokens_.extent(0); }
  index_t vocab_size() const { return kVocab; }
  void step(TensorView2<const index_t> tokens, TensorView2<T> logits) {
    const index_t seen = tokens_.extent(1), seq = seen + tokens.extent(1);
    Tensor2<index_t> all({batch(), seq});
    copy(tokens_, all.view().slice(1, 0, seen));
    copy(tokens, all.view().slice(1, seen, seq));
    tokens_ = std::move(all);
    const auto all_logits = model_(tokens_);
    copy(all_logits.select(1, seq - 1), logits);
  }
  void reorder(TensorView1<const index_t> rows) {
    const Tensor2<index_t> old = tokens_;
    for (index_t b = 0; b < batch(); ++b) {
      copy(old.view().select(0, rows(b)), tokens_.view().select(0, b));
    }
  }

 private:
  Tensor2<index_t> tokens_;
  Model model_;
};

Tensor2<index_t> random_tokens(Random& random, index_t batch, index_t seq) {
  Tensor2<index_t> tokens({batch, seq});
  for (index_t& token : tokens.elements()) token = random.integer(1, kVocab - 1);
  return tokens;
}

void expect_same(const std::vector<std::vector<Hypothesis>>& a,
                 const std::vector<std::vector<Hypothesis>>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (std::size_t i = 0; i < a.size(); ++i) {
    ASSERT_EQ(a[i].size(), b[i].size());
    for (std::size_t j = 0; j < a[i].size(); ++j) {
      EXPECT_EQ(a[i][j].tokens, b[i][j].tokens) << "prompt " << i << ", hypothesis " << j;
      EXPECT_NEAR(a[i][j].score, b[i][j].score, 1e-4);
    }
  }
}

template <class T>
Gpt<T> random_gpt(Random& random, bool llama) {
  return attn_test::random_module<Gpt<T>>(
      random, llama ? attn_test::llama_options(kVocab, 64) : attn_test::gpt2_options(kVocab, 64));
}

TYPED_TEST(DecodingSessionTest, GptGeneratesAsWithoutCache) {
  using T = TypeParam;
  for (std::uint64_t draw = 0; draw < 12; ++draw) {
    Random random(draw);
    SCOPED_TRACE(random.trace());
    const auto model = random_gpt<T>(random, draw % 2 == 1);
    const index_t batch = random.integer(1, 3), prompt_len = random.integer(1, 12);
    // Windows of the options keep the caches short.
    const index_t window = random.integer(0, 9);
    AttentionOptions<T> attention;
    if (random.chance(0.4)) attention.mask = sliding_window(window, 0);
    const index_t capacity =
        attention.mask.left < 64 ? std::max(window, index_t{1}) + prompt_len : 40;
    if (random.chance(0.3)) attention.mask = attention.mask & chunked(5);
    const Tensor2<index_t> prompts = random_tokens(random, batch, prompt_len);
    Tensor1<index_t> lengths({batch});
    for (index_t& length : lengths.elements()) length = random.integer(1, prompt_len);
    GenerationOptions options{.max_new_tokens = 20, .stop_tokens = {3}};
    if (random.chance(0.5)) options.prompt_lengths = lengths;
    for (const bool sampled : {false, true}) {
      if (sampled)
        options.sampling =
            SamplingOptions{.temperature = 0.8, .top_k = 10, .top_p = 0.95, .seed = draw};
      GptSession<T> session(model, batch, capacity, attention);
      Uncached<T> anew(batch, [&](const auto& tokens) { return model(tokens, attention); });
      EXPECT_EQ(generate(session, prompts, options), generate(anew, prompts, options));
    }
  }
}

TYPED_TEST(DecodingSessionTest, GptBeamSearchAsWithoutCache) {
  using T = TypeParam;
  for (std::uint64_t draw = 0; draw < 6; ++draw) {
    Random random(100 + draw);
    SCOPED_TRACE(random.trace());
    const auto model = random_gpt<T>(random, draw % 2 == 1);
    const index_t batch = random.integer(1, 2), beams = random.integer(2, 5);
    const Tensor2<index_t> prompts = random_tokens(random, batch, 5);
    const BeamSearchOptions options{.num_beams = beams, .max_new_tokens = 12, .stop_tokens = {3}};
    GptSession<T> session(model, batch * beams, 20);
    Uncached<T> anew(batch * beams, [&](const auto& tokens) { return model(tokens); });
    expect_same(beam_search(session, prompts, options), beam_search(anew, prompts, options));
  }
}

template <class T>
Seq2SeqTransformer<T> random_seq2seq(Random& random) {
  Seq2SeqOptions options{.src_vocab_size = kVocab, .tgt_vocab_size = kVocab};
  options.transformer.layer = {
      .d_model = 24, .nhead = 3, .dim_feedforward = 40, .norm_first = random.chance(0.5)};
  options.transformer.num_encoder_layers = options.transformer.num_decoder_layers = 2;
  options.max_positions = 40;
  options.output_bias = true;
  options.pad_id = 0;
  Seq2SeqTransformer<T> model(options);
  randomize(model, random);
  return model;
}

TYPED_TEST(DecodingSessionTest, Seq2SeqAsWithoutCache) {
  using T = TypeParam;
  for (std::uint64_t draw = 0; draw < 8; ++draw) {
    Random random(200 + draw);
    SCOPED_TRACE(random.trace());
    const auto model = random_seq2seq<T>(random);
    const index_t batch = random.integer(1, 3), beams = random.integer(1, 4),
                  src_len = random.integer(2, 9);
    Tensor2<index_t> src = random_tokens(random, batch, src_len), start({batch, 1});
    for (index_t i = random.integer(1, src_len); i < src_len; ++i) src(0, i) = 0;  // padding
    start.fill(1);
    const auto repeated = [&](index_t times) {
      Tensor2<index_t> result({batch * times, src_len});
      for (index_t b = 0; b < batch * times; ++b) {
        copy(const_view(src).slice(0, b / times, b / times + 1), result.view().slice(0, b, b + 1));
      }
      return result;
    };
    GenerationOptions options{.max_new_tokens = 16, .stop_tokens = {2}};
    for (const bool sampled : {false, true}) {
      if (sampled) options.sampling = SamplingOptions{.seed = draw};
      Seq2SeqSession<T> session(model, src, 17);
      Uncached<T> anew(batch, [&](const auto& tokens) { return model(src, tokens); });
      EXPECT_EQ(generate(session, start, options), generate(anew, start, options));
    }
    const BeamSearchOptions search{.num_beams = beams, .max_new_tokens = 12, .stop_tokens = {2}};
    const Tensor2<index_t> sources = repeated(beams);
    Seq2SeqSession<T> session(model, src, 17, beams);
    Uncached<T> anew(batch * beams, [&](const auto& tokens) { return model(sources, tokens); });
    expect_same(beam_search(session, start, search), beam_search(anew, start, search));
  }
}

static_assert(CachedDecoder<GptSession<float>> && CachedDecoder<Seq2SeqSession<double>>);
// A session refers to its model, which must not be a temporary.
static_assert(!std::constructible_from<GptSession<float>, Gpt<float>&&, index_t, index_t>);

TEST(GptSession, StartsAgainWhenCleared) {
  Random random(300);
  const auto model = random_gpt<float>(random, false);
  const Tensor2<index_t> prompt = random_tokens(random, 1, 4);
  GptSession<float> session(model, 1, 14);
  const auto first = generate(session, prompt, {.max_new_tokens = 10});
  session.clear();
  EXPECT_EQ(generate(session, prompt, {.max_new_tokens = 10}), first);
}

TEST(GptSession, RemembersWhatRowsThatSeeNothingTakeTheMeanOf) {
  Random random(301);
  GptOptions gpt = attn_test::gpt2_options(kVocab, 64);
  gpt.num_layers =
      1;  // keys must not depend on earlier queries, for which the whole sequence has more keys
  const auto model = attn_test::random_module<Gpt<double>>(random, gpt);
  Tensor2<double> minus_infinity({gpt.layer.nhead, 1});
  minus_infinity.fill(-std::numeric_limits<double>::infinity());
  const AttentionOptions<double> options{
      .mask = sliding_window(2, 0), .relative_bias = minus_infinity, .masked_row = MaskedRow::mean};
  const Tensor2<index_t> tokens = random_tokens(random, 1, 9);
  const auto whole = model(tokens, options);
  GptSession<double> session(model, 1, 9, options);
  Tensor2<double> logits({1, kVocab});
  for (index_t i = 0; i < 9; ++i) session.step(const_view(tokens).slice(1, i, i + 1), logits);
  for (index_t x = 0; x < kVocab; ++x) EXPECT_NEAR(logits(0, x), whole(0, 8, x), 1e-9);
}

TEST(GptSession, SmallCachesChangeLogitsByTheirRounding) {
  Random random(5);
  const Gpt<float> model = random_gpt<float>(random, true);
  const auto tokens = random_tokens(random, 2, 11);
  const auto logits = [&](std::optional<DType> element) {
    GptSession<float> session(model, 2, 11, {}, element);
    Tensor3<float> all({5, 2, kVocab});
    session.step(tokens.view().slice(1, 0, 7), all.view().select(0, 0));
    for (index_t i = 7; i < 11; ++i) {
      session.step(tokens.view().slice(1, i, i + 1), all.view().select(0, i - 6));
    }
    return attn_test::to_array(all);
  };
  const auto exact = logits({});
  EXPECT_EQ(attn_test::difference(logits(DType::F32), exact, 0, active_isa()), "");
  // Rounding to n bits moves a key by 2^-n of its size, int8 by 1/254 of its largest element.
  for (const auto& [element, rounding] :
       {std::pair{DType::F16, 0x1p-11}, {DType::BF16, 0x1p-8}, {DType::I8, 1.0 / 254}}) {
    const auto got = logits(element);
    const double moved = attn_test::worst(got, exact).distance;
    EXPECT_GT(moved, 0) << name(element);
    EXPECT_LT(moved, 8 * rounding * attn_test::max_abs(exact)) << name(element);
  }
}

TEST(SessionErrors, ModelsWithoutLayers) {
  const Gpt<float> gpt({.vocab_size = 5, .num_layers = 0, .layer = {.d_model = 8, .nhead = 2}});
  EXPECT_EQ(error_of<ValueError>([&] { GptSession<float>(gpt, 1, 4); }),
            "[GptSession] model must have at least one layer; found none.");
  Seq2SeqOptions options{.src_vocab_size = 5, .tgt_vocab_size = 5};
  options.transformer.layer = {.d_model = 8, .nhead = 2};
  options.transformer.num_decoder_layers = 0;
  const Seq2SeqTransformer<float> model(options);
  const Tensor2<index_t> src({1, 3});
  EXPECT_EQ(error_of<ValueError>([&] { Seq2SeqSession<float>(model, src, 4); }),
            "[Seq2SeqSession] model must have at least one layer; found none.");
}

TEST(GptSessionErrors, AFullCacheAndUnknownTokensChangeNothing) {
  Random random(301);
  const auto model = random_gpt<float>(random, false);
  GptSession<float> session(model, 1, 4), other(model, 1, 4);
  Tensor2<float> logits({1, kVocab}), expected({1, kVocab});
  const Tensor2<index_t> three({1, 3}, {1, 2, 3}), one({1, 1}, {4});
  session.step(three, logits);
  other.step(three, logits);
  EXPECT_TRUE(contains(error_of<ValueError>([&] { session.step(three, logits); }),
                       "[KvCache::append] n, beside the 3 kept"));
  EXPECT_THROW(session.step(Tensor2<index_t>({1, 1}, {kVocab}), logits), ValueError);
  EXPECT_THROW(session.step(Tensor2<index_t>({2, 1}), logits), ShapeError);
  session.step(one, logits);
  other.step(one, expected);
  EXPECT_TRUE(attn_test::same_bits(attn_test::to_array(logits), attn_test::to_array(expected)));
}

TEST(Seq2SeqSessionErrors, RowsStayWithTheirSource) {
  Random random(302);
  const auto model = random_seq2seq<float>(random);
  const Tensor2<index_t> src = random_tokens(random, 2, 3);
  Seq2SeqSession<float> session(model, src, 4, 2);
  EXPECT_EQ(error_of<ValueError>([&] {
              session.reorder(Tensor1<index_t>({4}, {1, 0, 3, 1}));
            }),
            "[Seq2SeqSession::reorder] rows(3) must lie in 2 .. 3, where its source is; found 1.");
  EXPECT_TRUE(contains(error_of<ShapeError>([&] { session.reorder(Tensor1<index_t>({2})); }),
                       "(batch) = (4); found (2)"));
  EXPECT_TRUE(contains(error_of<ValueError>([&] { Seq2SeqSession<float>(model, src, 4, 0); }),
                       "num_beams must lie in 1 .. "));
}

/// sliding_window(0, r) masks out all earlier keys: the cache needs room for the tokens of one step
/// only.
TEST(GptSession, AWindowOfNothingTakesNoRoom) {
  Random random(303);
  const auto model = random_gpt<double>(random, true);
  const Tensor2<index_t> tokens = random_tokens(random, 2, 6);
  for (const index_t right : {0, 3}) {
    const AttentionOptions<double> options{.mask = sliding_window(0, right)};
    const auto whole = model(tokens, options);
    for (const index_t n : {1, 2, 3}) {
      GptSession<double> session(model, 2, n, options);
      Tensor2<double> logits({2, kVocab});
      for (index_t i = 0; i < 6; i += n)
        session.step(const_view(tokens).slice(1, i, i + n), logits);
      for (index_t b = 0; b < 2; ++b) {
        for (index_t x = 0; x < kVocab; ++x) EXPECT_NEAR(logits(b, x), whole(b, 5, x), 1e-9);
      }
    }
  }
}

/// A step of up to the maximum number of tokens has the bits of one token at a time: with shared
/// heads or not, windows per layer, angles that depend on the length, latent attention, packed
/// weights.
TEST(GptSession, AFewTokensHaveTheBitsOfOneAtATime) {
  index_t most = 0;
  for (std::uint64_t draw = 0; draw < attn_test::draws(24); ++draw) {
    Random random(draw);
    SCOPED_TRACE(random.trace());
    GptOptions options{
        .vocab_size = kVocab,
        .num_layers = 2,
        .layer = {.d_model = 24, .nhead = 6, .dim_feedforward = 40, .norm_first = true},
        .positions = Positions::none};
    options.layer.attention.num_kv_heads = random.pick<index_t>({1, 2, 3, 6});
    options.layer.attention.rotary = RotaryOptions{.max_positions = 128};
    if (draw % 4 == 1) options.windows = {9, -1};
    if (draw % 4 == 2) {
      options.layer.attention.rotary->scaling = {
          .kind = RotaryScalingKind::dynamic, .factor = 2, .original_max_positions = 40};
    }
    if (draw % 4 == 3) {
      options.layer.latent = {
          .q_lora_rank = 9, .kv_lora_rank = 12, .head_dim = 6, .rotary_dim = 4, .head_dim_v = 5};
    }
    Gpt<float> model(options);
    randomize(model, random);
    if (random.chance(0.5)) model.pack();
    const Tensor2<index_t> tokens = random_tokens(random, 1, 100);
    GptSession<float> session(model, 1, 100), single(model, 1, 100);
    Tensor2<float> alone({1, kVocab});
    for (index_t begin = 0; begin < 100;) {
      const index_t n = session.max_decode_tokens();
      ASSERT_GE(n, 1);
      ASSERT_LE(n, 100 - begin);
      most = std::max(most, n);
      Tensor3<float> together({1, n, kVocab});
      session.step(const_view(tokens).slice(1, begin, begin + n), together);
      for (index_t i = 0; i < n; ++i) {
        single.step(const_view(tokens).slice(1, begin + i, begin + i + 1), alone);
        for (index_t x = 0; x < kVocab; ++x) ASSERT_EQ(together(0, i, x), alone(0, x)) << begin + i;
      }
      begin += n;
    }
  }
  EXPECT_EQ(most, 6);  // 12 rows: two heads share keys
  Random random(1);
  const auto model = random_gpt<float>(random, true);
  GptSession<float> session(model, 1, 9, {.mask = sliding_window(4, 0)});
  EXPECT_EQ(session.max_decode_tokens(), 1);
  EXPECT_TRUE(
      contains(error_of<ShapeError>([&] {
                 session.step(Tensor2<index_t>({1, 2}), Tensor3<float>({1, 1, kVocab}).view());
               }),
               "(batch, n, vocab_size)"));
}

TEST(Seq2SeqSessionErrors, NumbersFarAway) {
  Random random(304);
  const auto model = random_seq2seq<float>(random);
  const Tensor2<index_t> src = random_tokens(random, 2, 3);
  constexpr index_t most = std::numeric_limits<index_t>::max();
  for (const index_t beams : {most, most / 2, most / 3}) {
    EXPECT_TRUE(contains(error_of<ValueError>([&] { Seq2SeqSession<float>(model, src, 4, beams); }),
                         "[Seq2SeqSession] num_beams must lie in 1 .. "));
  }
}

/// Two calls on one session equal one call on a fresh session: the second prompt begins with the
/// last token, which has not been processed yet.
TEST(GptSession, ASecondCallContinues) {
  Random random(9);
  const auto model = random_gpt<float>(random, true);
  const Tensor2<index_t> first = random_tokens(random, 1, 4), more = random_tokens(random, 1, 3);
  GptSession<float> session(model, 1, 40), fresh(model, 1, 40);
  const std::vector<index_t> answer = generate(session, first, {.max_new_tokens = 5})[0];
  EXPECT_EQ(session.length(), 4 + 5 - 1);
  Tensor2<index_t> whole({1, 4 + 5 + 3}), next({1, 1 + 3});
  copy(first, whole.view().slice(1, 0, 4));
  for (index_t i = 0; i < 5; ++i) whole(0, 4 + i) = answer[static_cast<std::size_t>(i)];
  copy(more, whole.view().slice(1, 9, 12));
  copy(const_view(whole).slice(1, 8, 12), next.view());
  const auto continued = generate(session, next, {.max_new_tokens = 6});
  EXPECT_EQ(continued, generate(fresh, whole, {.max_new_tokens = 6}));
  session.clear();
  EXPECT_EQ(session.room(), 40);
  EXPECT_EQ(generate(session, whole, {.max_new_tokens = 6}), continued);
}

/// Checked before the first token; the session is unchanged.
TEST(GptSession, RoomForPromptAndNewTokens) {
  Random random(10);
  const auto model = random_gpt<float>(random, true);  // 64 positions
  GptSession<float> session(model, 2, 12);
  const Tensor2<index_t> prompts = random_tokens(random, 2, 5);
  const auto fails = [&](index_t max_new_tokens, std::string_view expected) {
    EXPECT_TRUE(contains(error_of<ValueError>([&] {
                           generate(session, prompts, {.max_new_tokens = max_new_tokens});
                         }),
                         expected));
  };
  fails(9,
        "[generate] the session must have room for the prompt and all new tokens but the last, "
        "5 + 8; found room for 12.");
  fails(std::numeric_limits<index_t>::max(), "[generate] the session must have room");
  EXPECT_EQ(session.length(), 0);
  EXPECT_EQ(generate(session, prompts, {.max_new_tokens = 8})[0].size(), 8u);
  EXPECT_EQ(session.room(), 0);
  fails(1, "5 + 0; found room for 0.");
  EXPECT_EQ(session.length(), 12);
  // Room for exactly the prompts.
  session.clear();
  const Tensor1<index_t> lengths({2}, {3, 4});
  EXPECT_EQ(generate(session, prompts, {.max_new_tokens = 9, .prompt_lengths = lengths}).size(),
            2u);
  session.clear();
  EXPECT_TRUE(contains(error_of<ValueError>([&] {
                         beam_search(session, prompts.view().slice(0, 0, 1),
                                     {.num_beams = 2, .max_new_tokens = 9});
                       }),
                       "[beam_search] the session must have room"));
  // Positions have an end, too; a window drops keys.
  GptSession<float> long_session(model, 1, 100),
      forgetful(model, 1, 9, {.mask = sliding_window(3, 0)});
  EXPECT_EQ(long_session.room(), 64);
  EXPECT_EQ(forgetful.room(), 64);
  EXPECT_EQ(generate(forgetful, prompts.view().slice(0, 0, 1), {.max_new_tokens = 50})[0].size(),
            50u);
  const auto translator = random_seq2seq<float>(random);  // 40 positions
  EXPECT_EQ(Seq2SeqSession<float>(translator, prompts, 17).room(), 17);
  EXPECT_EQ(Seq2SeqSession<float>(translator, prompts, 70).room(), 40);
}

}  // namespace
}  // namespace attn
