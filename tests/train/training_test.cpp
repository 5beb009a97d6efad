// Optimizers against their formulas, clipping, schedules, batches, initialisation, interrupted
// runs.
#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>

#include <gtest/gtest.h>

#include "attn/train.hpp"

#include "support/error_of.hpp"
#include "support/files/temp_folder.hpp"
#include "support/isas.hpp"
#include "support/models/small_run.hpp"
#include "support/random.hpp"
#include "support/thread_executor.hpp"

namespace attn_test {
namespace {

using attn::index_t, attn::Linear;

/// A Linear with gradients, both random.
struct Drawn {
  Linear<double> layer{5, 7}, gradients{5, 7};
  std::vector<attn::TrainedParameter<double>> parameters;

  explicit Drawn(Random& random) {
    for (Linear<double>* one : {&layer, &gradients}) {
      for (double& x : one->weight.elements()) x = random.normal();
      for (double& x : one->bias.elements()) x = random.normal();
    }
    parameters = attn::parameters_of<double>(layer, gradients);
  }
};

TEST(Adam, FollowsItsFormula) {
  for (const bool decoupled : {false, true}) {
    Random random;
    Drawn drawn(random);
    const double b1 = 0.8, b2 = 0.95, eps = 1e-3, decay = 0.1, rate = 0.01;
    attn::Adam<double> adam(
        drawn.parameters,
        {.beta1 = b1, .beta2 = b2, .eps = eps, .weight_decay = decay, .decoupled = decoupled});
    auto p = drawn.layer.weight;
    attn::Tensor2<double> m(p.shape()), v(p.shape());
    for (int t = 1; t <= 3; ++t) {
      for (std::size_t i = 0; i < p.elements().size(); ++i) {
        double& x = p.elements()[i];
        double g = drawn.gradients.weight.elements()[i];
        if (decoupled) x *= 1 - rate * decay;
        if (!decoupled) g += decay * x;
        double &m1 = m.elements()[i], &m2 = v.elements()[i];
        m1 = b1 * m1 + (1 - b1) * g;
        m2 = b2 * m2 + (1 - b2) * g * g;
        x -= rate / (1 - std::pow(b1, t)) * m1 / (std::sqrt(m2 / (1 - std::pow(b2, t))) + eps);
      }
      adam.step(rate);
      for (std::size_t i = 0; i < p.elements().size(); ++i) {
        EXPECT_NEAR(drawn.layer.weight.elements()[i], p.elements()[i], 1e-14);
      }
    }
    EXPECT_EQ(adam.steps(), 3);
  }
}

TEST(Sgd, FollowsItsFormula) {
  for (const bool nesterov : {false, true}) {
    Random random;
    Drawn drawn(random);
    attn::Sgd<double> sgd(drawn.parameters,
                          {.momentum = 0.9, .nesterov = nesterov, .weight_decay = 0.1});
    auto p = drawn.layer.weight;
    attn::Tensor2<double> buffer(p.shape());
    for (int t = 1; t <= 3; ++t) {
      sgd.step(0.05);
      for (std::size_t i = 0; i < p.elements().size(); ++i) {
        double& x = p.elements()[i];
        const double g = drawn.gradients.weight.elements()[i] + 0.1 * x;
        double& b = buffer.elements()[i];
        b = t == 1 ? g : 0.9 * b + g;
        x -= 0.05 * (nesterov ? g + 0.9 * b : b);
        EXPECT_NEAR(drawn.layer.weight.elements()[i], x, 1e-14);
      }
    }
  }
}

TEST(Optimizers, CheckTheirNumbers) {
  Random random;
  Drawn drawn(random);
  const auto& p = drawn.parameters;
  const double nan = std::nan("");
  const auto of = [](auto f) { return error_of<attn::ValueError>(f); };
  using Sgd = attn::Sgd<double>;
  using Adam = attn::Adam<double>;
  EXPECT_EQ(of([&] { Sgd(p, {.momentum = -1}); }),
            "[Sgd] momentum must be finite and at least 0; found -1.000000.");
  EXPECT_EQ(of([&] { Sgd(p, {.nesterov = true}); }),
            "[Sgd] momentum must be above 0 with nesterov; found 0.000000.");
  EXPECT_EQ(of([&] { Sgd(p, {.weight_decay = -0.1}); }),
            "[Sgd] weight_decay must be finite and at least 0; found -0.100000.");
  EXPECT_EQ(of([&] { Adam(p, {.beta1 = 1}); }),
            "[Adam] beta1 must be at least 0 and below 1; found 1.000000.");
  EXPECT_EQ(of([&] { Adam(p, {.beta2 = nan}); }),
            "[Adam] beta2 must be at least 0 and below 1; found nan.");
  EXPECT_EQ(of([&] { Adam(p, {.eps = -1}); }),
            "[Adam] eps must be finite and at least 0; found -1.000000.");
  EXPECT_EQ(of([&] {
              Adam(p, {.groups = {{attn::decays, -2.0, 0.5}}});
            }),
            "[Adam] a group's learning_rate must be finite and at least 0; found -2.000000.");
  Adam adam(p);
  const auto before = drawn.layer.weight;
  EXPECT_EQ(of([&] { adam.step(nan); }),
            "[Adam] step's learning_rate must be finite and at least 0; found nan.");
  EXPECT_EQ(of([&] { adam.step(0.1, {}, nan); }),
            "[Adam] step's gradient_scale must be finite; found nan.");
  EXPECT_EQ(adam.steps(), 0);
  EXPECT_TRUE(std::ranges::equal(before.elements(), drawn.layer.weight.elements()));
  EXPECT_EQ(of([&] { attn::clip_gradient_norm(p, -1); }),
            "[clip_gradient_norm] max_norm must be at least 0; found -1.000000.");
  EXPECT_EQ(of([&] { attn::clip_gradient_values(p, nan); }),
            "[clip_gradient_values] max_value must be at least 0; found nan.");
}

TEST(ParameterGroups, FirstThatTakesAParameterCounts) {
  Random random;
  Drawn drawn(random);
  const auto weight = drawn.layer.weight;
  const auto bias = drawn.layer.bias;
  attn::Sgd<double> sgd(drawn.parameters,
                        {.groups = {{attn::decays, 2.0, 0.5}}});  // no group contains the bias
  sgd.step(0.1);
  EXPECT_NEAR(drawn.layer.weight(0, 0),
              weight(0, 0) - 0.2 * (drawn.gradients.weight(0, 0) + 0.5 * weight(0, 0)), 1e-15);
  EXPECT_EQ(drawn.layer.bias(0), bias(0));
}

TEST(Clipping, HasTheSameBitsOnAnyThreads) {
  Random random;
  attn::Linear<float> layer(300, 700), gradients = attn::gradients_of(layer);
  const auto parameters = attn::parameters_of<float>(layer, gradients);
  const auto drawn = random.tensor<float, 2>(gradients.weight.shape());
  const auto run = [&](const attn::Executor& executor) {
    std::copy(drawn.elements().begin(), drawn.elements().end(), gradients.weight.data());
    const double norm = attn::clip_gradient_norm(parameters, 0.5, {.executor = &executor});
    return std::pair(norm, gradients.weight);
  };
  const auto [one, first] = run(attn::SerialExecutor());
  const auto [three, again] = run(ThreadExecutor(3));
  EXPECT_EQ(one, three);
  EXPECT_TRUE(std::equal(first.elements().begin(), first.elements().end(), again.data()));
  double sum = 0;
  for (float g : drawn.elements()) sum += static_cast<double>(g) * static_cast<double>(g);
  EXPECT_NEAR(one, std::sqrt(sum), 1e-9);
  EXPECT_NEAR(attn::gradient_norm(parameters), 0.5, 1e-6);
  attn::clear_gradients(parameters);
  EXPECT_EQ(attn::gradient_norm(parameters), 0);
}

TEST(Clipping, ScalesToTheNorm) {
  Random random;
  Drawn drawn(random);
  double sum = 0;
  for (double g : drawn.gradients.weight.elements()) sum += g * g;
  for (double g : drawn.gradients.bias.elements()) sum += g * g;
  EXPECT_NEAR(attn::gradient_norm(drawn.parameters), std::sqrt(sum), 1e-13);
  EXPECT_NEAR(attn::clip_gradient_norm(drawn.parameters, 1e6), std::sqrt(sum), 1e-13);
  EXPECT_NEAR(attn::clip_gradient_norm(drawn.parameters, 0.5), std::sqrt(sum), 1e-13);
  EXPECT_NEAR(attn::gradient_norm(drawn.parameters), 0.5, 1e-6);
  attn::clip_gradient_values(drawn.parameters, 0.01);
  for (double g : drawn.gradients.weight.elements()) EXPECT_LE(std::abs(g), 0.01);
  attn::check_gradients(drawn.parameters);
  drawn.gradients.bias(3) = std::numeric_limits<double>::quiet_NaN();
  EXPECT_TRUE(contains(error_of<attn::ValueError>([&] { attn::check_gradients(drawn.parameters); }),
                       "bias"));
}

/// gradient_scale of a step gives the bits of scaling before it, and clip_gradient_norm() scales by
/// clip_factor().
TEST(Clipping, AStepScalesGradientsAsItReadsThem) {
  Random random;
  attn::Linear<float> drawn(41, 1003), drawn_gradients = attn::gradients_of(drawn);
  for (attn::Linear<float>* one : {&drawn, &drawn_gradients}) {
    for (float& x : one->weight.elements()) x = static_cast<float>(random.normal());
    for (float& x : one->bias.elements()) x = static_cast<float>(random.normal());
  }
  const ThreadExecutor three(3);
  const auto expect_same = [&](auto make, attn::Isa isa) {
    attn::Linear<float> a = drawn, b = drawn, of_a = drawn_gradients, of_b = drawn_gradients;
    const auto in_a = attn::parameters_of<float>(a, of_a),
               in_b = attn::parameters_of<float>(b, of_b);
    auto first = make(in_a), second = make(in_b);
    for (int n = 0; n < 3; ++n) {
      const double norm = attn::clip_gradient_norm(in_a, 3, {.isa = isa});
      first->step(0.01, {.isa = isa});
      EXPECT_EQ(attn::gradient_norm(in_b, {.executor = &three, .isa = isa}), norm);
      second->step(0.01, {.executor = &three, .isa = isa}, attn::clip_factor(norm, 3));
      // parameters_of() refers to its memory.
      std::ranges::copy(drawn_gradients.weight.elements(), of_a.weight.data());
      std::ranges::copy(drawn_gradients.bias.elements(), of_a.bias.data());
    }
    EXPECT_TRUE(std::ranges::equal(a.weight.elements(), b.weight.elements()));
    EXPECT_TRUE(std::ranges::equal(a.bias.elements(), b.bias.elements()));
    EXPECT_FALSE(std::ranges::equal(a.weight.elements(), drawn.weight.elements()));
  };
  for (attn::Isa isa : available_isas()) {
    SCOPED_TRACE(attn::name(isa));
    expect_same(
        [](const auto& parameters) {
          return std::make_unique<attn::Adam<float>>(
              parameters, attn::AdamOptions{.weight_decay = 0.1, .decoupled = true});
        },
        isa);
    expect_same(
        [](const auto& parameters) {
          return std::make_unique<attn::Sgd<float>>(
              parameters, attn::SgdOptions{.momentum = 0.9, .weight_decay = 0.1});
        },
        isa);
  }
  const double infinity = std::numeric_limits<double>::infinity();
  EXPECT_EQ(attn::clip_factor(0.5, 1), 1);
  EXPECT_EQ(attn::clip_factor(infinity, 1), 1);
  EXPECT_EQ(attn::clip_factor(std::nan(""), 1), 1);
  EXPECT_NEAR(attn::clip_factor(4, 1), 0.25, 1e-6);
  // Squares that overflow a float do not overflow the norm.
  drawn_gradients.weight(1002, 40) = 3e38f;
  const auto parameters = attn::parameters_of<float>(drawn, drawn_gradients);
  EXPECT_NEAR(attn::gradient_norm(parameters), 3e38, 1e32);
}

TEST(Schedules, WarmUpAndFall) {
  const attn::Schedule cosine{.kind = attn::Schedule::Kind::cosine,
                              .peak = 1.0,
                              .minimum = 0.1,
                              .warm_up = 10,
                              .steps = 110};
  EXPECT_DOUBLE_EQ(cosine.at(5), 0.5);
  EXPECT_DOUBLE_EQ(cosine.at(10), 1.0);
  EXPECT_NEAR(cosine.at(60), 0.55, 1e-12);
  EXPECT_NEAR(cosine.at(110), 0.1, 1e-12);
  EXPECT_NEAR(cosine.at(1000), 0.1, 1e-12);
  const attn::Schedule linear{.kind = attn::Schedule::Kind::linear, .peak = 1.0, .steps = 100};
  EXPECT_DOUBLE_EQ(linear.at(25), 0.75);
  EXPECT_DOUBLE_EQ((attn::Schedule{.peak = 0.3}).at(7), 0.3);
  EXPECT_DOUBLE_EQ(attn::paper_rate(8, 16, 8), 0.25 / std::sqrt(8.0));
}

TEST(Batches, TakeEveryExampleOnceAnEpochAndGoOnWhereTheyWere) {
  attn::Batches batches(10, 3, 42);
  std::vector<index_t> seen;
  std::vector<std::vector<index_t>> all;
  for (int n = 0; n < 7; ++n) {
    const auto batch = batches.next();
    all.emplace_back(batch.begin(), batch.end());
    if (n < 3) seen.insert(seen.end(), batch.begin(), batch.end());
  }
  std::sort(seen.begin(), seen.end());
  EXPECT_EQ(std::unique(seen.begin(), seen.end()), seen.end());
  EXPECT_NE(all[0], all[3]);
  attn::Batches again(10, 3, 0);
  again.move_to({42, 1, 1});
  const auto batch = again.next();
  EXPECT_EQ(std::vector<index_t>(batch.begin(), batch.end()), all[4]);
  EXPECT_EQ(again.position(), (attn::Batches::Position{42, 1, 2}));
  EXPECT_THROW(attn::Batches(2, 3, 0), attn::ValueError);
}

TEST(Initialize, FollowsTheNamesAndTheSeed) {
  attn::Gpt<float> a(small_gpt()), b(small_gpt()), c(small_gpt());
  attn::initialize(a, {.seed = 1});
  attn::initialize(b, {.seed = 1});
  attn::initialize(c, {.seed = 2});
  const auto& first = a.blocks.layers[0];
  const auto within = [](const auto& x, double bound) {
    return std::ranges::all_of(x.elements(), [&](float v) { return std::abs(v) <= bound; });
  };
  EXPECT_TRUE(
      std::ranges::equal(a.embedding.words.weight.elements(), b.embedding.words.weight.elements()));
  EXPECT_FALSE(
      std::ranges::equal(a.embedding.words.weight.elements(), c.embedding.words.weight.elements()));
  EXPECT_TRUE(within(first.feed_forward.linear1.weight, 0.25));
  EXPECT_FALSE(within(first.feed_forward.linear1.weight, 0.2));
  EXPECT_TRUE(within(first.feed_forward.linear1.bias, 0.25));
  EXPECT_EQ(first.norm1.weight(3), 1.0f);
  EXPECT_EQ(first.norm1.bias(3), 0.0f);
}

TEST(Checkpoint, RunsThatStopGoOnWithTheSameBits) {
  const TempFolder folder;
  const auto path = folder.path() / "run.safetensors";
  const attn::SerialExecutor one;
  const ThreadExecutor three(3);
  SmallRun whole(one), stopped(three);
  std::vector<double> losses;
  for (int n = 0; n < 14; ++n) losses.push_back(whole.step());
  EXPECT_LT(losses.back(), losses.front());
  for (int n = 0; n < 7; ++n) EXPECT_EQ(stopped.step(), losses[static_cast<std::size_t>(n)]);
  attn::save_checkpoint(path, stopped.model, stopped.adam,
                        {.step = 7, .batches = stopped.batches.position(), .more = {{"a", "b"}}});
  SmallRun resumed(one);
  const attn::TrainingState state = attn::load_checkpoint(path, resumed.model, resumed.adam);
  EXPECT_EQ(state.step, 7);
  EXPECT_EQ(state.more.at("a"), "b");
  EXPECT_EQ(state.more.size(), 1u);
  resumed.batches.move_to(state.batches);
  for (int n = 7; n < 14; ++n) EXPECT_EQ(resumed.step(), losses[static_cast<std::size_t>(n)]);
  Linear<float> other(2, 3), d(2, 3);
  attn::Sgd<float> sgd(attn::parameters_of<float>(other, d));
  EXPECT_THROW(attn::load_checkpoint(path, other, sgd), attn::ValueError);
}

}  // namespace
}  // namespace attn_test
