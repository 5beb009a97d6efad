// Bert: against composed references, parameter names of files, the pooler, packed sequences.
#include "attn/models/bert.hpp"

#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "attn/core/compare.hpp"

#include "support/error_of.hpp"
#include "support/isas.hpp"
#include "support/references/reference_transformer.hpp"

namespace attn {
namespace {

using attn_test::available_isas;
using attn_test::difference;
using attn_test::Order;
using attn_test::Random;
using attn_test::ReferenceOptions;
using attn_test::ReferenceTransformer;
using attn_test::to_array;

BertOptions options() {
  return {.vocab_size = 17,
          .hidden_size = 24,
          .num_hidden_layers = 2,
          .num_attention_heads = 3,
          .intermediate_size = 40,
          .max_position_embeddings = 9,
          .pooler = true};
}

TEST(Bert, IsEmbeddingAndEncoder) {
  Random random(1);
  auto bert = attn_test::random_module<Bert<float>>(random, options());
  const Tensor2<int> ids({2, 5}, {1, 5, 16, 3, 2, 1, 7, 2, 0, 0});
  const Tensor2<index_t> types({2, 5}, {0, 0, 1, 1, 1, 0, 0, 0, 0, 0});
  const Tensor1<index_t> lengths({2}, {5, 3});
  ReferenceOptions masks;
  masks.key_lengths = {5, 3};
  const auto reference = [&]<class W>(W, Order order) {
    const ReferenceTransformer<W> model{attn_test::parameters_of<W>(bert),
                                        options().encoder_options().layer, order};
    const auto x = to_array(bert.embeddings(ids, {.token_type_ids = types})).template as<W>();
    return model.encoder("encoder.", x, masks);
  };
  const auto exact = reference(double{}, Order::forward);
  const double bound = attn_test::module_bound<float>(reference, exact);
  for (const bool packed : {false, true}) {
    if (packed) bert.pack();
    for (Isa isa : available_isas()) {
      const auto y = bert(ids, {.mask = key_lengths(lengths), .execution = {.isa = isa}},
                          {.token_type_ids = types});
      EXPECT_EQ(difference(to_array(y), exact, bound, isa), "");
    }
  }
}

TEST(Bert, EveryLayerTakesFunctors) {
  Random random(5);
  const auto bert = attn_test::random_module<Bert<float>>(random, options());
  const Tensor2<int> ids({1, 5}, {1, 5, 16, 3, 2});
  const auto near = mask_mod([](int, int, int i, int j) { return std::abs(i - j) <= 1; });
  EXPECT_EQ(to_array(bert(ids, {}, {}, near)).data,
            to_array(bert(ids, {.mask = sliding_window(1, 1)})).data);
}

TEST(Bert, PackedSequencesAreAsTheyAreAlone) {
  Random random(2);
  auto bert = attn_test::random_module<Bert<float>>(random, options());
  const Tensor2<int> first({1, 5}, {1, 5, 16, 3, 2}), second({1, 3}, {1, 7, 2});
  const Tensor2<int> both({1, 8}, {1, 5, 16, 3, 2, 1, 7, 2});
  const Tensor2<index_t> positions({1, 8}, {0, 1, 2, 3, 4, 0, 1, 2});
  const Tensor1<index_t> ends({3}, {0, 5, 8});
  const Tensor3<float> y =
      bert(both, {.cu_seqlens_q = ends, .cu_seqlens_k = ends}, {.position_ids = positions});
  EXPECT_EQ(to_array(bert(both, {.cu_seqlens_q = ends, .cu_seqlens_k = ends})).data,
            to_array(y).data);  // positions restart without position_ids
  const double bound = attn_test::near(y);
  EXPECT_EQ(
      difference(to_array(y.view().slice(1, 0, 5)), to_array(bert(first)), bound, active_isa()),
      "");
  EXPECT_EQ(
      difference(to_array(y.view().slice(1, 5, 8)), to_array(bert(second)), bound, active_isa()),
      "");
}

// Rotary embedding, windows on both sides, narrow embeddings, layers that share weights.
TEST(Bert, LaterEncodersTreatPackedSequencesAndPositionsAlike) {
  BertOptions later = options();
  later.positions = Positions::none;
  later.embedding_size = 10;
  later.num_hidden_layers = 4;
  later.encoder.num_groups = 2;
  later.encoder.windows = {1, -1};
  later.encoder.rotary = {RotaryOptions{.theta = 100, .max_positions = 9},
                          RotaryOptions{.theta = 1000, .max_positions = 9}};
  later.encoder.layer.attention.symmetric_window = true;
  Random random(2);
  const auto bert = attn_test::random_module<Bert<float>>(random, later);
  EXPECT_EQ(bert.hidden_size(), 24);
  const Tensor2<int> first({1, 5}, {1, 5, 16, 3, 2}), second({1, 3}, {1, 7, 2});
  const Tensor2<int> both({1, 8}, {1, 5, 16, 3, 2, 1, 7, 2});
  const Tensor1<index_t> ends({3}, {0, 5, 8}), lengths({2}, {5, 3});
  const Tensor3<float> y = bert(both, {.cu_seqlens_q = ends, .cu_seqlens_k = ends});
  const double bound = attn_test::near(y);
  EXPECT_EQ(
      difference(to_array(y.view().slice(1, 0, 5)), to_array(bert(first)), bound, active_isa()),
      "");
  EXPECT_EQ(
      difference(to_array(y.view().slice(1, 5, 8)), to_array(bert(second)), bound, active_isa()),
      "");
  const Tensor2<int> padded({2, 5}, {1, 5, 16, 3, 2, 1, 7, 2, 0, 0});
  const Tensor3<float> z = bert(padded, {.mask = key_lengths(lengths)});
  EXPECT_EQ(difference(to_array(z.view().slice(0, 1, 2).slice(1, 0, 3)), to_array(bert(second)),
                       bound, active_isa()),
            "");
  // MPNet's bias depends on places, too.
  BertOptions biased = options();
  biased.encoder.relative_buckets = 8;
  biased.encoder.relative_max_distance = 5;
  const auto mpnet = attn_test::random_module<Bert<float>>(random, biased);
  const Tensor3<float> of_both = mpnet(padded, {.mask = key_lengths(lengths)});
  EXPECT_EQ(difference(to_array(of_both.view().slice(0, 1, 2).slice(1, 0, 3)),
                       to_array(mpnet(second)), attn_test::near(of_both), active_isa()),
            "");
  // Rotary embedding depends on distances of positions only, windows on places.
  const Tensor2<index_t> later_positions({1, 5}, {4, 5, 6, 7, 8}), apart({1, 5}, {0, 2, 4, 6, 8});
  const Tensor3<float> moved = bert(first, {}, {.position_ids = later_positions});
  EXPECT_EQ(difference(to_array(moved), to_array(bert(first)), bound, active_isa()), "");
  EXPECT_GT(max_abs_difference(bert(first, {}, {.position_ids = apart}), moved), 1e-3);
}

TEST(Bert, PoolsTheFirstToken) {
  Random random(3);
  auto bert = attn_test::random_module<Bert<float>>(random, options());
  const auto hidden = random.tensor<float, 3>({2, 4, 24});
  Tensor2<float> pooled({2, 24});
  bert.pool(hidden, pooled);
  const auto mapped = bert.pooler(hidden.view().select(1, 0));
  for (index_t i = 0; i < pooled.size(); ++i) {
    EXPECT_NEAR(pooled.data()[i], std::tanh(mapped.data()[i]), 1e-6);
  }
}

TEST(Bert, NamesOfItsFiles) {
  BertOptions one = options();
  one.num_hidden_layers = 1;
  std::vector<std::string> names;
  Bert<float>(one).visit_parameters(
      [&](std::string_view name, auto) { names.push_back(bert_name(name)); });
  EXPECT_EQ(names, (std::vector<std::string>{"embeddings.word_embeddings.weight",
                                             "embeddings.position_embeddings.weight",
                                             "embeddings.token_type_embeddings.weight",
                                             "embeddings.LayerNorm.weight",
                                             "embeddings.LayerNorm.bias",
                                             "encoder.layer.0.attention.self.query.weight",
                                             "encoder.layer.0.attention.self.key.weight",
                                             "encoder.layer.0.attention.self.value.weight",
                                             "encoder.layer.0.attention.self.query.bias",
                                             "encoder.layer.0.attention.self.key.bias",
                                             "encoder.layer.0.attention.self.value.bias",
                                             "encoder.layer.0.attention.output.dense.weight",
                                             "encoder.layer.0.attention.output.dense.bias",
                                             "encoder.layer.0.intermediate.dense.weight",
                                             "encoder.layer.0.intermediate.dense.bias",
                                             "encoder.layer.0.output.dense.weight",
                                             "encoder.layer.0.output.dense.bias",
                                             "encoder.layer.0.attention.output.LayerNorm.weight",
                                             "encoder.layer.0.attention.output.LayerNorm.bias",
                                             "encoder.layer.0.output.LayerNorm.weight",
                                             "encoder.layer.0.output.LayerNorm.bias",
                                             "pooler.dense.weight",
                                             "pooler.dense.bias"}));
}

TEST(BertErrors, PositionsAndShapes) {
  const Bert<float> bert(options());
  const Tensor2<int> too_long({1, 10}), ids({1, 3});
  Tensor3<float> y({1, 3, 24}), wrong({1, 3, 23});
  EXPECT_THROW(bert(too_long), ValueError);
  EXPECT_THROW(bert.forward(ids, wrong), ShapeError);
  const Tensor2<bool> mask({4, 4});
  y.fill(7);
  EXPECT_THROW(bert.forward(ids, y, {.mask = drop_mask(mask)}), ShapeError);
  EXPECT_TRUE(attn_test::all_are(y, 7));
  Tensor2<float> pooled({1, 24});
  EXPECT_EQ(attn_test::error_of<ShapeError>([&] {
              bert.pool(Tensor3<float>({1, 0, 24}), pooled);
            }),
            "[Bert::pool] hidden must have shape (batch, seq >= 1, hidden_size) = (1, 1, 24); "
            "found (1, 0, 24).");
  BertOptions no_pooler = options();
  no_pooler.pooler = false;
  EXPECT_EQ(attn_test::error_of<ValueError>([&] { Bert<float>(no_pooler).pool(y, pooled); }),
            "[Bert::pool] the model must have a pooler; found none.");
}

}  // namespace
}  // namespace attn
