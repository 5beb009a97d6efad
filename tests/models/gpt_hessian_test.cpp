// Hessian-vector products of Gpt against central differences of gradients.
#include "attn/models/gpt_hessian.hpp"

#include <gtest/gtest.h>

#include "support/error_of.hpp"
#include "support/hessian_check.hpp"
#include "support/thread_executor.hpp"

namespace attn_test {
namespace {

using attn::Activation;

/// A small model, ids and targets.
struct Case {
  attn::GptOptions options;
  attn::Tensor2<int> ids{{2, 6}};
  attn::Tensor1<int> targets{{12}};
  attn::CrossEntropyOptions<double> loss;

  explicit Case(Random& random) {
    options.vocab_size = 11;
    options.max_positions = 8;
    options.num_layers = random.integer(0, 2);
    options.layer = {.d_model = 8, .nhead = 4, .dim_feedforward = 12, .dropout = 0};
    for (int& id : ids.elements()) id = static_cast<int>(random.integer(0, 10));
    for (int& id : targets.elements()) id = static_cast<int>(random.integer(0, 10));
  }
};

template <class T>
void add_product(const attn::Gpt<T>& model, const Case& of, const attn::Gpt<T>& vector,
                 attn::Gpt<T>& result, const attn::CrossEntropyOptions<T>& loss,
                 const attn::Execution& execution = {}) {
  attn::AttentionOptions<T> options;
  options.execution = execution;
  attn::hessian_vector_product(
      model, of.ids,
      [&](const auto& logits, const auto& d_logits) {
        return attn::cross_entropy_backward_jvp(logits.rows(), of.targets, d_logits.rows(), loss);
      },
      vector, result, options);
}

TEST(GptHessian, AgreesWithCentralDifferences) {
  using attn::Positions;
  for (std::uint64_t n = 0; n < draws(24); ++n) {
    Random random(n);
    SCOPED_TRACE(random.trace());
    Case of(random);
    attn::GptOptions& o = of.options;
    o.layer.activation = random.pick<Activation>(
        {Activation::gelu, Activation::gelu_tanh, Activation::silu, Activation::quick_gelu});
    o.layer.gated = random.chance(0.5);
    o.layer.norm_first = random.chance(0.7);
    o.layer.norm = random.pick<attn::NormKind>({attn::NormKind::layer, attn::NormKind::rms});
    if (random.chance(0.5)) o.layer.attention.num_kv_heads = 2;
    if (random.chance(0.3)) o.layer.attention.query_key_norm = attn::NormKind::rms;
    if (random.chance(0.3)) o.layer.attention.window = 2;
    if (random.chance(0.3)) o.layer.attention.softcap = 2;
    if (random.chance(0.3)) o.layer.attention.sinks = true;
    if (o.layer.norm_first && random.chance(0.3)) o.layer.residual_scale = 0.6;
    o.layer.norm_behind = random.chance(0.3);
    o.layer.parallel = o.layer.norm_first && !o.layer.norm_behind && random.chance(0.3);
    o.positions = random.pick<Positions>({Positions::learned, Positions::sinusoidal});
    if (random.chance(0.5)) {
      o.positions = Positions::none;
      o.layer.attention.rotary = attn::RotaryOptions{.max_positions = 8};
    }
    o.tied = random.chance(0.5);
    o.head_bias = random.chance(0.5);
    if (random.chance(0.4)) o.logit_scale = 0.7;
    if (random.chance(0.4)) o.logit_softcap = 3;
    const auto weights = random.tensor<double, 1>({11});
    attn::Tensor1<double> class_weights({11});
    for (Index i = 0; i < 11; ++i) class_weights(i) = std::abs(weights(i));
    if (random.chance(0.4)) of.loss.ignore_index = 3;
    if (random.chance(0.4)) of.loss.label_smoothing = 0.2;
    if (random.chance(0.3)) of.loss.class_weights = class_weights.view();
    attn::Gpt<double> model(o);
    draw_parameters(random, model, 0.5);
    o.layer.dropout = random.pick<double>({0, 0.4});  // which products do not apply
    attn::Gpt<double> dropping(o);
    dropping.blocks = model.blocks;
    for (auto& layer : dropping.blocks.layers) layer.dropout = o.layer.dropout;
    dropping.lm_head = model.lm_head;
    dropping.embedding.words = model.embedding.words;
    dropping.embedding.positions = model.embedding.positions;
    expect_hessian(
        random, model,
        [&](attn::Gpt<double>& gradients) {
          attn::GptSaved<double> saved;
          attn::Tensor3<double> logits({2, 6, 11}), d_logits(logits.shape());
          attn::forward(model, of.ids, logits, saved);
          attn::cross_entropy_backward(logits.view().rows(), of.targets, d_logits.view().rows(),
                                       of.loss);
          attn::backward(model, d_logits, saved, gradients);
        },
        [&](const attn::Gpt<double>& vector, attn::Gpt<double>& result) {
          add_product(dropping, of, vector, result, of.loss);
        },
        2e-5);
    if (HasFailure()) break;
  }
}

/// Also if the last parameter does not fit, nothing is added to the others.
TEST(GptHessian, ChecksShapesBeforeItWrites) {
  Random random(3);
  for (const bool tied : {false, true}) {
    Case of(random);
    of.options.num_layers = 1;
    of.options.tied = tied;
    attn::Gpt<double> model(of.options), zero = attn::gradients_of(model);
    draw_parameters(random, model, 0.5);
    const auto expect_unchanged = [&](const auto& change, std::string_view name) {
      for (const bool is_result : {false, true}) {
        attn::Gpt<double> vector = model, result = zero;
        change(is_result ? result : vector);
        const attn::Tensor1<double> before = joined_parameters(result);
        const std::string expected =
            (is_result ? "result." : "vector.") + std::string(name) + " must";
        const std::string error =
            error_of<attn::ShapeError>([&] { add_product(model, of, vector, result, {}); });
        EXPECT_TRUE(contains(error, expected)) << error;
        EXPECT_TRUE(std::ranges::equal(joined_parameters(result).elements(), before.elements()));
      }
    };
    expect_unchanged(
        [](auto& x) {
          x.embedding.words.weight = attn::Tensor2<double>({11, 9});
        },
        "words.weight");
    expect_unchanged(
        [](auto& x) {
          x.embedding.positions.weight = attn::Tensor2<double>({7, 8});
        },
        "positions.weight");
    expect_unchanged([](auto& x) { x.lm_head.linear().bias = attn::Tensor1<double>({11}); },
                     "bias");
    expect_unchanged([](auto& x) { x.blocks.layers[0].norm2.bias = attn::Tensor1<double>({9}); },
                     "layers.0.norm2.bias");
  }
}

TEST(GptHessian, RefusesAResultThatItReads) {
  Random random(4);
  Case of(random);
  of.options.num_layers = 1;
  attn::Gpt<double> model(of.options), vector = attn::gradients_of(model);
  for (attn::Gpt<double>* result : {&model, &vector}) {
    const attn::Tensor1<double> before = joined_parameters(*result);
    EXPECT_EQ(error_of<attn::ValueError>([&] { add_product(model, of, vector, *result, {}); }),
              "[InputEmbedding] result must be another module than the model and the vector; found "
              "the same.");
    EXPECT_TRUE(std::ranges::equal(joined_parameters(*result).elements(), before.elements()));
  }
}

TEST(GptHessian, SameBitsOnAnyThreads) {
  Random random(1);
  Case of(random);
  of.options.num_layers = 2;
  of.options.max_positions = 64;
  of.options.layer = {.d_model = 64, .nhead = 4, .dim_feedforward = 128, .dropout = 0};
  of.ids = attn::Tensor2<int>({2, 64});
  of.targets = attn::Tensor1<int>({128});
  attn::Gpt<float> model(of.options);
  draw_parameters(random, model, 0.5);
  attn::Gpt<float> vector = attn::gradients_of(model);
  draw_parameters(random, vector, 1);
  const ThreadExecutor three(3);
  const attn::SerialExecutor one;
  attn::Gpt<float> alone = attn::gradients_of(model), shared = alone;
  add_product(model, of, vector, alone, {}, {.executor = &one});
  add_product(model, of, vector, shared, {}, {.executor = &three});
  std::vector<float> all;
  alone.visit_parameters([&](std::string_view, const auto& x) {
    all.insert(all.end(), x.data(), x.data() + x.size());
  });
  std::size_t at = 0;
  shared.visit_parameters([&](std::string_view name, const auto& x) {
    EXPECT_TRUE(
        std::equal(x.data(), x.data() + x.size(), all.begin() + static_cast<std::ptrdiff_t>(at)))
        << name;
    at += static_cast<std::size_t>(x.size());
  });
}

TEST(GptHessian, RefusesWhatHasNoSecondDerivative) {
  Random random(2);
  const auto refused = [&](const auto& change) {
    Case of(random);
    of.options.num_layers = 1;
    change(of.options);
    const attn::Gpt<double> model(of.options);
    auto result = attn::gradients_of(model);
    return error_of<attn::ValueError>([&] { add_product(model, of, model, result, {}); });
  };
  EXPECT_TRUE(contains(refused([](auto& o) { o.embedding_norm = true; }), "embedding_norm"));
  EXPECT_TRUE(contains(refused([](auto& o) { o.layer.attention.clip_qkv = 2; }),
                       "[MultiHeadAttention] clip_qkv must not be set"));
  EXPECT_TRUE(
      contains(refused([](auto& o) { o.layer.experts = {.num_experts = 2, .dim_feedforward = 8}; }),
               "experts"));
}

}  // namespace
}  // namespace attn_test
