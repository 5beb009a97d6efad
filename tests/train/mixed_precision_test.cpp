// Mixed precision: backward of 16-bit modules, float masters and their checkpoints.
#include <cmath>
#include <limits>
#include <map>
#include <optional>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "attn/train.hpp"

#include "support/error_of.hpp"
#include "support/files/temp_folder.hpp"
#include "support/isas.hpp"
#include "support/models/module_gradients.hpp"
#include "support/models/parameters.hpp"
#include "support/models/small_run.hpp"
#include "support/placed.hpp"
#include "support/thread_executor.hpp"
#include "support/tolerance.hpp"

namespace attn_test {
namespace {

using attn::bfloat16, attn::float16, attn::index_t, attn::Tensor1, attn::Tensor2, attn::Tensor3;

template <class E>
class MixedPrecisionTest : public ::testing::Test {};
using SmallTypes = ::testing::Types<bfloat16, float16>;
TYPED_TEST_SUITE(MixedPrecisionTest, SmallTypes);

template <class To, int Rank, class From>
attn::Tensor<To, Rank> as(const attn::Tensor<From, Rank>& x) {
  attn::Tensor<To, Rank> y(x.shape());
  for (Index i = 0; i < x.size(); ++i) y.data()[i] = static_cast<To>(x.data()[i]);
  return y;
}

/// Copies the parameters of one module to another.
template <class From, class To>
void copy_parameters(const From& from, To& to) {
  std::vector<double> values;
  from.visit_parameters([&](std::string_view, const auto& x) {
    for (Index i = 0; i < x.size(); ++i) values.push_back(static_cast<double>(x.data()[i]));
  });
  std::size_t at = 0;
  to.visit_parameters([&]<class T, int Rank>(std::string_view, attn::TensorView<T, Rank> x) {
    for (Index i = 0; i < x.size(); ++i) x.data()[i] = static_cast<T>(values.at(at++));
  });
}

/// Functions on 16-bit tensors equal those on widened tensors: bit for bit with float results,
/// rounded once with 16-bit results.
TYPED_TEST(MixedPrecisionTest, FunctionsAreThoseOfFloatRoundedOnce) {
  using E = TypeParam;
  const ThreadExecutor threads(3);
  for (std::uint64_t n = 0; n < 12; ++n) {
    Random random(n);
    const Index batch = random.integer(1, 3), seq = random.integer(1, 150),
                in = random.integer(1, 40), out = random.integer(1, 40);
    const auto x = random.tensor<E, 3>({batch, seq, in}), gate = random.tensor<E, 3>(x.shape());
    const auto d = random.tensor<E, 3>({batch, seq, out});
    const auto weight = random.tensor<E, 2>({out, in});
    const auto factors = random.tensor<E, 1>({in});
    const auto wide_x = as<float>(x), wide_d = as<float>(d), wide_gate = as<float>(gate);
    const auto wide_weight = as<float>(weight);
    const auto wide_factors = as<float>(factors);
    const auto rows_d = to_array(wide_d.view().rows());
    const double d_weight_bound =
        gemm_bound(to_array(wide_d.view().rows().transpose(0, 1)), to_array(wide_x.view().rows()));
    const double d_x_bound = gemm_bound(rows_d, to_array(wide_weight));
    for (attn::Isa isa : available_isas()) {
      SCOPED_TRACE(random.trace() + std::string(attn::name(isa)));
      const attn::Execution on{.executor = &threads, .isa = isa};
      Tensor3<E> d_x(x.shape()), d_gate(x.shape());
      Tensor3<float> wide_d_x(x.shape()), wide_d_gate(x.shape());
      const auto expect_rounded = [&] {
        EXPECT_TRUE(same_bits(to_array(d_x), to_array(wide_d_x).template as<E>()));
      };
      Tensor1<float> d_bias({out}), wide_d_bias({out});
      d_bias.fill(0.5f), wide_d_bias.fill(0.5f);
      attn::add_column_sums(d, d_bias.view(), on);
      attn::add_column_sums(wide_d, wide_d_bias.view(), on);
      EXPECT_TRUE(same_bits(to_array(d_bias), to_array(wide_d_bias)));

      // Pair products sum in another order.
      Tensor2<float> d_weight({out, in}), wide_d_weight({out, in});
      attn::linear_backward(d, x, weight, d_x.view(), d_weight.view(), d_bias.view(), x.view(), on);
      attn::linear_backward(wide_d, wide_x, wide_weight, wide_d_x.view(), wide_d_weight.view(), {},
                            wide_x.view(), on);
      EXPECT_EQ(difference(to_array(d_weight), to_array(wide_d_weight), 2 * d_weight_bound, isa),
                "");
      EXPECT_EQ(difference(to_array(d_x).template as<float>(), to_array(wide_d_x),
                           2 * d_x_bound + epsilon<E> * max_abs(to_array(wide_d_x)), isa),
                "");
      const bool in_pairs = attn::multiplies_pairs(isa);
      if (!in_pairs || std::is_same_v<E, float16>) {
        EXPECT_TRUE(same_bits(to_array(d_weight), to_array(wide_d_weight)));
        expect_rounded();
      }

      Tensor1<float> d_factors({in}), d_summands({in}), wide_d_factors({in}), wide_d_summands({in});
      attn::layer_norm_backward(gate, x, factors.view(), 1e-5, d_x, d_factors.view(),
                                d_summands.view(), x.view(), on);
      attn::layer_norm_backward(wide_gate, wide_x, wide_factors.view(), 1e-5, wide_d_x,
                                wide_d_factors.view(), wide_d_summands.view(), wide_x.view(), on);
      expect_rounded();
      EXPECT_TRUE(same_bits(to_array(d_factors), to_array(wide_d_factors)));
      EXPECT_TRUE(same_bits(to_array(d_summands), to_array(wide_d_summands)));
      attn::rms_norm_backward(gate, x, {}, 1e-5, d_x, {}, {}, on);
      attn::rms_norm_backward(wide_gate, wide_x, {}, 1e-5, wide_d_x, {}, {}, on);
      expect_rounded();

      for (const auto activation : {attn::Activation::relu, attn::Activation::gelu,
                                    attn::Activation::gelu_tanh, attn::Activation::silu}) {
        attn::activate_backward(activation, gate, x, d_x, on);
        attn::activate_backward(activation, wide_gate, wide_x, wide_d_x, on);
        expect_rounded();
        attn::glu_backward(activation, x, x, gate, d_x, d_gate, on);
        attn::glu_backward(activation, wide_x, wide_x, wide_gate, wide_d_x, wide_d_gate, on);
        expect_rounded();
        EXPECT_TRUE(same_bits(to_array(d_gate), to_array(wide_d_gate).template as<E>()));
      }

      const attn::detail::DropoutPlace place{0.4, {.seed = n, .step = 3, .layer = 1}, 2};
      attn::detail::apply_dropout<E>(place, x, d_x, gate, on);
      attn::detail::apply_dropout<float>(place, wide_x, wide_d_x, wide_gate, on);
      expect_rounded();
    }
  }
}

/// Float results of 16-bit products: unrounded sums of gemm(), and their initial values.
TYPED_TEST(MixedPrecisionTest, ProductsIntoFloats) {
  using E = TypeParam;
  for (std::uint64_t n = 0; n < attn_test::draws(30); ++n) {
    Random random(n);
    const Index m = random.integer(0, 70), k = random.integer(0, 600),
                columns = random.integer(0, 90);
    const auto a = random.tensor<E, 2>({k, m}), b = random.tensor<E, 2>({k, columns});
    const auto bias = random.tensor<E, 1>({columns});
    const auto start = random.tensor<float, 2>({columns, m});
    const attn::PackedWeights<E> packed(b);
    const double product_bound =
        gemm_bound(to_array(as<float>(a).view().transpose(0, 1)), to_array(as<float>(b)));
    for (attn::Isa isa : available_isas()) {
      const attn::Execution on{.isa = isa};
      Tensor2<float> found = start, expected = start, with_packed = start;
      // c may be column-major.
      attn::gemm(a.view().transpose(0, 1), b, found.view().transpose(0, 1),
                 {.alpha = 0.5f, .bias = bias.view(), .beta = 2}, on);
      attn::gemm(as<float>(a).view().transpose(0, 1), as<float>(b), expected.view().transpose(0, 1),
                 {.alpha = 0.5f, .bias = as<float>(bias).view(), .beta = 2}, on);
      // Two results with alpha 1/2.
      const double bound = product_bound + 2 * epsilon<float> * max_abs(to_array(expected));
      EXPECT_EQ(difference(to_array(found), to_array(expected), bound, isa), "") << random.trace();
      attn::gemm(a.view().transpose(0, 1), packed, with_packed.view().transpose(0, 1),
                 {.alpha = 0.5f, .bias = bias.view(), .beta = 2});
      EXPECT_EQ(difference(to_array(with_packed), to_array(expected), bound, isa), "")
          << random.trace();
    }
  }
  Tensor2<E> x({2, 3}), residual({2, 2});
  Tensor2<float> c({2, 2}), wrong({2, 3});
  Tensor2<E> w({3, 2});
  EXPECT_EQ(error_of<attn::ShapeError>(
                [&] { attn::gemm(x, w, c, {.beta = 1, .residual = residual.view()}); }),
            "[gemm] residual must not be given with a float c, which beta then multiplies; found "
            "(2, 2).");
  EXPECT_THROW(attn::gemm(x, w, wrong), attn::ShapeError);
}

/// Distance of two modules' parameters relative to the second, by name.
template <class A, class B>
std::map<std::string, double> relative_errors(const A& found, const B& expected) {
  const auto a = attn_test::parameters_of<double>(found),
             b = attn_test::parameters_of<double>(expected);
  std::map<std::string, double> errors;
  for (const auto& [name, value] : b) {
    double distance = 0, size = 0;
    for (std::size_t i = 0; i < value.data.size(); ++i) {
      distance += std::pow(a.at(name).data.at(i) - value.data[i], 2);
      size += std::pow(value.data[i], 2);
    }
    errors[name] = std::sqrt(distance / size);
  }
  return errors;
}

/// One round-off u = epsilon / 2 each, in both passes: per layer queries, keys and values, the
/// rotation, the context, two sums, two norms, and two in the feed-forward; then the embedding, the
/// final norm and the gradient of the logits. For maps that neither amplify nor attenuate, the
/// relative error of a gradient is at most their sum.
template <class E>
double gradient_bound(Index layers) {
  return static_cast<double>(2 * (9 * layers + 3)) * epsilon<E> / 2;
}

TYPED_TEST(MixedPrecisionTest, GradientsOfGptAreThoseOfDoubleWithinRoundings) {
  using E = TypeParam;
  for (const bool gated : {false, true}) {
    Random random(7);
    attn::GptOptions options = small_gpt();
    options.layer.gated = gated;
    if (gated) {
      options.tied = false;
      options.layer.activation = attn::Activation::silu;
      options.layer.norm = attn::NormKind::rms;
      options.layer.attention.rotary = attn::RotaryOptions{.max_positions = 8};
      options.positions = attn::Positions::none;
      options.logit_scale = 0.7;
      options.logit_softcap = 5;
    }
    attn::Gpt<E> model(options);
    randomize(model, random);
    attn::Gpt<double> wide(options);
    copy_parameters(model, wide);
    attn::Gpt<float> masters(options), gradients = attn::gradients_of(masters);
    attn::Gpt<double> expected = attn::gradients_of(wide);
    Tensor2<Index> ids({4, 8});
    Tensor1<Index> targets({32});
    for (Index& id : ids.elements()) id = random.integer(0, 10);
    for (Index& id : targets.elements()) id = random.integer(0, 10);
    const auto run = [&](const auto& gpt, auto& saved, auto& d, const attn::Execution& on) {
      using T = attn::scalar_t<decltype(gpt(ids))>;
      Tensor3<T> logits({4, 8, 11});
      const attn::TensorView2<T> rows(logits.data(), {32, 11});
      attn::forward(gpt, ids, logits, saved, {.execution = on});
      const double loss = attn::cross_entropy_backward(rows, targets, rows, {.execution = on});
      attn::backward(gpt, logits, saved, d, {.execution = on});
      return loss;
    };
    attn::GptSaved<double> wide_saved;
    const double wide_loss = run(wide, wide_saved, expected, {});
    const ThreadExecutor threads(3);
    for (attn::Isa isa : available_isas()) {
      attn::GptSaved<E> saved;
      attn::fill_parameters(gradients, 0);
      const double loss = run(model, saved, gradients, {.isa = isa});
      const double bound = gradient_bound<E>(2);
      EXPECT_NEAR(loss, wide_loss, bound * wide_loss) << attn::name(isa);
      for (const auto& [name, error] : relative_errors(gradients, expected)) {
        EXPECT_LE(error, bound) << name << " on " << attn::name(isa);
      }
      // The same bits on threads, and from recomputed layers.
      auto again = attn::gradients_of(masters);
      saved.blocks.recompute = true;
      EXPECT_EQ(run(model, saved, again, {.executor = &threads, .isa = isa}), loss);
      const auto found = attn_test::parameters_of<float>(gradients);
      for (const auto& [name, value] : attn_test::parameters_of<float>(again)) {
        EXPECT_TRUE(same_bits(value, found.at(name))) << name;
      }
    }
  }
}

TYPED_TEST(MixedPrecisionTest, GradientsOfLayersOfEveryKind) {
  using E = TypeParam;
  Random random(8);
  const attn::TransformerOptions options{
      .layer = {.d_model = 16,
                .nhead = 2,
                .dim_feedforward = 24,
                .dropout = 0.2,
                .attention = {.add_bias_kv = true,
                              .query_key_norm = attn::NormKind::layer,
                              .query_key_norm_eps = 0.1}},
      .num_encoder_layers = 1,
      .num_decoder_layers = 1,
      .relative_buckets = 8,
      .relative_max_distance = 6};
  attn::Transformer<E> model(options);
  draw_parameters(random, model);
  attn::Transformer<double> wide(options);
  copy_parameters(model, wide);
  attn::Transformer<float> gradients(options);
  attn::fill_parameters(gradients, 0);
  auto expected = attn::gradients_of(wide);
  const auto src = random.tensor<E, 3>({2, 6, 16}), tgt = random.tensor<E, 3>({2, 5, 16}),
             d = random.tensor<E, 3>({2, 5, 16});
  const auto run = [&]<class T, class Gradients>(const attn::Transformer<T>& transformer,
                                                 Gradients& of) {
    attn::TransformerSaved<T> saved;
    saved.dropout = {.seed = 3};
    Tensor3<T> out(tgt.shape()), d_src(src.shape()), d_tgt(tgt.shape());
    attn::forward(transformer, as<T>(src), as<T>(tgt), out, saved);
    attn::backward(transformer, as<T>(d), saved, d_src, d_tgt, of);
    return std::pair{as<double>(d_src), as<double>(d_tgt)};
  };
  const auto [d_src, d_tgt] = run(model, gradients);
  const auto [wide_d_src, wide_d_tgt] = run(wide, expected);
  const double bound = gradient_bound<E>(3);
  const auto expect_close = [&](const Tensor3<double>& found, const Tensor3<double>& wanted) {
    double distance = 0, size = 0;
    for (Index i = 0; i < wanted.size(); ++i) {
      distance += std::pow(found.data()[i] - wanted.data()[i], 2);
      size += std::pow(wanted.data()[i], 2);
    }
    EXPECT_LE(std::sqrt(distance / size), bound);
  };
  expect_close(d_src, wide_d_src);
  expect_close(d_tgt, wide_d_tgt);
  for (const auto& [name, error] : relative_errors(gradients, expected)) {
    // The gradient of a key's bias is 0 except for roundings, and norms of keys and queries leave
    // little of it.
    if (name.ends_with("in_proj_bias")) continue;
    EXPECT_LE(error, bound) << name;
  }

  const attn::BertOptions bert_options{.vocab_size = 11,
                                       .hidden_size = 16,
                                       .num_hidden_layers = 2,
                                       .num_attention_heads = 2,
                                       .intermediate_size = 24,
                                       .max_position_embeddings = 8,
                                       .hidden_dropout_prob = 0};
  attn::Bert<E> bert(bert_options);
  draw_parameters(random, bert);
  attn::Bert<double> wide_bert(bert_options);
  copy_parameters(bert, wide_bert);
  attn::Bert<float> d_bert(bert_options);
  attn::fill_parameters(d_bert, 0);
  auto d_wide_bert = attn::gradients_of(wide_bert);
  const Tensor2<int> ids({2, 4}, {1, 2, 3, 4, 1, 7, 8, 9});
  const auto d_hidden = random.tensor<E, 3>({2, 4, 16});
  const auto run_bert = [&]<class T, class Gradients>(const attn::Bert<T>& of, Gradients& into) {
    attn::BertSaved<T> saved;
    Tensor3<T> hidden({2, 4, 16});
    attn::forward(of, ids, hidden, saved);
    attn::backward(of, as<T>(d_hidden), saved, into);
  };
  run_bert(bert, d_bert);
  run_bert(wide_bert, d_wide_bert);
  const auto sizes = attn_test::parameters_of<double>(d_wide_bert);
  for (const auto& [name, error] : relative_errors(d_bert, d_wide_bert)) {
    if (name.ends_with("k_proj_bias")) continue;  // 0 except for roundings
    EXPECT_LE(error, gradient_bound<E>(2)) << name;
  }
}

/// SmallRun in mixed precision.
template <class E>
struct MixedRun {
  attn::Gpt<float> masters{small_gpt()};
  attn::Gpt<float> gradients = attn::gradients_of(masters);
  attn::Gpt<E> model{small_gpt()};
  std::vector<attn::TrainedParameter<float>> parameters;
  std::optional<attn::Adam<float>> adam;
  attn::Batches batches{20, 4, 3};
  attn::GptSaved<E> saved;
  attn::Execution execution;

