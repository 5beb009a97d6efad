// Modules and models of bfloat16 and float16: stored tensors are rounded once, everything else is
// float.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "attn/io/state_dict.hpp"
#include "attn/layers/transformer.hpp"
#include "attn/models/bert.hpp"
#include "attn/models/gpt.hpp"
#include "attn/models/seq2seq_transformer.hpp"

#include "support/draws/transformer_options.hpp"
#include "support/files/temp_folder.hpp"
#include "support/isas.hpp"
#include "support/models/steps.hpp"
#include "support/placed.hpp"
#include "support/references/reference_transformer.hpp"
#include "support/thread_executor.hpp"

namespace attn {
namespace {

using attn_test::Array;
using attn_test::available_isas;
using attn_test::by_steps;
using attn_test::counted_positions;
using attn_test::difference;
using attn_test::Index;
using attn_test::Order;
using attn_test::Random;
using attn_test::random_module;
using attn_test::ReferenceOptions;
using attn_test::ReferenceTransformer;
using attn_test::TempFolder;
using attn_test::ThreadExecutor;
using attn_test::to_array;

template <class E>
class SmallElementModulesTest : public ::testing::Test {};
using SmallTypes = ::testing::Types<bfloat16, float16>;
TYPED_TEST_SUITE(SmallElementModulesTest, SmallTypes);

template <class E>
float rounded(float x) {
  return E(x);
}

template <TensorLike X>
Array<float> floats(const X& x) {
  return to_array(x).template as<float>();
}

/// A nested-loop reference in W over a module's parameters; in float it rounds the tensors that the
/// module stores as E, in double nothing.
template <class W, class E, class Module>
ReferenceTransformer<W> reference_of(const Module& module, const TransformerLayerOptions& options,
                                     Order order, Tensor2<index_t> positions) {
  ReferenceTransformer<W> reference{attn_test::parameters_of<W>(module), options, order,
                                    std::move(positions)};
  if constexpr (std::is_same_v<W, float>) reference.store = rounded<E>;
  return reference;
}

/// Table rows of an InputEmbedding at `prefix`: words, positions and the first type.
template <class W>
Array<W> embedded(const ReferenceTransformer<W>& model, const Tensor2<int>& ids,
                  const std::string& prefix = "embedding.") {
  const Array<W> words = model.get(prefix + "words.weight"),
                 positions = model.get(prefix + "positions.weight"),
                 types = model.get(prefix + "token_types.weight");
  Array<W> x({ids.extent(0), ids.extent(1), words.extent(1)});
  for (Index b = 0; b < x.extent(0); ++b) {
    for (Index i = 0; i < x.extent(1); ++i) {
      for (Index d = 0; d < x.extent(2); ++d) {
        x(b, i, d) = words(ids(b, i), d) + (positions ? positions(i, d) : W{0}) +
                     (types ? types(0, d) : W{0});
      }
    }
  }
  return x;
}

/// reference(W{}, order) in double, and twice the error of the same in float with a rounding to E
/// for each stored tensor; `Out` is the element of the result.
template <class Out, class Reference>
std::pair<Array<double>, double> exact_and_bound(Reference reference) {
  const Array<double> exact = reference(double{}, Order::forward);
  const double bound = attn_test::twice_naive(
      [&](Order order) { return reference(float{}, order).template as<Out>(); }, exact);
  return {exact, bound};
}

TYPED_TEST(SmallElementModulesTest, LayersRoundWhatTheyStore) {
  using E = TypeParam;
  for (std::uint64_t n = 0; n < attn_test::draws(60); ++n) {
    Random random(n);
    const TransformerLayerOptions o = attn_test::random_layer_options(random);
    const index_t batch = random.integer(1, 2), seq = random.integer(1, 12),
                  src = random.integer(1, 12);
    auto encoder = random_module<EncoderLayer<E>>(random, o);
    auto decoder = random_module<DecoderLayer<E>>(random, o);
    const auto x = random.tensor<E, 3>({batch, seq, o.d_model}),
               memory = random.tensor<E, 3>({batch, src, o.d_model});
    ReferenceOptions masks;
    masks.causal = true;
    const auto [encoded, encoder_bound] = exact_and_bound<E>([&]<class W>(W, Order order) {
      return reference_of<W, E>(encoder, o, order, counted_positions(batch, seq))
          .encoder_layer("", to_array(x).template as<W>(), masks);
    });
    const auto [decoded, decoder_bound] = exact_and_bound<E>([&]<class W>(W, Order order) {
      return reference_of<W, E>(decoder, o, order, counted_positions(batch, seq))
          .decoder_layer("", to_array(x).template as<W>(), to_array(memory).template as<W>(), masks,
                         {});
    });
    for (const bool packs : {false, true}) {
      if (packs) encoder.pack(), decoder.pack();
      for (Isa isa : available_isas()) {
        SCOPED_TRACE(random.trace());
        const AttentionOptions<float> on{.mask = causal(), .execution = {.isa = isa}};
        ASSERT_EQ(difference(floats(encoder(x, on)), encoded, encoder_bound, isa), "");
        ASSERT_EQ(difference(floats(decoder(x, memory, on)), decoded, decoder_bound, isa), "");
      }
    }
  }
}

TYPED_TEST(SmallElementModulesTest, StacksWholeAndStepByStep) {
  using E = TypeParam;
  constexpr index_t kBatch = 3, kTokens = 11;
  const ThreadExecutor threads(3);
  Random random(2);
  for (const bool pre : {false, true}) {
    const TransformerStackOptions options = attn_test::stack_options(pre, kTokens);
    const auto encoder = random_module<Encoder<E>>(random, options);
    const auto x = random.tensor<E, 3>({kBatch, kTokens, 16});
    ReferenceOptions masks;
    masks.causal = true;
    const auto [exact, bound] = exact_and_bound<E>([&]<class W>(W, Order order) {
      return reference_of<W, E>(encoder, options.layer, order, counted_positions(kBatch, kTokens))
          .encoder("", to_array(x).template as<W>(), masks);
    });
    for (Isa isa : available_isas()) {
      const AttentionOptions<float> on{.mask = causal(), .execution = {.isa = isa}};
      const Tensor3<E> whole = encoder(x, on);
      EXPECT_EQ(difference(floats(whole), exact, bound, isa, "whole"), "");
      auto caches = encoder.make_caches(kBatch, kTokens);
      EXPECT_EQ(caches[0].options().element, dtype_of<E>());
      const auto steps =
          by_steps(x, [&](const Tensor3<E>& rows, bool) { return encoder(rows, on, {}, caches); });
      EXPECT_EQ(difference(steps, exact, bound, isa, "steps"), "");
      // The same bits on threads, alone and at another batch position.
      auto others = on;
      others.execution.executor = &threads;
      EXPECT_EQ(to_array(encoder(x, others)).data, to_array(whole).data);
      for (index_t b = 0; b < kBatch; ++b) {
        const Tensor3<E> one(x.view().slice(0, b, b + 1));
        EXPECT_EQ(to_array(encoder(one, on)).data, to_array(whole.view().slice(0, b, b + 1)).data);
      }
    }
  }
  EXPECT_THROW(Encoder<E>(attn_test::stack_options(true, 4)).make_caches(1, 4, 0, DType::F32),
               ValueError);
}

TYPED_TEST(SmallElementModulesTest, GptGivesLogitsOfFloat) {
  using E = TypeParam;
  Random random(3);
  Tensor2<int> ids({2, 11});
  for (int& id : ids.elements()) id = static_cast<int>(random.integer(0, 18));
  for (const GptOptions& options :
       {attn_test::gpt2_options(19, 16), attn_test::llama_options(19, 16)}) {
    auto gpt = random_module<Gpt<E>>(random, options);
    ReferenceOptions masks;
    masks.causal = true;
    const auto [exact, bound] = exact_and_bound<float>([&]<class W>(W, Order order) {
      const auto model = reference_of<W, E>(gpt, options.layer, order, counted_positions(2, 11));
      Array<W> x = attn_test::reference_stored(embedded<W>(model, ids), model.store);
      return attn_test::reference_linear(
          model.encoder("blocks.", x, masks),
          model.get(options.tied ? "embedding.words.weight" : "lm_head.weight"), {}, order);
    });
    for (const bool packs : {false, true}) {
      if (packs) gpt.pack();
      for (Isa isa : available_isas()) {
        const AttentionOptions<float> on{.execution = {.isa = isa}};
        const Tensor3<float> logits = gpt(ids, on);
        EXPECT_EQ(difference(floats(logits), exact, bound, isa, "whole"), "");
        auto caches = gpt.make_caches(2, 11);
        const auto steps =
            by_steps(ids, [&](const Tensor2<int>& some, bool) { return gpt(some, on, caches); });
        EXPECT_EQ(difference(steps, exact, bound, isa, "steps"), "");
      }
    }
  }
}

TYPED_TEST(SmallElementModulesTest, BertWithItsPooler) {
  using E = TypeParam;
  Random random(4);
  const BertOptions options{.vocab_size = 23,
                            .hidden_size = 24,
                            .num_hidden_layers = 2,
                            .num_attention_heads = 3,
                            .intermediate_size = 40,
                            .max_position_embeddings = 12,
                            .pooler = true};
  const auto bert = random_module<Bert<E>>(random, options);
  Tensor2<int> ids({2, 9});
  for (int& id : ids.elements()) id = static_cast<int>(random.integer(0, 22));
  const auto reference = [&]<class W>(W, Order order) {
    const auto model = reference_of<W, E>(bert, options.encoder_options().layer, order, {});
    Array<W> x = attn_test::reference_stored(embedded<W>(model, ids, "embeddings."), model.store);
    return model.encoder("encoder.", model.norm("embeddings.norm.", x), {});
  };
  const auto [exact, bound] = exact_and_bound<E>(reference);
  const auto [exact_pooled, pooled_bound] = exact_and_bound<E>([&]<class W>(W w, Order order) {
    const Array<W> hidden = reference(w, order);
    Array<W> first({2, 1, 24});
    for (Index b = 0; b < 2; ++b) {
      for (Index d = 0; d < 24; ++d) first(b, 0, d) = hidden(b, 0, d);
    }
    const auto model = reference_of<W, E>(bert, {}, order, {});
    return attn_test::reference_map(
               attn_test::reference_stored(model.linear("pooler.", first), model.store),
               [](W v) { return std::tanh(v); })
        .reshaped({2, 24});
  });
  for (Isa isa : available_isas()) {
    const Tensor3<E> hidden = bert(ids, {.execution = {.isa = isa}});
    EXPECT_EQ(difference(floats(hidden), exact, bound, isa), "");
    Tensor2<E> pooled({2, 24});
    bert.pool(hidden, pooled, {.isa = isa});
    EXPECT_EQ(difference(floats(pooled), exact_pooled, pooled_bound, isa), "");
  }
}

TYPED_TEST(SmallElementModulesTest, LearnedKeysAndTransformers) {
  using E = TypeParam;
  Random random(5);
  const MultiHeadAttentionOptions options{
      .embed_dim = 12, .num_heads = 2, .add_bias_kv = true, .add_zero_attn = true};
  const auto module = random_module<MultiHeadAttention<E>>(random, options);
  const auto x = random.tensor<E, 3>({2, 5, 12});
  const auto [exact, bound] = exact_and_bound<E>([&]<class W>(W, Order order) {
    auto model = reference_of<W, E>(module, {.d_model = 12, .nhead = 2}, order, {});
    auto heads = model.heads("");
    heads.add_zero_attn = true;
    const auto in = to_array(x).template as<W>();
    return attn_test::reference_multi_head_attention(heads, in, in, in, {}, order).y;
  });
  EXPECT_EQ(difference(floats(module(x)), exact, bound, active_isa()), "");

  const TransformerLayerOptions layer{.d_model = 16, .nhead = 4, .dim_feedforward = 20};
  const auto transformer = random_module<Transformer<E>>(
      random, TransformerOptions{
                  .layer = layer, .num_encoder_layers = 2, .num_decoder_layers = 2, .norm = true});
  const auto src = random.tensor<E, 3>({2, 7, 16}), tgt = random.tensor<E, 3>({2, 4, 16});
  const auto [wanted, limit] = exact_and_bound<E>([&]<class W>(W, Order order) {
    const auto model = reference_of<W, E>(transformer, layer, order, {});
    const auto memory = model.encoder("encoder.", to_array(src).template as<W>(), {});
    return model.decoder("decoder.", to_array(tgt).template as<W>(), memory, {}, {});
  });
  EXPECT_EQ(difference(floats(transformer(src, tgt)), wanted, limit, active_isa()), "");

  const Seq2SeqTransformer<E> seq2seq(Seq2SeqOptions{.src_vocab_size = 9,
                                                     .tgt_vocab_size = 8,
                                                     .transformer = {.layer = layer},
                                                     .max_positions = 8});
  const Tensor2<int> ids({1, 3}, {1, 2, 3});
  const Tensor3<float> logits = seq2seq(ids, ids);
  EXPECT_EQ(logits.extent(2), 8);
}

/// Float tensors of a file are rounded once; tensors of the element are loaded unchanged.
TYPED_TEST(SmallElementModulesTest, LoadFromFilesOfAnyElement) {
  using E = TypeParam;
  const TempFolder folder;
  Random random(6);
  const GptOptions options = attn_test::llama_options(19, 16);
  const auto source = random_module<Gpt<float>>(random, options);
  save_state_dict(folder.path() / "floats.safetensors", source);
  Gpt<E> rounded(options), again(options);
  load_state_dict(rounded, SafetensorsFile(folder.path() / "floats.safetensors"));
  const auto wanted = attn_test::parameters_of<E>(source);
  for (const auto& [name, value] : attn_test::parameters_of<E>(rounded)) {
    EXPECT_TRUE(attn_test::same_bits(value, wanted.at(name))) << name;
  }
  const auto path = folder.path() / "small.safetensors";
  save_state_dict(path, rounded);
  const SafetensorsFile file(path);
  EXPECT_EQ(file.dtype("blocks.norm.weight"), dtype_of<E>());
  load_state_dict(again, file);
  for (const auto& [name, value] : attn_test::parameters_of<E>(again)) {
    EXPECT_TRUE(attn_test::same_bits(value, wanted.at(name))) << name;
  }
}

}  // namespace
}  // namespace attn
