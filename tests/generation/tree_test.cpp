// Trees of drafts: every token of a tree, and what follows a kept path, has the bits of plain
// decoding.
#include <cstring>
#include <limits>

#include <gtest/gtest.h>

#include "attn/generation/generate_text.hpp"
#include "attn/generation/guided_session.hpp"

#include "support/draws/transformer_options.hpp"
#include "support/error_of.hpp"
#include "support/models/generated_text.hpp"
#include "support/models/parameters.hpp"
#include "support/models/tiny_model.hpp"

namespace attn {
namespace {

using attn_test::contains;
using attn_test::error_of;
using attn_test::Random;
using Ids = std::vector<index_t>;

constexpr index_t kTreeVocab = 23;

TensorView1<const index_t> view(const Ids& ids) { return {ids.data(), {std::ssize(ids)}}; }

/// Attention and both kinds of recurrent layers, or recurrent ones alone.
GptOptions draw_recurrent(Random& random, index_t vocab_size, index_t max_positions) {
  GptOptions options = attn_test::llama_options(vocab_size, max_positions);
  options.num_layers = 3;
  options.layer.convolution = {.width = random.integer(2, 4), .bias = random.chance(0.5)};
  options.layer.gated_delta = {.num_key_heads = 2,
                               .num_value_heads = 2 * random.integer(1, 2),
                               .key_dim = 3,
                               .value_dim = 5,
                               .width = random.integer(2, 4),
                               .norm_eps = 1e-2};
  options.mixers = {TokenMixer::gated_delta, TokenMixer::short_convolution, TokenMixer::attention};
  if (random.chance(0.3)) std::swap(options.mixers[0], options.mixers[2]);
  if (random.chance(0.3)) options.mixers.pop_back();
  return options;
}

GptOptions draw_model(Random& random) {
  const index_t kind = random.integer(0, 6);
  if (kind >= 5) return draw_recurrent(random, kTreeVocab, 120);
  GptOptions options = kind == 0 ? attn_test::gpt2_options(kTreeVocab, 120)
                                 : attn_test::llama_options(kTreeVocab, 120);
  if (kind == 2) {  // positions only by ALiBi
    options.layer.attention.rotary = {};
    options.layer.attention.alibi = true;
  }
  if (kind == 3) options.windows = {11, -1};
  if (kind == 4) {
    options.layer.attention = {.rotary = RotaryOptions{.max_positions = 120}};
    options.layer.latent = {
        .kv_lora_rank = 12, .head_dim = 6, .rotary_dim = 4, .head_dim_v = random.integer(3, 12)};
  }
  return options;
}

struct Tree {
  Ids tokens, parents, depths;