  explicit MixedRun(const attn::Executor& executor) : execution{.executor = &executor} {
    attn::initialize(masters, {.seed = 5, .embedding_std = 0.1});
    parameters = attn::parameters_of<float>(masters, gradients, model);
    adam.emplace(parameters, attn::AdamOptions{.weight_decay = 0.1, .decoupled = true});
  }

  /// The gradients of the next batch.
  double gradient_step() {
    attn::clear_gradients(parameters);
    return small_gradients(model, saved, gradients, batches.next(), {.execution = execution});
  }

  double step() {
    const double loss = gradient_step();
    attn::clip_gradient_norm(parameters, 1);
    adam->step(0.01, execution);
    return loss;
  }
};

/// Checks that each parameter is its rounded master.
template <class E>
void expect_rounded_masters(const MixedRun<E>& run) {
  const auto masters = attn_test::parameters_of<E>(run.masters);
  for (const auto& [name, value] : attn_test::parameters_of<E>(run.model)) {
    EXPECT_TRUE(same_bits(value, masters.at(name))) << name;
  }
}

/// The weights of each loss differ by one rounding. Adam, which follows the sign of noise, diverges
/// after some 20 steps, as two float runs do whose initial weights differ by as much.
TYPED_TEST(MixedPrecisionTest, FollowsTheLossesOfFloat) {
  using E = TypeParam;
  const attn::SerialExecutor one;
  SmallRun floats(one);
  MixedRun<E> mixed(one);
  attn::Sgd<float> of_floats(floats.parameters, {.momentum = 0.9}),
      of_mixed(mixed.parameters, {.momentum = 0.9});
  double first = 0, last = 0, worst = 0;
  for (int n = 0; n < 32; ++n) {
    last = floats.gradient_step();
    worst = std::max(worst, std::abs(mixed.gradient_step() - last));
    if (n == 0) first = last;
    attn::clip_gradient_norm(floats.parameters, 1);
    attn::clip_gradient_norm(mixed.parameters, 1);
    of_floats.step(0.05);
    of_mixed.step(0.05);
  }
  EXPECT_LE(worst, 3 * epsilon<E>);
  EXPECT_LT(last, 0.7 * first);
  expect_rounded_masters(mixed);
}

TYPED_TEST(MixedPrecisionTest, LearnsByAdam) {
  const attn::SerialExecutor one;
  MixedRun<TypeParam> mixed(one);
  expect_rounded_masters(mixed);
  const double first = mixed.step();
  double last = first;
  for (int n = 1; n < 60; ++n) last = mixed.step();
  EXPECT_LT(last, 0.4 * first);
  expect_rounded_masters(mixed);
}

/// Sum of many small steps: bfloat16 loses each of them, the master keeps them.
TEST(MixedPrecision, MastersKeepStepsThatRoundingWouldLose) {
  attn::Linear<float> masters(1, 1, false), gradients(1, 1, false);
  attn::Linear<bfloat16> model(1, 1, false);
  masters.weight.fill(1);
  attn::Sgd<float> sgd(attn::parameters_of<float>(masters, gradients, model));
  gradients.weight.fill(1);
  for (int n = 0; n < 100; ++n) sgd.step(1e-3);
  EXPECT_NEAR(masters.weight(0, 0), 0.9f, 1e-5);
  EXPECT_EQ(float{model.weight(0, 0)}, float{bfloat16(masters.weight(0, 0))});
}

TYPED_TEST(MixedPrecisionTest, CheckpointsGoOnWithTheSameBits) {
  using E = TypeParam;
  const TempFolder folder;
  const auto path = folder.path() / "run.safetensors";
  const attn::SerialExecutor one;
  const ThreadExecutor three(3);
  MixedRun<E> whole(one), stopped(three), resumed(one);
  std::vector<double> losses;
  for (int n = 0; n < 12; ++n) losses.push_back(whole.step());
  for (int n = 0; n < 6; ++n) EXPECT_EQ(stopped.step(), losses[static_cast<std::size_t>(n)]);
  attn::save_checkpoint(path, stopped.masters, *stopped.adam,
                        {.step = 6, .batches = stopped.batches.position()});
  resumed.model.pack();
  const auto state = attn::load_checkpoint(path, resumed.masters, *resumed.adam);
  expect_rounded_masters(resumed);
  resumed.batches.move_to(state.batches);
  for (int n = 6; n < 12; ++n) EXPECT_EQ(resumed.step(), losses[static_cast<std::size_t>(n)]);
}

/// MixedRun of float16 whose loss is divided so that gradients of activations are below 6e-8, and
/// then scaled.
struct ScaledRun : MixedRun<float16> {
  double divisor = 32 * 1e6;
  attn::LossScale scale;
  index_t taken = 0;

