// Gpt: against composed references, and step by step, in the shapes of GPT-2 and Llama.
#include "attn/models/gpt.hpp"

#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "support/draws/transformer_options.hpp"
#include "support/error_of.hpp"
#include "support/isas.hpp"
#include "support/models/steps.hpp"
#include "support/placed.hpp"
#include "support/references/reference_transformer.hpp"

namespace attn {
namespace {

using attn_test::available_isas;
using attn_test::difference;
using attn_test::error_of;
using attn_test::gpt2_options;
using attn_test::llama_options;
using attn_test::Order;
using attn_test::Random;
using attn_test::random_module;
using attn_test::ReferenceOptions;
using attn_test::ReferenceTransformer;
using attn_test::to_array;

TEST(Gpt, LogitsScaledAndCapped) {
  Random random(1), again(1);
  GptOptions options = gpt2_options(19, 16);
  const auto plain = random_module<Gpt<float>>(random, options);
  options.logit_scale = 3;
  options.logit_softcap = 2.5;
  const auto capped = random_module<Gpt<float>>(again, options);
  const Tensor2<int> ids({1, 4}, {1, 7, 18, 0});
  const auto logits = plain(ids), found = capped(ids);
  for (index_t i = 0; i < logits.size(); ++i) {
    EXPECT_NEAR(found.data()[i], 2.5 * std::tanh(3 * logits.data()[i] / 2.5), 1e-6);
  }
  options.logit_softcap = -1;
  EXPECT_NE(error_of<ValueError>([&] { Gpt<float>{options}; }).find("found 3 and -1"),
            std::string::npos);
}

TEST(Gpt, WholeAndStepByStep) {
  Random random(1);
  Tensor2<int> ids({2, 11});
  for (int& id : ids.elements()) id = static_cast<int>(random.integer(0, 18));
  for (const GptOptions& options : {gpt2_options(19, 16), llama_options(19, 16)}) {
    auto gpt = random_module<Gpt<float>>(random, options);
    ReferenceOptions masks;
    masks.causal = true;
    const auto reference = [&]<class W>(W, Order order) {
      const ReferenceTransformer<W> model{attn_test::parameters_of<W>(gpt), options.layer, order,
                                          attn_test::counted_positions(2, 11)};
      const auto x = to_array(gpt.embedding(ids)).template as<W>();
      const auto table = options.tied ? "embedding.words.weight" : "lm_head.weight";
      return attn_test::reference_linear(model.encoder("blocks.", x, masks), model.get(table), {},
                                         order);
    };
    const auto exact = reference(double{}, Order::forward);
    const double bound = attn_test::module_bound<float>(reference, exact);
    for (const bool packed : {false, true}) {
      if (packed) gpt.pack();
      for (Isa isa : available_isas()) {
        const AttentionOptions<float> on{.execution = {.isa = isa}};
        const Tensor3<float> logits = gpt(ids, on);
        EXPECT_EQ(difference(to_array(logits), exact, bound, isa, "whole"), "");
        Tensor3<float> last({2, 1, 19});
        gpt.forward(ids, last, on);
        EXPECT_EQ(difference(to_array(last.view().select(1, 0)),
                             to_array(logits.view().select(1, 10)), bound, isa, "last"),
                  "");
        auto caches = gpt.make_caches(2, 11);
        const auto steps = attn_test::by_steps(
            ids, [&](const Tensor2<int>& some, bool) { return gpt(some, on, caches); });
        EXPECT_EQ(difference(steps, exact, bound, isa, "steps"), "");
      }
    }
  }
}

/// Two packed prompts, then more of the second: positions restart in each prompt.
TEST(Gpt, PackedSequencesGoOnBehindCaches) {
  Random random(7);
  Tensor2<int> first({1, 5}), second({1, 6});
  for (auto* ids : {&first, &second}) {
    for (int& id : ids->elements()) id = static_cast<int>(random.integer(0, 18));
  }
  const Tensor1<index_t> of_first({2}, {0, 5}), none_then_four({3}, {0, 0, 4}),
      none_then_two({3}, {0, 0, 2}), held({3}, {0, 5, 9}), all({3}, {0, 5, 11});
  for (const GptOptions& options : {gpt2_options(19, 6), llama_options(19, 6)}) {
    const auto gpt = random_module<Gpt<float>>(random, options);
    const auto alone = gpt(first), next = gpt(second);
    auto caches = gpt.make_caches(1, 11);
    Tensor3<float> five({1, 5, 19}), four({1, 4, 19}), two({1, 2, 19});
    gpt.forward(first, five, {.cu_seqlens_q = of_first, .cu_seqlens_k = of_first}, caches);
    gpt.forward(second.view().slice(1, 0, 4), four,
                {.cu_seqlens_q = none_then_four, .cu_seqlens_k = held}, caches);
    gpt.forward(second.view().slice(1, 4, 6), two,
                {.cu_seqlens_q = none_then_two, .cu_seqlens_k = all}, caches);
    EXPECT_EQ(attn_test::unlike(five, alone), "");
    EXPECT_EQ(attn_test::unlike(four, Tensor3<float>(next.view().slice(1, 0, 4))), "");
    EXPECT_EQ(attn_test::unlike(two, Tensor3<float>(next.view().slice(1, 4, 6))), "");
  }
}

TEST(Gpt, EveryLayerTakesFunctors) {
  Random random(4);
  const auto gpt = random_module<Gpt<float>>(random, gpt2_options(19, 16));
  const Tensor2<int> ids({1, 6}, {3, 1, 4, 1, 5, 9});
  const auto near = mask_mod([](int, int, int i, int j) { return i - j <= 2; });
  EXPECT_EQ(to_array(gpt(ids, {}, {}, {}, near)).data,
            to_array(gpt(ids, {.mask = sliding_window(2, -1)})).data);
}

TEST(Gpt, LaterTokensChangeNothing) {
  Random random(2);
  const auto gpt = random_module<Gpt<float>>(random, gpt2_options(19, 16));
  const Tensor2<int> ids({1, 5}, {1, 2, 3, 4, 5}), other({1, 5}, {1, 2, 3, 9, 18});
  const Tensor3<float> a = gpt(ids), b = gpt(other);
  EXPECT_EQ(to_array(a.view().slice(1, 0, 3)).data, to_array(b.view().slice(1, 0, 3)).data);
  EXPECT_NE(to_array(a).data, to_array(b).data);
}

TEST(Gpt, ParametersByName) {
  const auto names = [](const GptOptions& options) {
    std::vector<std::string> result;
    Gpt<float>(options).visit_parameters([&](std::string_view name, auto) {
      if (name.find(".1.") == name.npos) result.emplace_back(name);
    });
    return result;
  };
  EXPECT_EQ(
      names(llama_options(19, 16)),
      (std::vector<std::string>{
          "embedding.words.weight", "blocks.layers.0.self_attn.q_proj_weight",
          "blocks.layers.0.self_attn.k_proj_weight", "blocks.layers.0.self_attn.v_proj_weight",
          "blocks.layers.0.self_attn.out_proj.weight", "blocks.layers.0.self_attn.q_norm.weight",
          "blocks.layers.0.self_attn.k_norm.weight", "blocks.layers.0.gate_proj.weight",
          "blocks.layers.0.up_proj.weight", "blocks.layers.0.down_proj.weight",
          "blocks.layers.0.norm1.weight", "blocks.layers.0.norm2.weight", "blocks.norm.weight",
          "lm_head.weight"}));
  EXPECT_EQ(names(gpt2_options(19, 16)).at(1), "embedding.positions.weight");
  EXPECT_EQ(names(gpt2_options(19, 16)).back(), "blocks.norm.bias");
}

TEST(GptErrors, ShapesPositionsAndRoom) {
  const Gpt<float> gpt(gpt2_options(19, 16));
  const Tensor2<int> ids({1, 3}), too_long({1, 17});
  Tensor3<float> two({1, 2, 19}), y({1, 3, 19}), long_y({1, 17, 19});
  EXPECT_EQ(error_of<ShapeError>([&] { gpt.forward(ids, two); }),
            "[Gpt] out must have shape (1, 3, 19); found (1, 2, 19).");
  EXPECT_EQ(error_of<ValueError>([&] { gpt.forward(too_long, long_y); }),
            "[InputEmbedding] positions must lie in 0 .. 15; found 0 and 16 after it.");
  auto caches = gpt.make_caches(1, 4);
  gpt.forward(ids, y, {}, caches);
  EXPECT_THROW(gpt.forward(ids, y, {}, caches), ValueError);
  EXPECT_EQ(caches[0].length(), 3);
}

TEST(GptErrors, UnlikeCachesStayAsTheyAre) {
  const Gpt<float> gpt(gpt2_options(19, 16));
  const Tensor2<int> ids({1, 3}), two({1, 2});
  Tensor3<float> y({1, 3, 19}), z({1, 2, 19});
  for (const bool first_is_longer : {false, true}) {
    auto caches = gpt.make_caches(1, 8), longer = caches;
    gpt.forward(ids, y, {}, caches);
    gpt.forward(ids, y, {}, longer);
    gpt.forward(two, z, {}, longer);
    std::swap(caches[first_is_longer ? 0 : 1], longer[0]);
    EXPECT_TRUE(
        attn_test::contains(error_of<ValueError>([&] { gpt.forward(two, z, {}, caches); }),
                            "[Encoder] caches must hold the same positions with the same room"));
    EXPECT_EQ(caches[0].length(), first_is_longer ? 5 : 3);
    EXPECT_EQ(caches[1].length(), first_is_longer ? 3 : 5);
  }
}

/// The projection to logits throws last; with a window, the keys of the next step are still cached.
TEST(GptErrors, OfTheLogitsLeaveTheCaches) {
  Random random(8);
  auto gpt = random_module<Gpt<float>>(random, gpt2_options(19, 16));
  const AttentionOptions<float> options{.mask = sliding_window(2, 0)};
  const Tensor2<int> ids({1, 3}, {1, 2, 3}), next({1, 1}, {4});
  Tensor3<float> y({1, 3, 19}), logits({1, 1, 19}), expected({1, 1, 19});
  auto caches = gpt.make_caches(1, 5, 2);
  gpt.forward(ids, y, options, caches);
  auto others = caches;
  gpt.forward(next, expected, options, others);
  const OutputProjection<float> kept = gpt.lm_head;
  gpt.lm_head = OutputProjection<float>(15, 19, false);
  EXPECT_THROW(gpt.forward(next, logits, options, caches), ShapeError);
  for (const KvCache<float>& cache : caches) EXPECT_EQ(cache.length(), 3);
  gpt.lm_head = kept;
  gpt.forward(next, logits, options, caches);
  EXPECT_TRUE(attn_test::same_bits(to_array(logits), to_array(expected)));
}

/// Learned positions with rotary must be explicit.
TEST(GptErrors, RotaryWithoutAWordOnPositions) {
  GptOptions options{.vocab_size = 9, .num_layers = 1, .layer = {.d_model = 8, .nhead = 2}};
  EXPECT_TRUE(Gpt<float>(options).embedding.positions.weight);
  options.layer.attention.rotary = RotaryOptions{};
  EXPECT_TRUE(attn_test::contains(error_of<ValueError>([&] { Gpt<float>{options}; }),
                                  "[Gpt] positions must be given with layer.attention.rotary"));
  options.positions = Positions::learned;
  EXPECT_TRUE(Gpt<float>(options).embedding.positions.weight);
  options.positions = Positions::none;
  EXPECT_FALSE(Gpt<float>(options).embedding.positions.weight);
}

}  // namespace
}  // namespace attn