  Tree(Random& random, index_t batch, index_t n, index_t max_depth) {
    for (index_t i = 0; i < n; ++i) {
      index_t parent = random.integer(-1, i - 1);
      while (parent >= 0 && depths[static_cast<std::size_t>(parent)] + 1 >= max_depth) --parent;
      parents.push_back(parent);
      depths.push_back(parent < 0 ? 0 : depths[static_cast<std::size_t>(parent)] + 1);
    }
    for (index_t i = 0; i < batch * n; ++i) tokens.push_back(random.integer(0, kTreeVocab - 1));
  }
  /// A token and its ancestors, the first of them first.
  Ids path(index_t i) const {
    Ids result;
    for (; i >= 0; i = parents[static_cast<std::size_t>(i)]) result.insert(result.begin(), i);
    return result;
  }
};

TEST(TreeSession, EachTokenHasTheBitsOfDecodingItsPathAlone) {
  for (std::uint64_t draw = 0; draw < attn_test::draws(40); ++draw) {
    Random random(draw);
    SCOPED_TRACE(random.trace());
    auto model = attn_test::random_module<Gpt<float>>(random, draw_model(random));
    if (random.chance(0.5)) model.pack();
    const index_t batch = random.integer(1, 2);
    const auto element = random.pick<DType>({DType::F32, DType::BF16, DType::I8});
    GptSession<float> session(model, batch, 110, {}, element),
        plain(model, batch, 110, {}, element);
    Tensor2<float> last({batch, kTreeVocab}), alone({batch, kTreeVocab});
    const Tree prompt(random, batch, random.integer(1, 30), 1);
    const TensorView2<const index_t> first(prompt.tokens.data(),
                                           {batch, std::ssize(prompt.parents)});
    session.step(first, last);
    plain.step(first, alone);
    for (int step = 0; step < 4; ++step) {
      const index_t n = random.integer(1, 14), length = plain.length();
      const Tree tree(random, batch, n, session.max_decode_tokens());
      const TensorView2<const index_t> tokens(tree.tokens.data(), {batch, n});
      Tensor3<float> logits({batch, n, kTreeVocab});
      session.step_tree(tokens, view(tree.parents), logits);
      EXPECT_EQ(session.length(), length + n);
      for (index_t i = 0; i < n; ++i) {
        GptSession<float> of_path = plain;
        for (const index_t at : tree.path(i)) of_path.step(tokens.slice(1, at, at + 1), alone);
        for (index_t b = 0; b < batch; ++b) {
          ASSERT_EQ(std::memcmp(&logits(b, i, 0), &alone(b, 0), kTreeVocab * sizeof(float)), 0)
              << "token " << i << " of row " << b;
        }
      }
      const Ids kept = random.chance(0.2) ? Ids{} : tree.path(random.integer(0, n - 1));
      session.keep_path(n, view(kept));
      if (kept.empty()) continue;
      // Tokens of one step have the bits of steps of their own.
      Tensor2<index_t> accepted({batch, std::ssize(kept)});
      for (index_t i = 0; i < accepted.extent(1); ++i)
        copy(tokens.select(1, kept[static_cast<std::size_t>(i)]), accepted.view().select(1, i));
      plain.step(accepted, alone);
      ASSERT_EQ(session.length(), plain.length());
      if (random.chance(0.3)) {
        for (GptSession<float>* one : {&session, &plain}) {
          EXPECT_TRUE(one->can_truncate_to(length));
          one->truncate_to(length);
        }
      }
    }
  }
}

TEST(TreeSession, RefusesWhatItCannotVerify) {
  Random random(1);
  GptOptions options = attn_test::llama_options(kTreeVocab, 64);
  const auto model = attn_test::random_module<Gpt<float>>(random, options);
  const Ids tokens = {1, 2, 3}, parents = {-1, 0, 0};
  const auto error = [&](GptSession<float>& session, const Ids& tree) {
    Tensor3<float> logits({1, 3, kTreeVocab});
    const std::string text = error_of<ValueError>([&] {
      session.step_tree({tokens.data(), {1, 3}}, view(tree), logits);
    });
    EXPECT_EQ(session.length(), 0);
    return text;
  };
  GptSession<float> good(model, 1, 8), small(model, 1, 2),
      windowed(model, 1, 8, {.mask = sliding_window(4, 0)}),
      moved(model, 1, 8, {.offset = top_left}), dropped(model, 1, 8, {.dropout = {.p = 0.5}});
  EXPECT_EQ(error(good, {-1, 0, 2}),
            "[Gpt::forward_tree] parents(2) must lie in -1 .. 1; found 2.");
  EXPECT_TRUE(
      contains(error(small, parents), "[KvCache::append] n, beside the 0 kept in a capacity of 2"));
  EXPECT_EQ(error(windowed, parents),
            "[MultiHeadAttention] cache must have no window with parents; found one.");
  for (GptSession<float>* session : {&moved, &dropped}) {
    EXPECT_TRUE(contains(error(*session, parents), "[MultiHeadAttention] options with parents"));
  }
  EXPECT_TRUE(contains(error_of<ShapeError>([&] {
                         good.step_tree({tokens.data(), {1, 3}}, view({-1}),
                                        Tensor3<float>({1, 3, kTreeVocab}).view());
                       }),
                       "[Gpt::forward_tree] parents must have shape (n) = (3)"));
  const auto functor = score_mod([](float s, int, int, int, int) { return s; });
  auto caches = model.make_caches(1, 8);
  const auto& layer = model.blocks.layers[0];
  const Tensor3<float> x({1, 3, 24});
  const Tensor2<index_t> positions({1, 3}, {0, 1, 1});
  EXPECT_TRUE(contains(
      error_of<ValueError>([&] {
        (void)layer(x, {.mask = causal()},
                    {.position_ids = positions, .cache = &caches[0], .parents = view(parents)},
                    functor);
      }),
      "functors must be none with parents"));
  EXPECT_EQ(caches[0].length(), 0);
  EXPECT_TRUE(contains(error_of<ValueError>([&] {
                         (void)layer(x, {}, {.cache = &caches[0], .parents = view(parents)});
                       }),
                       "position_ids must be given with parents and rotary"));
  EXPECT_TRUE(
      contains(error_of<ValueError>([&] { (void)layer(x, {}, {.parents = view(parents)}); }),
               "parents must be none without a cache"));

  options.mixers = {TokenMixer::attention, TokenMixer::short_convolution};
  options.layer.convolution = {.width = 3};
  const auto recurrent = attn_test::random_module<Gpt<float>>(random, options);
  GptSession<float> states(recurrent, 1, 8);
  EXPECT_EQ(error(states, {-1, 0, 2}),
            "[Gpt::forward_tree] parents(2) must lie in -1 .. 1; found 2.");
  Tensor2<float> logits({1, kTreeVocab});
  const auto keeps_none = [&](index_t n) {
    EXPECT_EQ(error_of<ValueError>([&] { states.keep_path(n, {}); }),
              "[KvCache::keep_path] n, with a state, must be the number of tokens in the last "
              "step, a tree; found " +
                  std::to_string(n) + ".");
    for (const auto& cache : states.caches()) EXPECT_EQ(cache.length(), 3);
  };
  states.step({tokens.data(), {1, 3}}, logits);
  keeps_none(2);  // no tree
  states.clear();
  Tensor3<float> of_tree({1, 3, kTreeVocab});
  states.step_tree({tokens.data(), {1, 3}}, view(parents), of_tree);
  keeps_none(2);
  EXPECT_TRUE(contains(error_of<ValueError>([&] {
                         states.keep_path(3, view({0, 3}));
                       }),
                       "[KvCache::keep_path] path(1) must lie in 1 .. 2; found 3."));
  // A tree that has no room changes nothing, and this one can still be kept.
  Tensor3<float> of_large({1, 6, kTreeVocab});
  EXPECT_THROW(states.step_tree(Tensor2<index_t>({1, 6}), view({-1, 0, 1, 2, 3, 4}), of_large),
               ValueError);
  states.keep_path(3, view({0, 2}));
  for (const auto& cache : states.caches()) EXPECT_EQ(cache.length(), 2);
  EXPECT_TRUE(contains(error_of<ValueError>([&] {
                         (void)recurrent.blocks.layers[1](x, {.mask = causal()},
                                                          {.parents = view(parents)});
                       }),
                       "[ShortConvolution] parents must be none without a cache; found some."));
}

TEST(TreeLayers, NeedACausalMask) {
  Random random(2);
  const auto x = random.tensor<float, 3>({1, 4, 24});
  const Ids parents = {-1, 0, 1, 0};
  const Tensor2<index_t> positions({1, 4}, {0, 1, 2, 1});
  for (const bool is_latent : {false, true}) {
    GptOptions options = attn_test::llama_options(kTreeVocab, 64);
    if (is_latent) {
      options.layer.attention = {.rotary = RotaryOptions{.max_positions = 64}};
      options.layer.latent = {.kv_lora_rank = 12, .head_dim = 6, .rotary_dim = 4, .head_dim_v = 5};
    } else {  // the causal mask cuts the right half of a symmetric window
      options.layer.attention.window = 1;
      options.layer.attention.symmetric_window = true;
    }
    const auto model = attn_test::random_module<Gpt<float>>(random, options);
    auto caches = model.make_caches(1, 8), alone = model.make_caches(1, 8);
    Tensor3<float> out({1, 4, 24}), row({1, 1, 24});
    const auto run = [&](const Mask& mask) {
      model.blocks.forward_tree(x, out, {.mask = mask}, positions, caches, view(parents));
    };
    for (const Mask& mask : {Mask(), sliding_window(-1, 2), chunked(3)}) {
      EXPECT_EQ(error_of<ValueError>([&] { run(mask); }),
                std::string(is_latent ? "[LatentAttention]" : "[MultiHeadAttention]") +
                    " options with parents must have a causal mask, because tokens see only their "
                    "ancestors; found none.");
      for (const KvCache<float>& cache : caches) EXPECT_EQ(cache.length(), 0);
    }
    for (const Mask& mask : {causal(), sliding_window(2, 0), causal() & sliding_window(-1, 2)}) {
      run(mask);
      for (KvCache<float>& cache : caches) cache.clear();
      for (const Ids& path : {Ids{0, 1, 2}, Ids{0, 3}}) {
        for (const index_t at : path) {
          model.blocks.forward(x.view().slice(1, at, at + 1), row, {.mask = mask},
                               positions.view().slice(1, at, at + 1), alone);
          EXPECT_EQ(std::memcmp(&row(0, 0, 0), &out(0, at, 0), 24 * sizeof(float)), 0);
        }
        for (KvCache<float>& cache : alone) cache.clear();
      }
    }
  }
}

TEST(TreeText, DraftsChangeNoBit) {
  const LanguageModel model = attn_test::tiny_language_model(),
                      small = attn_test::tiny_language_model(ActivationFormat::exact, 8);
  index_t accepted = 0;
  for (std::uint64_t draw = 0; draw < attn_test::draws(25); ++draw) {
    Random random(draw);
    SCOPED_TRACE(random.trace());
    Ids prompt;
    for (index_t i = random.integer(1, 40); i > 0; --i) prompt.push_back(random.integer(0, 20));
    TextGenerationOptions options{.max_new_tokens = random.integer(1, 60),
                                  .log_probabilities = true};
    if (random.chance(0.3)) options.logits.repetition_penalty = 1.2;
    if (random.chance(0.4)) options.sampling = SamplingOptions{.temperature = 0.4, .seed = draw};
    if (random.chance(0.4)) options.keep = 2;
    const index_t capacity = random.integer(41, 100);
    const bool has_states = random.chance(0.4), draft_has_states = random.chance(0.4);
    const auto of_states = attn_test::random_module<Gpt<float>>(
        random, draw_recurrent(random, model.gpt().vocab_size(), 120));
    const Gpt<float>& gpt = has_states ? of_states : model.gpt();
    GptSession<float> session(gpt, 1, capacity),
        draft(draft_has_states ? of_states : small.gpt(), 1, capacity), same(gpt, 1, capacity);
    const GeneratedText plain = generate_text(model, session, prompt, options);
    DraftModel<float> by_other(draft, random.integer(1, 3)), by_itself(same, random.integer(1, 2));
    // Trees of any shape, in any order, of which some tokens are right.
    const auto oracle = [&](std::span<const index_t> ids, index_t most) {
      const index_t done = std::ssize(ids) - std::ssize(prompt);
      DraftTree tree;
      Ids depths;
      for (index_t i = random.integer(0, 20); i > 0; --i) {
        const index_t parent = random.integer(-1, tree.size() - 1);
        const index_t depth = parent < 0 ? 0 : depths[static_cast<std::size_t>(parent)] + 1;
        if (depth >= most) continue;
        const bool is_right = random.chance(0.5) && done + depth < std::ssize(plain.ids);
        tree.tokens.push_back(is_right ? plain.ids[static_cast<std::size_t>(done + depth)]
                                       : random.integer(0, 261));
        tree.parents.push_back(parent);
        depths.push_back(depth);
      }
      return tree;
    };
    for (const Draft& one :
         {Draft(PromptLookup(3, 4)), Draft(std::ref(by_other)), Draft(std::ref(by_itself)),
          options.keep ? Draft(PromptLookup(1, 2)) : Draft(oracle)}) {
      options.draft = one;
      session.clear();
      const GeneratedText found = generate_text(model, session, prompt, options);
      attn_test::expect_same(found, plain);
      EXPECT_EQ(session.length(), std::ssize(found.context) - 1);
      EXPECT_LE(found.accepted, found.drafted);
      accepted += found.accepted;
    }
  }
  EXPECT_GT(accepted, 100);
}

TEST(TreeGenerate, DraftsChangeNoBit) {
  index_t steps = 0, tokens = 0;
  for (std::uint64_t draw = 0; draw < attn_test::draws(25); ++draw) {
    Random random(draw);
    SCOPED_TRACE(random.trace());
    const auto options_of_model = draw_model(random);
    const auto model = attn_test::random_module<Gpt<float>>(random, options_of_model);
    const auto small = attn_test::random_module<Gpt<float>>(random, options_of_model);
    const Tree ids(random, 1, random.integer(1, 30), 1);
    const TensorView2<const index_t> prompt(ids.tokens.data(), {1, std::ssize(ids.tokens)});
    GenerationOptions options{.max_new_tokens = random.integer(1, 60)};
    const Tensor1<index_t> length({1}, {random.integer(1, prompt.extent(1))});
    if (random.chance(0.3)) options.prompt_lengths = length;
    if (random.chance(0.3)) options.min_new_tokens = random.integer(0, options.max_new_tokens);
    if (random.chance(0.5)) options.stop_tokens = {random.integer(0, kTreeVocab - 1)};
    if (random.chance(0.5)) options.sampling = SamplingOptions{.temperature = 0.4, .seed = draw};
    if (random.chance(0.3)) options.forced_tokens = {random.integer(0, kTreeVocab - 1)};
    if (random.chance(0.3)) {
      options.logit_processor = [](TensorView1<float> scores, std::span<const index_t> known) {
        scores(known.back()) += float(std::ssize(known) % 3);
      };
    }
    GptSession<float> plain(model, 1, 110), session(model, 1, 110), same(model, 1, 110),
        other(small, 1, 110);
    const std::vector<Ids> expected = generate(plain, prompt, options);
    DraftModel<float> by_itself(same, random.integer(1, 2)), by_other(other, 2);
    Tensor2<float> next({1, kTreeVocab}), alone(next.shape());
    const TensorView2<const index_t> last(&expected[0].back(), {1, 1});
    plain.step(last, alone);
    for (const Draft& one :
         {Draft(PromptLookup(3, 4)), Draft(std::ref(by_itself)), Draft(std::ref(by_other))}) {
      options.draft = [&](std::span<const index_t> known, index_t most) {
        ++steps;
        return one(known, most);
      };
      session.clear();
      EXPECT_EQ(generate(session, prompt, options), expected);
      tokens += std::ssize(expected[0]);
      ASSERT_EQ(session.length() + 1, plain.length());
      session.step(last, next);
      EXPECT_EQ(std::memcmp(next.data(), alone.data(), kTreeVocab * sizeof(float)), 0);
    }
  }
  EXPECT_LT(steps, tokens * 9 / 10);
}

TEST(TreeGenerate, RefusesDraftsThatASessionCannotVerify) {
  Random random(1);
  const auto model = attn_test::random_module<Gpt<float>>(random, draw_model(random));
  GptSession<float> two(model, 2, 20), one(model, 1, 20), other(model, 1, 20);
  GuidedSession guided(one, other, {});
  const GenerationOptions options{.max_new_tokens = 3, .draft = PromptLookup(2)};
  EXPECT_EQ(error_of<ValueError>([&] {
              generate(guided, Tensor2<index_t>({1, 2}), options);
            }),
            "[generate] draft must be empty for a session that has no step_tree(); found a "
            "function.");
  EXPECT_EQ(error_of<ValueError>([&] {
              generate(two, Tensor2<index_t>({2, 2}), options);
            }),
            "[generate] the session's batch with a draft must lie in 1 .. 1; found 2.");
  EXPECT_EQ(two.length(), 0);
}

TEST(TreeText, CallbacksMustNotChangeTheSession) {
  const LanguageModel model = attn_test::tiny_language_model();
  const Ids prompt = {1, 2};
  for (const bool has_draft : {false, true}) {
    GptSession<float> session(model.gpt(), 1, 64);
    TextGenerationOptions options{.max_new_tokens = 6};
    const GeneratedText plain = generate_text(model, session, prompt, options);
    if (has_draft) options.draft = [](auto, index_t) { return DraftTree(Ids{1}); };
    Tensor2<float> logits({1, session.vocab_size()});
    const auto run = [&](const auto& change) {
      session.clear();
      options.logit_processor = [&](auto, std::span<const index_t> ids) {
        if (ids.size() == prompt.size() + 2) change();
      };
      return generate_text(model, session, prompt, options);
    };
    const auto lengthen = [&] { session.step({prompt.data(), {1, 2}}, logits); };
    EXPECT_TRUE(contains(error_of<ValueError>([&] { run(lengthen); }),
                         "[generate_text] the session's length after callbacks must lie in"));
    const auto clear = [&] { session.clear(); };
    if (has_draft) {
      EXPECT_TRUE(contains(error_of<ValueError>([&] { run(clear); }), "the session's length"));
    } else {  // reads all tokens again
      EXPECT_EQ(run(clear).ids, plain.ids);
    }
    EXPECT_THROW(run([&] {
                   session.clear();
                   throw std::out_of_range("the callback's own");
                 }),
                 std::out_of_range);
  }
}

TEST(TreeText, DraftsMustNotChangeTheSession) {
  const LanguageModel model = attn_test::tiny_language_model();
  const Tensor2<index_t> prompt({1, 2}, {1, 2});
  GptSession<float> session(model.gpt(), 1, 64);
  Tensor2<float> logits({1, session.vocab_size()});
  const std::function<void()> changes[] = {[&] { session.clear(); },
                                           [&] { session.truncate_to(1); },
                                           [&] { session.step(prompt, logits); }};
  for (const auto& change : changes) {
    for (const DraftTree& proposed : {DraftTree(), DraftTree(Ids{1})}) {
      const Draft draft = [&](auto, index_t) {
        change();
        return proposed;
      };
      session.clear();
      EXPECT_TRUE(contains(error_of<ValueError>([&] {
                             generate(session, prompt, {.max_new_tokens = 6, .draft = draft});
                           }),
                           "[generate] the session's length after callbacks must lie in 2 .. 2"));
      session.clear();
      TextGenerationOptions options{.max_new_tokens = 6};
      options.draft = draft;
      EXPECT_TRUE(contains(
          error_of<ValueError>([&] { generate_text(model, session, prompt.elements(), options); }),
          "[generate_text] the session's length after callbacks must lie in 2 .. 2"));
    }
  }
}

TEST(TreeText, RefusesTreesThatAreNone) {
  const LanguageModel model = attn_test::tiny_language_model();
  const auto error = [&](Ids tokens, Ids parents) {
    GptSession<float> session(model.gpt(), 1, 64);
    TextGenerationOptions options{.max_new_tokens = 30};
    options.draft = [&](std::span<const index_t>, index_t) {
      DraftTree tree;
      tree.tokens = tokens, tree.parents = parents;
      return tree;
    };
    return error_of<ValueError>([&] { generate_text(model, session, Ids{1, 2}, options); });
  };
  EXPECT_TRUE(contains(error({1, 2}, {-1}),
                       "the number of parents of a draft must lie in 2 .. 2; found 1"));
  EXPECT_EQ(error({1, 2}, {-1, 1}),
            "[generate_text: draft] parents(1) must lie in -1 .. 0; found 1.");
  EXPECT_TRUE(contains(error(Ids(30, 1), DraftTree(Ids(30, 1)).parents),
                       "the number of drafted tokens in a row"));
  GptSession<float> session(model.gpt(), 1, 64);
  EXPECT_TRUE(contains(error_of<ValueError>([&] { DraftModel<float>(session, 0); }), "width"));
  EXPECT_TRUE(contains(error_of<ValueError>([] { PromptLookup(2, 0); }), "continuations"));
}

TEST(TreeDraft, PromptLookupJoinsContinuations) {
  const Ids ids = {1, 2, 3, 4, 9, 2, 3, 5, 1, 2, 3};
  const auto tree = [](Ids tokens, Ids parents) {
    DraftTree result;
    result.tokens = std::move(tokens), result.parents = std::move(parents);
    return result;
  };
  EXPECT_EQ(PromptLookup(3, 1)(ids, 2), (Ids{4, 9}));
  constexpr index_t kAny = std::numeric_limits<index_t>::max();
  EXPECT_EQ(PromptLookup(3, 1)(ids, kAny), (Ids{4, 9, 2, 3, 5, 1, 2, 3}));
  EXPECT_EQ(PromptLookup(3, 2)(ids, 2), tree({4, 9, 5, 1}, {-1, 0, -1, 2}));
  EXPECT_EQ(PromptLookup(2, 5)(ids, 2), tree({5, 1, 4, 9}, {-1, 0, -1, 2}));
  // Equal beginnings are joined; a continuation that adds nothing does not count.
  EXPECT_EQ(PromptLookup(1, 2)(Ids{7, 1, 2, 7, 1, 3, 7, 1, 3, 7}, 2), tree({1, 3, 2}, {-1, 0, 0}));
}

TEST(TreeDraft, WidthTakesTheMostProbableOfEachDepth) {
  Random random(3);
  const auto model =
      attn_test::random_module<Gpt<double>>(random, attn_test::gpt2_options(kTreeVocab, 64));
  const Ids ids = {4, 7, 1};
  constexpr index_t kWidth = 3, kDepth = 3;
  GptSession<double> session(model, 1, 40);
  const DraftTree found = DraftModel<double>(session, kWidth)(ids, kDepth);
  // The same search, with all tokens recomputed for each candidate.
  std::vector<std::pair<double, Ids>> level = {{0.0, {}}};
  std::vector<Ids> expected;
  for (index_t depth = 0; depth < kDepth; ++depth) {
    std::vector<std::pair<double, Ids>> next;
    for (const auto& [score, path] : level) {
      Ids all = ids;
      all.insert(all.end(), path.begin(), path.end());
      const auto logits = model(TensorView2<const index_t>(all.data(), {1, std::ssize(all)}));
      double sum = 0;
      for (index_t x = 0; x < kTreeVocab; ++x) sum += std::exp(logits(0, std::ssize(all) - 1, x));
      for (index_t x = 0; x < kTreeVocab; ++x) {
        Ids longer = path;
        longer.push_back(x);
        next.emplace_back(score + logits(0, std::ssize(all) - 1, x) - std::log(sum), longer);
      }
    }
    std::sort(next.begin(), next.end(),
              [](const auto& a, const auto& b) { return a.first > b.first; });
    next.resize(kWidth);
    for (const auto& one : next) expected.push_back(one.second);
    level = next;
  }
  std::vector<Ids> paths;
  for (index_t i = 0; i < found.size(); ++i) {
    Ids path;
    for (index_t at = i; at >= 0; at = found.parents[static_cast<std::size_t>(at)])
      path.insert(path.begin(), found.tokens[static_cast<std::size_t>(at)]);
    paths.push_back(path);
  }
  EXPECT_EQ(paths, expected);
  EXPECT_EQ(session.length(), std::ssize(ids));
}

}  // namespace
}  // namespace attn
