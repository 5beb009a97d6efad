// Seq2SeqTransformer: against composed parts, padding, and decoding step by step.
#include "attn/models/seq2seq_transformer.hpp"

#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "support/error_of.hpp"
#include "support/models/steps.hpp"
#include "support/references/reference_transformer.hpp"

namespace attn {
namespace {

using attn_test::difference;
using attn_test::error_of;
using attn_test::near;
using attn_test::Random;
using attn_test::to_array;

Seq2SeqOptions seq2seq_options(bool tied) {
  return {.src_vocab_size = 11,
          .tgt_vocab_size = 13,
          .transformer = {.layer = {.d_model = 16, .nhead = 2, .dim_feedforward = 24},
                          .num_encoder_layers = 2,
                          .num_decoder_layers = 2},
          .positions = tied ? Positions::learned : Positions::sinusoidal,
          .max_positions = 10,
          .scale_embedding = !tied,
          .embedding_norm = tied,
          .tied = tied,
          .output_bias = !tied,
          .pad_id = 0};
}

TEST(Seq2SeqTransformer, IsEmbeddingTransformerAndProjection) {
  Random random(1);
  const Tensor2<int> src({2, 5}, {3, 7, 1, 10, 2, 4, 4, 9, 0, 0});
  const Tensor2<std::int64_t> tgt({2, 4}, {1, 12, 5, 6, 1, 3, 0, 0});
  for (const bool tied : {false, true}) {
    Seq2SeqTransformer<float> module(seq2seq_options(tied));
    attn_test::randomize(module, random);
    const Tensor2<bool> src_pad = find_padding(src, 0), tgt_pad = find_padding(tgt, 0);
    const AttentionOptions<float> hides_src{.mask = key_padding_mask(src_pad)};
    const Tensor3<float> decoded =
        module.transformer(module.src_embedding(src), module.tgt_embedding(tgt),
                           {.src = hides_src,
                            .tgt = {.mask = causal() & key_padding_mask(tgt_pad)},
                            .memory = hides_src});
    Tensor3<float> expected({2, 4, 13});
    module.generator.forward(decoded, module.tgt_embedding.words, expected);
    if (tied) {
      EXPECT_EQ(to_array(linear(decoded, module.tgt_embedding.words.weight)).data,
                to_array(expected).data);
    }
    const auto logits = to_array(module(src, tgt));
    EXPECT_EQ(logits.data, to_array(expected).data);
    module.pack();
    EXPECT_EQ(difference(to_array(module(src, tgt)), logits, near(logits), active_isa()), "");
  }
}

TEST(Seq2SeqTransformer, PaddingChangesNothing) {
  Random random(2);
  Seq2SeqTransformer<float> module(seq2seq_options(false));
  attn_test::randomize(module, random);
  const Tensor2<int> src({1, 3}, {3, 7, 1}), longer({1, 6}, {3, 7, 1, 0, 0, 0});
  const Tensor2<int> tgt({1, 2}, {1, 12}), tgt_longer({1, 4}, {1, 12, 0, 0});
  const auto expected = to_array(module(src, tgt));
  const Tensor3<float> padded = module(longer, tgt_longer);
  EXPECT_EQ(
      difference(to_array(padded.view().slice(1, 0, 2)), expected, near(expected), active_isa()),
      "");
}

TEST(Seq2SeqTransformer, StepByStepGivesTheWhole) {
  Random random(3);
  const Tensor2<int> src({2, 5}, {3, 7, 1, 10, 2, 4, 4, 9, 0, 0});
  const Tensor2<int> tgt({2, 7}, {1, 12, 5, 6, 2, 2, 3, 1, 3, 4, 4, 5, 9, 11});
  for (const bool tied : {false, true}) {
    Seq2SeqTransformer<float> module(seq2seq_options(tied));
    attn_test::randomize(module, random);
    const auto whole = to_array(module(src, tgt));
    Tensor3<float> memory({2, 5, 16});
    module.encode(src, memory);
    auto caches = module.make_caches(2, 7, 5);
    const auto steps = attn_test::by_steps(tgt, [&](const Tensor2<int>& ids, bool) {
      Tensor3<float> out({2, ids.extent(1), 13});
      module.decode(ids, memory, src, out, caches);
      return out;
    });
    EXPECT_EQ(difference(steps, whole, near(whole), active_isa(), "steps"), "");
    Tensor3<float> last({2, 1, 13});
    module.decode(tgt, memory, src, last);
    EXPECT_EQ(difference(to_array(last.view().select(1, 0)),
                         to_array(Tensor3<float>(whole.view<3>()).view().select(1, 6)), near(whole),
                         active_isa(), "last"),
              "");
  }
}

TEST(Seq2SeqTransformer, ParametersByName) {
  const auto names = [](bool tied) {
    std::vector<std::string> result;
    Seq2SeqTransformer<float>(seq2seq_options(tied))
        .visit_parameters([&](std::string_view name, auto) {
          if (name.find("layers") == name.npos) result.emplace_back(name);
        });
    return result;
  };
  EXPECT_EQ(names(false), (std::vector<std::string>{
                              "src_embedding.words.weight", "tgt_embedding.words.weight",
                              "transformer.encoder.norm.weight", "transformer.encoder.norm.bias",
                              "transformer.decoder.norm.weight", "transformer.decoder.norm.bias",
                              "generator.weight", "generator.bias"}));
  EXPECT_EQ(names(true).back(), "transformer.decoder.norm.bias");
}

TEST(Seq2SeqTransformerErrors, IdsAndShapes) {
  const Seq2SeqTransformer<float> module(seq2seq_options(false));
  const Tensor2<int> src({1, 2}, {1, 2}), unknown({1, 2}, {1, 11}), too_long({1, 11});
  Tensor3<float> y({1, 2, 13}), wrong({1, 2, 11});
  y.fill(7);
  EXPECT_EQ(error_of<ValueError>([&] { module.forward(unknown, src, y); }),
            "[InputEmbedding] ids(0, 1) must lie in 0 .. 10; found 11.");
  EXPECT_THROW(module.forward(too_long, src, y), ValueError);
  EXPECT_EQ(error_of<ShapeError>([&] { module.forward(src, src, wrong); }),
            "[Seq2SeqTransformer] out must have shape (1, 2, 13); found (1, 2, 11).");
  EXPECT_TRUE(attn_test::all_are(y, 7));
}

TEST(Seq2SeqTransformerErrors, UnlikeCachesStayAsTheyAre) {
  const Seq2SeqTransformer<float> module(seq2seq_options(false));
  const Tensor2<int> src({1, 2}, {1, 2});
  const Tensor3<float> memory({1, 2, 16});
  Tensor3<float> y({1, 2, 13});
  for (const std::size_t longer : {0u, 1u}) {
    auto caches = module.make_caches(1, 4, 2), used = caches;
    module.decode(src, memory, src, y, used);
    caches[longer] = used[longer];
    EXPECT_THROW(module.decode(src, memory, src, y, caches), ValueError);
    for (const std::size_t layer : {0u, 1u}) {
      EXPECT_EQ(caches[layer].self.length(), layer == longer ? 2 : 0);
      EXPECT_EQ(caches[layer].memory.length(), layer == longer ? 2 : 0);
    }
  }
}

TEST(Seq2SeqTransformerErrors, OfTheLogitsLeaveTheCaches) {
  Seq2SeqTransformer<float> module(seq2seq_options(false));
  const Tensor2<int> src({1, 2}, {1, 2});
  const Tensor3<float> memory({1, 2, 16});
  Tensor3<float> y({1, 2, 13});
  auto caches = module.make_caches(1, 4, 2);
  module.generator = OutputProjection<float>(15, 13, false);
  EXPECT_THROW(module.decode(src, memory, src, y, caches), ShapeError);
  for (const auto& cache : caches) {
    EXPECT_EQ(cache.self.length(), 0);
    EXPECT_EQ(cache.memory.length(), 0);
  }
}

TEST(Seq2SeqTransformer, TiedLogitsHaveTheirBias) {
  Seq2SeqOptions options = seq2seq_options(true);
  const Tensor2<int> src({1, 2}, {3, 7}), tgt({1, 2}, {1, 12});
  Random with(5), without(5);
  auto plain = attn_test::random_module<Seq2SeqTransformer<float>>(without, options);
  options.output_bias = true;
  auto module = attn_test::random_module<Seq2SeqTransformer<float>>(with, options);
  const auto names = attn_test::names_and_shapes_of(module);
  EXPECT_EQ(names.back(), "generator.bias(13)");
  EXPECT_EQ(names.size(), attn_test::names_of(plain).size() + 1);
  std::vector<float> bias;
  std::as_const(module).visit_parameters([&](std::string_view name, const auto& view) {
    if (name == "generator.bias") bias.assign(view.data(), view.data() + view.size());
  });
  const Tensor3<float> logits = module(src, tgt), unbiased = plain(src, tgt);
  for (index_t i = 0; i < 2; ++i) {
    for (index_t x = 0; x < 13; ++x) {
      EXPECT_NEAR(logits(0, i, x), unbiased(0, i, x) + bias.at(static_cast<std::size_t>(x)), 1e-5);
    }
  }
  module.pack();
  EXPECT_EQ(difference(to_array(module(src, tgt)), to_array(logits), near(to_array(logits)),
                       active_isa()),
            "");
}

}  // namespace
}  // namespace attn