  ScaledRun(const attn::Executor& executor, const attn::LossScaleOptions& options)
      : MixedRun(executor), scale(options) {}

  /// Trains SmallRun's task; returns the mean loss per target.
  double step() {
    attn::clear_gradients(parameters);
    const double loss = small_gradients(
        model, saved, gradients, batches.next(),
        {.divisor = divisor, .gradient_scale = scale.factor(), .execution = execution});
    const double once = 1 / scale.factor();
    if (scale.update(once * attn::gradient_norm(parameters))) {
      adam->step(0.01, execution, once);
      ++taken;
    }
    return loss * divisor / 32;
  }
};

/// The rules of torch.amp.GradScaler: growth_interval consecutive finite steps increase the factor;
/// a non-finite one decreases it and restarts the count.
TEST(LossScale, FollowsGradScaler) {
  const double infinity = std::numeric_limits<double>::infinity();
  attn::LossScale scale({.initial = 8, .growth = 4, .backoff = 0.25, .growth_interval = 3});
  const std::pair<double, double> steps[] = {
      {1, 8}, {1, 8}, {1, 32}, {1, 32},           {1, 32},       {infinity, 8},
      {1, 8}, {0, 8}, {1, 32}, {std::nan(""), 8}, {infinity, 2}, {1, 2}};
  for (const auto& [norm, factor] : steps) {
    EXPECT_EQ(scale.update(norm), std::isfinite(norm));
    EXPECT_EQ(scale.factor(), factor);
  }
  attn::LossScale defaults;
  EXPECT_EQ(defaults.factor(), 65536);
  for (int n = 0; n < 1999; ++n) defaults.update(1);
  EXPECT_EQ(defaults.factor(), 65536);
  defaults.update(1);
  EXPECT_EQ(defaults.factor(), 131072);
  // It does not grow beyond the range of float.
  attn::LossScale large({.initial = 0x1p127, .growth_interval = 1});
  large.update(1);
  EXPECT_EQ(large.factor(), 0x1p127);
  // It does not become 0 either, which would skip every step.
  attn::LossScale small({.initial = 1});
  for (int n = 0; n < 2000; ++n) small.update(infinity);
  EXPECT_EQ(small.factor(), 0x1p-126);

  EXPECT_EQ(error_of<attn::ValueError>([] { attn::LossScale({.growth = 1}); }),
            "[LossScale] growth must be finite and above 1; found 1.000000.");
  EXPECT_THROW(attn::LossScale({.backoff = 1}), attn::ValueError);
  EXPECT_THROW(attn::LossScale({.backoff = std::nan("")}), attn::ValueError);
  EXPECT_THROW(attn::LossScale({.growth_interval = 0}), attn::ValueError);
  EXPECT_THROW(attn::LossScale({.initial = infinity}), attn::ValueError);
  EXPECT_THROW(scale.move_to({}), attn::ValueError);
  EXPECT_THROW(scale.move_to({1, -1}), attn::ValueError);
}

/// Without the scale, gradients of early layers are 0; with it, they are those of the undivided
/// loss within float16 roundings (the two runs round at different places).
TEST(LossScale, BringsBackGradientsThatFloat16Loses) {
  const attn::SerialExecutor one;
  const auto gradients_with = [&](double divisor, double factor) {
    ScaledRun run(one, {.initial = factor});
    run.divisor = divisor;
    run.step();
    auto found = attn_test::parameters_of<double>(run.gradients);
    for (auto& [name, value] : found) {
      for (double& x : value.data) x *= divisor / factor;
    }
    return found;
  };
  const auto size = [](const Array<double>& x) {
    double sum = 0;
    for (double value : x.data) sum += value * value;
    return std::sqrt(sum);
  };
  const auto whole = gradients_with(32, 1), lost = gradients_with(32e6, 1),
             scaled = gradients_with(32e6, 65536);
  for (const auto& [name, value] : whole) {
    if (name.find("in_proj_bias") != std::string::npos)
      continue;  // a third is 0 except for roundings
    Array<double> off = value;
    for (std::size_t i = 0; i < off.data.size(); ++i) off.data[i] -= scaled.at(name).data[i];
    EXPECT_LE(size(off), 2 * gradient_bound<float16>(2) * size(value)) << name;
  }
  const std::string deep = "blocks.layers.0.linear1.weight";
  ASSERT_TRUE(whole.contains(deep)) << whole.begin()->first;
  EXPECT_GT(size(whole.at(deep)), 0);
  EXPECT_LT(size(lost.at(deep)), 0.1 * size(whole.at(deep)));
}

/// With an initial factor that overflows: steps are skipped until it fits, masters stay unchanged,
/// then the run learns.
TEST(LossScale, LeavesOutStepsThatAreNotFinite) {
  const attn::SerialExecutor one;
  ScaledRun run(one, {.initial = 0x1p50});
  const auto before = attn_test::parameters_of<float>(run.masters);
  const double first = run.step();
  EXPECT_EQ(run.taken, 0);
  EXPECT_EQ(run.adam->steps(), 0);
  EXPECT_EQ(run.scale.factor(), 0x1p49);
  for (const auto& [name, value] : attn_test::parameters_of<float>(run.masters)) {
    EXPECT_TRUE(same_bits(value, before.at(name))) << name;
  }
  double last = first;
  for (int n = 0; n < 80; ++n) last = run.step();
  EXPECT_GT(run.taken, 50);
  EXPECT_LT(run.scale.factor(), 0x1p45);
  EXPECT_LT(last, 0.4 * first);
}

/// Also within a growth interval, and with skipped steps.
TEST(LossScale, CheckpointsGoOnWithTheSameBits) {
  const TempFolder folder;
  const auto path = folder.path() / "run.safetensors";
  const attn::SerialExecutor one;
  const ThreadExecutor three(3);
  const attn::LossScaleOptions options{.initial = 0x1.8p47, .growth_interval = 7};
  for (const int stop : {2, 5, 19}) {
    ScaledRun whole(one, options), stopped(three, options), resumed(one, options);
    std::vector<double> losses;
    for (int n = 0; n < 30; ++n) losses.push_back(whole.step());
    for (int n = 0; n < stop; ++n) {
      EXPECT_EQ(stopped.step(), losses[static_cast<std::size_t>(n)]);
    }
    attn::save_checkpoint(path, stopped.masters, *stopped.adam,
                          {.step = stop,
                           .batches = stopped.batches.position(),
                           .loss_scale = stopped.scale.position()});
    const auto state = attn::load_checkpoint(path, resumed.masters, *resumed.adam);
    EXPECT_EQ(state.loss_scale, stopped.scale.position());
    EXPECT_TRUE(state.more.empty());
    resumed.scale.move_to(state.loss_scale);
    resumed.batches.move_to(state.batches);
    for (int n = stop; n < 30; ++n) {
      EXPECT_EQ(resumed.step(), losses[static_cast<std::size_t>(n)]);
    }
    EXPECT_EQ(resumed.scale.position(), whole.scale.position());
  }
  // A run without a loss scale saves none, and older files load.
  MixedRun<float16> plain(one);
  attn::save_checkpoint(path, plain.masters, *plain.adam, {});
  EXPECT_EQ(attn::load_checkpoint(path, plain.masters, *plain.adam).loss_scale,
            attn::LossScale::Position());
}

TEST(MixedPrecision, AnotherModelIsNoMaster) {
  attn::Linear<float> masters(2, 3), gradients(2, 3);
  attn::Linear<bfloat16> narrow(2, 2), without(2, 3, false);
  EXPECT_EQ(
      error_of<attn::ValueError>([&] { attn::parameters_of<float>(masters, gradients, narrow); }),
      "[parameters_of] model must have the parameters of its masters; found another, weight.");
  EXPECT_EQ(
      error_of<attn::ValueError>([&] { attn::parameters_of<float>(masters, gradients, without); }),
      "[parameters_of] model must have the parameters of its masters; found fewer.");
}

}  // namespace
}  // namespace attn_test
