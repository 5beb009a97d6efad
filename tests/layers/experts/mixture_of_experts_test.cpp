// MixtureOfExperts against loops in double, gradients against central differences, routing.
#include <gtest/gtest.h>

#include "attn/layers/experts/explain.hpp"
#include "attn/layers/experts/mixture_of_experts_backward.hpp"

#include "support/error_of.hpp"
#include "support/isas.hpp"
#include "support/models/module_gradients.hpp"
#include "support/references/reference_layers.hpp"
#include "support/thread_executor.hpp"

namespace attn_test {
namespace {

using attn::MixtureOfExperts, attn::MixtureOfExpertsOptions, attn::RouterScore;
using attn::Tensor3;

MixtureOfExpertsOptions draw_experts(Random& random) {
  MixtureOfExpertsOptions o;
  o.num_groups = random.pick<Index>({1, 1, 2, 4});
  o.num_experts = o.num_groups * random.integer(1, 4);
  o.groups_per_token = random.integer(1, o.num_groups);
  o.experts_per_token = random.integer(1, o.num_experts / o.num_groups * o.groups_per_token);
  o.dim_feedforward = random.integer(1, 9);
  o.score = random.pick<RouterScore>({RouterScore::softmax, RouterScore::sigmoid});
  o.normalize = random.chance(0.5);
  o.scale = random.pick<double>({1, 2.5});
  if (random.chance(0.5)) o.dim_shared = random.integer(1, 9);
  o.shared_gate = o.dim_shared > 0 && random.chance(0.5);
  o.bias = random.chance(0.4);
  o.gated = random.chance(0.7);
  if (o.gated && random.chance(0.4)) o.glu_limit = 0.6, o.glu_offset = 1;
  return o;
}

template <class T>
MixtureOfExperts<T> draw_module(Random& random, Index dim, const MixtureOfExpertsOptions& options) {
  MixtureOfExperts<T> module(dim, attn::Activation::silu, options);
  draw_parameters(random, module);
  return module;
}

template <class T>
std::vector<double> expert_result(const attn::FeedForward<T>& expert,
                                  const std::vector<double>& x) {
  const Index hidden = expert.linear2.weight.extent(1), dim = expert.linear2.weight.extent(0);
  const auto bias = [](const auto& values, Index row) {
    return values ? static_cast<double>(values(row)) : 0.0;
  };
  const auto product = [&](Index row) {
    double sum = bias(expert.linear1.bias, row);
    for (Index i = 0; i < dim; ++i) {
      sum += static_cast<double>(expert.linear1.weight(row, i)) * x[static_cast<std::size_t>(i)];
    }
    return sum;
  };
  std::vector<double> y(x.size());
  for (Index i = 0; i < dim; ++i) y[static_cast<std::size_t>(i)] = bias(expert.linear2.bias, i);
  for (Index h = 0; h < hidden; ++h) {
    double value = reference_silu((std::min)(product(h), expert.glu_limit));
    if (expert.gated) {
      const double limit = expert.glu_limit;
      value *= std::clamp(product(hidden + h), -limit, limit) + expert.glu_offset;
    }
    for (Index i = 0; i < dim; ++i) {
      y[static_cast<std::size_t>(i)] += static_cast<double>(expert.linear2.weight(i, h)) * value;
    }
  }
  return y;
}

double dot_of_row(const auto& weight, Index row, const std::vector<double>& x) {
  double sum = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    sum += static_cast<double>(weight(row, static_cast<Index>(i))) * x[i];
  }
  return sum;
}

/// The experts of one token and their scores, by the definition: scores, groups, the best experts
/// one by one.
template <class T>
std::vector<std::pair<std::size_t, double>> token_experts(const MixtureOfExperts<T>& m,
                                                          const std::vector<double>& x) {
  const MixtureOfExpertsOptions& o = m.options();
  std::vector<double> scores, choice;
  double sum = 0;
  for (Index e = 0; e < o.num_experts; ++e) {
    const double bias = m.router.bias ? static_cast<double>(m.router.bias(e)) : 0;
    scores.push_back(std::exp(dot_of_row(m.router.weight, e, x) + bias));
    sum += scores.back();
  }
  for (Index e = 0; e < o.num_experts; ++e) {
    double& s = scores[static_cast<std::size_t>(e)];
    s = o.score == RouterScore::softmax ? s / sum : s / (1 + s);
    choice.push_back(s + (m.correction_bias ? static_cast<double>(m.correction_bias(e)) : 0));
  }
  const auto size = static_cast<std::size_t>(o.num_experts / o.num_groups);
  std::vector<std::pair<double, std::size_t>> groups;
  for (std::size_t g = 0; g < static_cast<std::size_t>(o.num_groups); ++g) {
    std::vector<double> sorted(choice.begin() + static_cast<Index>(g * size),
                               choice.begin() + static_cast<Index>((g + 1) * size));
    std::sort(sorted.rbegin(), sorted.rend());
    const bool of_two = o.score == RouterScore::sigmoid && size > 1;
    groups.emplace_back(-(sorted[0] + (of_two ? sorted[1] : 0)), g);
  }
  std::sort(groups.begin(), groups.end());
  std::vector<std::pair<double, std::size_t>> best;
  for (std::size_t n = 0; n < static_cast<std::size_t>(o.groups_per_token); ++n) {
    for (std::size_t i = 0; i < size; ++i) {
      const std::size_t e = groups[n].second * size + i;
      best.emplace_back(-choice[e], e);
    }
  }
  std::sort(best.begin(), best.end());
  best.resize(static_cast<std::size_t>(o.experts_per_token));
  std::vector<std::pair<std::size_t, double>> result;
  for (const auto& [negative, e] : best) result.emplace_back(e, scores[e]);
  return result;
}

/// One token by the definition.
template <class T>
std::vector<double> token_result(const MixtureOfExperts<T>& m, const std::vector<double>& x) {
  const MixtureOfExpertsOptions& o = m.options();
  const auto best = token_experts(m, x);
  double total = 0;
  for (const auto& [e, score] : best) total += score;
  std::vector<double> y(x.size());
  for (const auto& [e, score] : best) {
    const double weight = o.scale * score / (o.normalize ? total : 1);
    const auto result = expert_result(m.experts[e], x);
    for (std::size_t i = 0; i < x.size(); ++i) y[i] += weight * result[i];
  }
  if (o.dim_shared > 0) {
    const double gate =
        o.shared_gate ? 1 / (1 + std::exp(-dot_of_row(m.shared_expert_gate.weight, 0, x))) : 1;
    const auto result = expert_result(m.shared_expert, x);
    for (std::size_t i = 0; i < x.size(); ++i) y[i] += gate * result[i];
  }
  return y;
}

TEST(MixtureOfExperts, IsTheWeightedSumOfTheChosenExperts) {
  const ThreadExecutor three(3);
  for (std::uint64_t n = 0; n < attn_test::draws(100); ++n) {
    Random random(n);
    SCOPED_TRACE(random.trace());
    const Index dim = random.integer(1, 20);
    auto module = draw_module<double>(random, dim, draw_experts(random));
    if (random.chance(0.5)) module.pack();
    const auto x = random.tensor<double, 3>({random.integer(1, 3), random.integer(0, 9), dim});
    const auto residual = random.tensor<double, 3>(x.shape());
    Tensor3<double> out(residual.view());
    module.forward(x, out, out, {.executor = &three, .isa = random.pick(available_isas())});
    for (Index t = 0; t < x.extent(0) * x.extent(1); ++t) {
      const std::vector<double> row(x.data() + t * dim, x.data() + (t + 1) * dim);
      const auto expected = token_result(module, row);
      for (Index i = 0; i < dim; ++i) {
        const double want = expected[static_cast<std::size_t>(i)] + residual.data()[t * dim + i];
        ASSERT_NEAR(out.data()[t * dim + i], want, 1e-11 * (1 + std::abs(want)));
      }
    }
  }
}

/// A token alone, in a batch, and on any number of threads.
TEST(MixtureOfExperts, SameBitsForAnyBatchAndThreads) {
  const ThreadExecutor three(3);
  for (std::uint64_t n = 0; n < 10; ++n) {
    Random random(n);
    SCOPED_TRACE(random.trace());
    const Index dim = 8 * random.integer(1, 8);
    MixtureOfExpertsOptions options = draw_experts(random);
    options.dim_feedforward *= 16;
    const auto module = draw_module<float>(random, dim, options);
    const auto x = random.tensor<float, 3>({2, 40, dim});
    Tensor3<float> all(x.shape()), threaded(x.shape()), one({1, 1, dim});
    module.forward(x, all);
    module.forward(x, threaded, {}, {.executor = &three});
    EXPECT_TRUE(std::ranges::equal(all.elements(), threaded.elements()));
    for (Index t = 0; t < 80; ++t) {
      module.forward(x.view().slice(0, t / 40, t / 40 + 1).slice(1, t % 40, t % 40 + 1), one);
      for (Index i = 0; i < dim; ++i) ASSERT_EQ(one.data()[i], all.data()[t * dim + i]) << t;
    }
  }
}

/// As in transformers, which adds 1e-20 to the sum: experts whose sigmoids are 0 have weight 0.
TEST(MixtureOfExperts, ScoresThatAreAllZero) {
  Random random(3);
  MixtureOfExpertsOptions options{.num_experts = 4, .dim_feedforward = 3, .bias = true};
  options.score = RouterScore::sigmoid;
  auto module = draw_module<float>(random, 5, options);
  module.router.bias.fill(-200);
  const auto x = random.tensor<float, 3>({1, 2, 5});
  attn::MixtureOfExpertsSaved<float> saved;
  Tensor3<float> out(x.shape()), d_x(x.shape());
  auto gradients = attn::gradients_of(module);
  attn::forward(module, x, out, saved);
  attn::backward(module, x, saved, d_x, gradients);
  for (const auto* result : {&out, &d_x}) {
    for (const float value : result->elements()) EXPECT_EQ(value, 0);
  }
}

TEST(MixtureOfExpertsBackward, AgreesWithCentralDifferences) {
  for (std::uint64_t n = 0; n < attn_test::draws(40); ++n) {
    Random random(n);
    SCOPED_TRACE(random.trace());
    const Index dim = random.integer(1, 6);
    auto module = draw_module<double>(random, dim, draw_experts(random));
    auto x = random.tensor<double, 3>({2, random.integer(1, 5), dim});
    const auto d = random.tensor<double, 3>(x.shape()),
               residual = random.tensor<double, 3>(x.shape());
    attn::MixtureOfExpertsSaved<double> saved, other;
    saved.balance = random.pick<double>({0, 0.7});
    Tensor3<double> out(x.shape()), d_x(x.shape());
    const auto loss = [&] {
      attn::forward(module, x, out, other);
      return weighted_sum(d.elements(), out.elements()) +
             saved.balance * attn::load_balancing_loss(module, other);
    };
    auto gradients = attn::gradients_of(module);
    attn::forward(module, x, out, saved, residual);
    attn::backward(module, d, saved, d_x, gradients, residual);
    for (Index i = 0; i < x.size(); ++i) d_x.data()[i] -= residual.data()[i];
    expect_gradient("x", random, x.elements(), d_x.elements(), loss);
    for (std::size_t e = 0; e < module.experts.size(); ++e) {
      expect_module_gradients(random, module.experts[e], gradients.experts[e], loss);
    }
    expect_module_gradients(random, module.router, gradients.router, loss);
    if (module.options().dim_shared > 0) {
      expect_module_gradients(random, module.shared_expert, gradients.shared_expert, loss);
    }
    if (module.options().shared_gate) {
      expect_module_gradients(random, module.shared_expert_gate, gradients.shared_expert_gate,
                              loss);
    }
    if (HasFailure()) break;
  }
}

TEST(ExplainExperts, CountsTheTokensOfEachExpertAndTheWeightsThatAreRead) {
  for (std::uint64_t n = 0; n < attn_test::draws(40); ++n) {
    Random random(n);
    SCOPED_TRACE(random.trace());
    const Index dim = random.integer(1, 9);
    const auto module = draw_module<double>(random, dim, draw_experts(random));
    const auto x = random.tensor<double, 3>({random.integer(1, 3), random.integer(0, 6), dim});
    const MixtureOfExpertsOptions& o = module.options();
    const Index tokens = x.extent(0) * x.extent(1), matrices = o.gated ? 3 : 2;
    std::vector<Index> expected(module.experts.size());
    for (Index t = 0; t < tokens; ++t) {
      const std::vector<double> row(x.data() + t * dim, x.data() + (t + 1) * dim);
      for (const auto& [e, score] : token_experts(module, row)) expected[e] += 1;
    }
    // Rows times elements of weights; elements that are read.
    Index products = 0, elements = 0;
    const auto add = [&](Index rows, Index size) {
      products += rows * size;
      elements += rows > 0 ? size : 0;
    };
    for (const Index rows : expected) add(rows, matrices * dim * o.dim_feedforward);
    add(tokens, dim * o.num_experts);
    add(tokens, matrices * dim * o.dim_shared);
    if (o.shared_gate) add(tokens, dim);

    const attn::ExpertsExplanation e = attn::explain(module, x);
    EXPECT_EQ(e.tokens, expected);
    EXPECT_EQ(e.used, std::ssize(expected) - std::ranges::count(expected, 0));
    EXPECT_EQ(e.flops, 2 * static_cast<double>(products));
    EXPECT_EQ(e.bytes, static_cast<double>(elements * Index{sizeof(double)}));
  }
  const MixtureOfExperts<float> module(
      1000, attn::Activation::silu,
      {.num_experts = 4, .experts_per_token = 1, .dim_feedforward = 500});
  EXPECT_EQ(attn::explain(module, Tensor3<float>({1, 2, 1000})).text(),
            "experts    1 of 4 used, at most 2 tokens each\n"
            "work       0.006016 GFLOP, 6.016 MB of weights\n");
}

TEST(MixtureOfExpertsErrors, NameTheOption) {
  const auto error_with = [](const MixtureOfExpertsOptions& options) {
    return error_of<attn::ValueError>(
        [&] { MixtureOfExperts<float> module(4, attn::Activation::silu, options); });
  };
  EXPECT_EQ(error_with({.num_experts = 4, .experts_per_token = 5, .dim_feedforward = 3}),
            "[MixtureOfExperts] experts_per_token must lie in 1 .. 4; found 5.");
  EXPECT_EQ(error_with({.num_experts = 4, .dim_feedforward = 3, .num_groups = 3}),
            "[MixtureOfExperts] num_groups must divide num_experts = 4; found 3.");
  EXPECT_EQ(error_with({.num_experts = 4}),
            "[MixtureOfExperts] dim_feedforward must be positive; found 0.");
  EXPECT_EQ(error_with({.num_experts = 4, .dim_feedforward = 3, .shared_gate = true}),
            "[MixtureOfExperts] dim_shared must be positive with shared_gate; found 0.");
  EXPECT_EQ(error_with({.num_experts = 4, .dim_feedforward = 3, .gated = false, .glu_offset = 1}),
            "[MixtureOfExperts] gated must be true with glu_limit or glu_offset; found false.");
  const MixtureOfExperts<float> module(4, attn::Activation::silu,
                                       {.num_experts = 2, .dim_feedforward = 3});
  const Tensor3<float> x({1, 2, 4});
  Tensor3<float> wrong({1, 3, 4});
  EXPECT_THROW(module.forward(x, wrong), attn::ShapeError);
}

}  // namespace
}  // namespace attn_test
