// Backward of kernels against central differences; float against double; same bits.
#include <gtest/gtest.h>

#include "attn/kernels/losses/contrastive_loss.hpp"
#include "attn/kernels/losses/cosine_loss.hpp"
#include "attn/kernels/losses/loss.hpp"
#include "attn/kernels/rows/activation_backward.hpp"
#include "attn/kernels/rows/column_sums.hpp"
#include "attn/kernels/rows/norm_backward.hpp"
#include "attn/kernels/rows/softmax_backward.hpp"

#include "support/gradient_check.hpp"
#include "support/isas.hpp"
#include "support/thread_executor.hpp"

namespace attn_test {
namespace {

using attn::Activation, attn::Tensor1, attn::Tensor2, attn::Tensor3, attn::TensorView3;

constexpr std::uint64_t kDraws = 40;

const std::vector<Index> kSizes{1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 33, 65, 97};

Tensor3<double> draw(Random& random, const attn::Shape<3>& shape, double scale = 1) {
  return random.tensor<double, 3>(shape, scale);
}

/// The loss `weights . out`.
double loss_of(const Tensor3<double>& weights, const Tensor3<double>& out) {
  return weighted_sum(weights.elements(), out.elements());
}

TEST(ActivationBackward, AgreesWithCentralDifferences) {
  for (std::uint64_t n = 0; n < kDraws; ++n) {
    Random random(n);
    const attn::Shape<3> shape{random.integer(1, 2), random.integer(1, 3), random.pick(kSizes)};
    const Activation f = random.pick<Activation>(
        {Activation::none, Activation::relu, Activation::gelu, Activation::gelu_tanh,
         Activation::relu_squared, Activation::silu, Activation::quick_gelu});
    const attn::GatedUnit unit = random.chance(0.5)
                                     ? attn::GatedUnit(f)
                                     : attn::GatedUnit(f, 0.8, random.pick<double>({0, 1}));
    const attn::Execution execution{.isa = random.pick(available_isas())};
    auto a = draw(random, shape, 2), b = draw(random, shape), d = draw(random, shape);
    Tensor3<double> d_a(shape), d_b(shape);
    activate_backward(f, d, a, d_a, execution);
    expect_gradient("x", random, a.elements(), d_a.elements(),
                    [&] { return loss_of(d, activate(f, a, execution)); });
    glu_backward(unit, d, a, b, d_a, d_b, execution);
    const auto loss = [&] { return loss_of(d, glu(unit, a, b, execution)); };
    expect_gradient("a", random, a.elements(), d_a.elements(), loss);
    expect_gradient("b", random, b.elements(), d_b.elements(), loss);
    auto in_place = d;  // d_b overwrites d_out, d_a overwrites a
    auto gate = a;
    glu_backward(unit, in_place, gate, b, gate, in_place, execution);
    EXPECT_TRUE(std::ranges::equal(gate.elements(), d_a.elements()));
    EXPECT_TRUE(std::ranges::equal(in_place.elements(), d_b.elements()));
  }
}

TEST(ActivationBackward, OfFarArgumentsIsFinite) {
  for (attn::Isa isa : available_isas()) {
    for (Activation f :
         {Activation::gelu, Activation::gelu_tanh, Activation::silu, Activation::quick_gelu}) {
      Tensor1<float> x({4}, {-1e4f, 1e4f, -1e30f, 1e30f}), d({4}, {1, 1, 1, 1}), d_x({4});
      activate_backward(f, d, x, d_x, {.isa = isa});
      EXPECT_EQ(d_x(0), 0.0f);
      EXPECT_EQ(d_x(1), 1.0f);
      EXPECT_EQ(d_x(2), 0.0f);
      EXPECT_EQ(d_x(3), 1.0f);
    }
  }
}

TEST(NormBackward, AgreesWithCentralDifferences) {
  for (std::uint64_t n = 0; n < kDraws; ++n) {
    Random random(n);
    const attn::Shape<3> shape{random.integer(1, 2), random.integer(1, 80), random.pick(kSizes)};
    const attn::Execution execution{.isa = random.pick(available_isas())};
    const bool weighted = random.chance(0.7);
    auto x = draw(random, shape), d = draw(random, shape), residual = draw(random, shape);
    auto weight = random.tensor<double, 1>({shape[2]}), bias = random.tensor<double, 1>({shape[2]});
    if (!weighted) weight = bias = {};
    Tensor3<double> d_x(shape);
    Tensor1<double> d_weight({shape[2]}), d_bias({shape[2]});
    const double eps = 0.1;
    layer_norm_backward(d, x, weight.view(), eps, d_x, d_weight.view(), d_bias.view(), {},
                        execution);
    const auto loss = [&] {
      return loss_of(d, layer_norm(x, weight.view(), bias.view(), eps, execution));
    };
    expect_gradient("x", random, x.elements(), d_x.elements(), loss);
    if (weighted) {
      expect_gradient("weight", random, weight.elements(), d_weight.elements(), loss);
      expect_gradient("bias", random, bias.elements(), d_bias.elements(), loss);
    }
    // In place, with the residual added.
    auto in_place = d;
    layer_norm_backward(in_place, x, weight.view(), eps, in_place, {}, {}, residual.view(),
                        execution);
    for (std::size_t i = 0; i < in_place.elements().size(); ++i) {
      EXPECT_EQ(in_place.elements()[i], d_x.elements()[i] + residual.elements()[i]);
    }
    d_weight.fill(0);
    rms_norm_backward(d, x, weight.view(), eps, d_x, d_weight.view(), {}, execution);
    const auto rms = [&] { return loss_of(d, rms_norm(x, weight.view(), eps, execution)); };
    expect_gradient("x of rms", random, x.elements(), d_x.elements(), rms);
    if (weighted)
      expect_gradient("rms weight", random, weight.elements(), d_weight.elements(), rms);
  }
}

// d_x = (d_out - its mean) / sqrt(eps), whatever the element.
TEST(NormBackward, RowsOfOneNumber) {
  const attn::index_t n = 500;
  Tensor2<float> x({1, n}), d_out({1, n}), d_x({1, n});
  d_out(0, 1) = 0.002F;
  for (const attn::Isa isa : available_isas()) {
    for (const float value : {1.0F, 1000.1F, 1e6F, 1e18F, 1e25F, 3e38F}) {
      SCOPED_TRACE(value);
      x.fill(value);
      Tensor1<float> d_weight({n});
      layer_norm_backward(d_out, x, {}, 1e-5, d_x, d_weight, {}, {}, {.isa = isa});
      const double each = 0.002 / std::sqrt(1e-5);
      EXPECT_NEAR(d_x(0, 1), each * (1 - 1.0 / n), 1e-5 * each);
      EXPECT_NEAR(d_x(0, 0), -each / n, 1e-5 * each);
      for (const float d : d_weight.elements()) EXPECT_EQ(d, 0);
    }
  }
}

// d_x of rows whose sum of squares overflows, against long double, among ordinary rows.
TEST(NormBackward, LargeFiniteRows) {
  for (std::uint64_t draw = 0; draw < attn_test::draws(60); ++draw) {
    Random random(draw);
    SCOPED_TRACE(random.trace());
    const attn::index_t n = random.pick<attn::index_t>({2, 7, 16, 33, 257}), rows = 4;
    const bool centers = random.chance(0.5);
    attn::Tensor2<float> x({rows, n}), d_out({rows, n}), d_x({rows, n});
    for (attn::index_t i = 0; i < rows; ++i) {
      const int exponent = static_cast<int>(random.integer(0, 100));
      for (attn::index_t k = 0; k < n; ++k) {
        x(i, k) = std::ldexp(static_cast<float>(random.normal()), exponent);
        d_out(i, k) = std::ldexp(static_cast<float>(random.normal()), exponent);
      }
    }
    for (const attn::Isa isa : attn_test::available_isas()) {
      attn::Tensor1<float> d_weight({n});
      if (centers) {
        attn::layer_norm_backward(d_out, x, {}, 1e-5, d_x, d_weight, {}, {}, {.isa = isa});
      } else {
        attn::rms_norm_backward(d_out, x, {}, 1e-5, d_x, d_weight, {}, {.isa = isa});
      }
      for (attn::index_t i = 0; i < rows; ++i) {
        const long double size = static_cast<long double>(n);
        long double mean = 0, square = 0, mean_g = 0, along = 0;
        for (attn::index_t k = 0; k < n && centers; ++k) mean += x(i, k) / size;
        for (attn::index_t k = 0; k < n; ++k) square += (x(i, k) - mean) * (x(i, k) - mean);
        const long double length = std::sqrt(square / size + static_cast<long double>(1e-5F));
        for (attn::index_t k = 0; k < n; ++k) {
          if (centers) mean_g += d_out(i, k) / size;
          along += d_out(i, k) * (x(i, k) - mean) / length / size;
        }
        long double largest = 0;
        for (attn::index_t k = 0; k < n; ++k)
          largest =
              std::max(largest, (std::abs(static_cast<long double>(d_out(i, k))) +
                                 std::abs(mean_g) + std::abs((x(i, k) - mean) / length * along)) /
                                    length);
        for (attn::index_t k = 0; k < n; ++k) {
          const long double expected =
              (d_out(i, k) - mean_g - (x(i, k) - mean) / length * along) / length;
          EXPECT_NEAR(static_cast<double>((d_x(i, k) - expected) / largest), 0, 1e-4) << name(isa);
        }
      }
      for (attn::index_t k = 0; k < n; ++k) EXPECT_TRUE(std::isfinite(d_weight(k)));
    }
  }
}

TEST(NormBackward, SameBitsOnAnyThreads) {
  Random random;
  const auto x = random.tensor<float, 2>({700, 300}), d = random.tensor<float, 2>({700, 300});
  const auto weight = random.tensor<float, 1>({300});
  Tensor2<float> one(x.shape()), three(x.shape());
  Tensor1<float> w1({300}), w3({300}), b1({300}), b3({300});
  const attn::SerialExecutor serial;
  const ThreadExecutor threads(3);
  layer_norm_backward(d, x, weight.view(), 1e-5, one, w1.view(), b1.view(), {},
                      {.executor = &serial});
  layer_norm_backward(d, x, weight.view(), 1e-5, three, w3.view(), b3.view(), {},
                      {.executor = &threads});
  EXPECT_TRUE(std::ranges::equal(one.elements(), three.elements()));
  EXPECT_TRUE(std::ranges::equal(w1.elements(), w3.elements()));
  EXPECT_TRUE(std::ranges::equal(b1.elements(), b3.elements()));
}

TEST(SoftmaxBackward, AgreesWithCentralDifferences) {
  for (std::uint64_t n = 0; n < kDraws; ++n) {
    Random random(n);
    const attn::Shape<3> shape{random.integer(1, 2), random.integer(1, 3), random.pick(kSizes)};
    const attn::Execution execution{.isa = random.pick(available_isas())};
    auto x = draw(random, shape), d = draw(random, shape);
    Tensor3<double> d_x(shape);
    softmax_backward(d, softmax(x, execution), d_x, execution);
    expect_gradient("softmax", random, x.elements(), d_x.elements(),
                    [&] { return loss_of(d, softmax(x, execution)); });
    log_softmax_backward(d, log_softmax(x, execution), d_x, execution);
    expect_gradient("log_softmax", random, x.elements(), d_x.elements(),
                    [&] { return loss_of(d, log_softmax(x, execution)); });
  }
}

TEST(CrossEntropy, AgreesWithItsFormulaAndCentralDifferences) {
  for (std::uint64_t n = 0; n < kDraws; ++n) {
    Random random(n);
    const Index rows = random.integer(1, 5), classes = random.pick(kSizes);
    auto x = random.tensor<double, 2>({rows, classes}, 2);
    Tensor1<int> targets({rows});
    auto weights = random.tensor<double, 1>({classes});
    for (double& w : weights.elements()) w = std::abs(w) + 0.1;
    attn::CrossEntropyOptions<double> options;
    options.execution.isa = random.pick(available_isas());
    if (random.chance(0.5)) options.label_smoothing = 0.3;
    if (random.chance(0.5)) options.class_weights = weights;
    if (random.chance(0.5)) options.ignore_index = -7;
    for (Index i = 0; i < rows; ++i) targets(i) = static_cast<int>(random.integer(0, classes - 1));
    if (options.ignore_index && rows > 1) targets(rows - 1) = -7;
    double sum = 0, total = 0;
    for (Index i = 0; i < rows; ++i) {
      if (targets(i) < 0) continue;
      double all = 0, smooth = 0;
      for (Index c = 0; c < classes; ++c) all += std::exp(x(i, c));
      const auto weight = [&](Index c) { return options.class_weights ? weights(c) : 1; };
      for (Index c = 0; c < classes; ++c) smooth += weight(c) * (std::log(all) - x(i, c));
      const double e = options.label_smoothing, w = weight(targets(i));
      sum += (1 - e) * w * (std::log(all) - x(i, targets(i))) +
             e / static_cast<double>(classes) * smooth;
      total += w;
    }
    Tensor2<double> d_x(x.shape());
    EXPECT_NEAR(cross_entropy_backward(x, targets, d_x, options), sum / total, 1e-12);
    EXPECT_NEAR(cross_entropy(x, targets, options), sum / total, 1e-12);
    expect_gradient("logits", random, x.elements(), d_x.elements(),
                    [&] { return cross_entropy(x, targets, options); });
    auto in_place = x;
    cross_entropy_backward(in_place, targets, in_place, options);
    EXPECT_TRUE(std::ranges::equal(in_place.elements(), d_x.elements()));
  }
}

/// Gradients of parts, each divided by the target weight of the whole batch, add up to the batch's
/// gradient; so do the losses.
TEST(CrossEntropy, PartsOfABatchAddUpToIt) {
  for (std::uint64_t n = 0; n < attn_test::draws(20); ++n) {
    Random random(n);
    const Index rows = random.integer(2, 9), classes = random.integer(2, 40);
    const Index cut = random.integer(1, rows - 1);
    const auto x = random.tensor<double, 2>({rows, classes}, 2);
    auto weights = random.tensor<double, 1>({classes});
    for (double& w : weights.elements()) w = std::abs(w) + 0.1;
    attn::CrossEntropyOptions<double> options{.ignore_index = 0, .label_smoothing = 0.2};
    if (random.chance(0.5)) options.class_weights = weights;
    Tensor1<int> targets({rows});
    double divisor = 0;
    for (int& target : targets.elements()) {
      target = static_cast<int>(random.integer(0, classes - 1));
      if (target != 0) divisor += options.class_weights ? weights(target) : 1;
    }
    if (divisor == 0) continue;
    Tensor2<double> whole(x.shape()), parts(x.shape());
    const double loss = cross_entropy_backward(x, targets, whole, options);
    options.divisor = divisor;
    double sum = 0;
    for (const auto& [begin, end] : {std::pair<Index, Index>{0, cut}, {cut, rows}}) {
      sum += cross_entropy_backward(x.slice(0, begin, end), targets.slice(0, begin, end),
                                    parts.slice(0, begin, end), options);
    }
    EXPECT_NEAR(sum, loss, 1e-12 * (1 + loss)) << random.trace();
    for (Index i = 0; i < whole.size(); ++i) {
      EXPECT_NEAR(parts.data()[i], whole.data()[i], 1e-15) << random.trace();
    }
  }
}

TEST(CrossEntropy, RefusesTargetsThatAreNoClass) {
  Tensor2<float> x({2, 3});
  Tensor1<int> targets({2}, {0, 3});
  EXPECT_THROW(cross_entropy(x, targets), attn::ValueError);
  EXPECT_NO_THROW(cross_entropy(x, targets, {.ignore_index = 3}));
}

TEST(MseLoss, AgreesWithCentralDifferences) {
  Random random;
  auto x = draw(random, {2, 3, 5}), target = draw(random, {2, 3, 5});
  Tensor3<double> d_x(x.shape());
  const double loss = mse_loss_backward(x, target, d_x);
  EXPECT_EQ(loss, attn::mse_loss(x, target));
  expect_gradient("x", random, x.elements(), d_x.elements(),
                  [&] { return attn::mse_loss(x, target); });
}

TEST(ContrastiveLoss, AgreesWithItsFormulaAndCentralDifferences) {
  for (std::uint64_t n = 0; n < 10; ++n) {
    Random random(n);
    const attn::Shape<2> shape{random.integer(1, 6), random.pick(kSizes)};
    auto x = random.tensor<double, 2>(shape), y = random.tensor<double, 2>(shape);
    Tensor2<double> d_x(shape), d_y(shape), unused(shape), other(shape);
    const attn::ContrastiveOptions options{.temperature = 0.3};
    const double loss = contrastive_loss_backward(x, y, d_x, d_y, options);
    double expected = 0;
    for (Index i = 0; i < shape[0]; ++i) {
      double all = 0, own = 0;
      for (Index j = 0; j < shape[0]; ++j) {
        double xy = 0, xx = 0, yy = 0;
        for (Index c = 0; c < shape[1]; ++c) {
          xy += x(i, c) * y(j, c), xx += x(i, c) * x(i, c), yy += y(j, c) * y(j, c);
        }
        const double logit = xy / std::sqrt(xx * yy) / 0.3;
        all += std::exp(logit);
        if (i == j) own = logit;
      }
      expected += (std::log(all) - own) / static_cast<double>(shape[0]);
    }
    EXPECT_NEAR(loss, expected, 1e-12 * (1 + std::abs(expected)));
    const auto run = [&] { return contrastive_loss_backward(x, y, unused, other, options); };
    expect_gradient("x", random, x.elements(), d_x.elements(), run);
    expect_gradient("y", random, y.elements(), d_y.elements(), run);
  }
}

TEST(CosineEmbeddingLoss, AgreesWithItsFormulaAndCentralDifferences) {
  for (std::uint64_t n = 0; n < attn_test::draws(20); ++n) {
    Random random(n);
    const attn::Shape<2> shape{random.integer(1, 6), random.pick(kSizes)};
    auto x = random.tensor<double, 2>(shape), y = random.tensor<double, 2>(shape);
    Tensor2<double> d_x(shape), d_y(shape);
    Tensor1<int> targets({shape[0]});
    for (int& target : targets.elements()) target = random.chance(0.5) ? 1 : -1;
    const attn::CosineEmbeddingOptions options{.margin = random.chance(0.5) ? 0.1 : 0.0};
    double expected = 0;
    for (Index i = 0; i < shape[0]; ++i) {
      double xy = 0, xx = 0, yy = 0;
      for (Index c = 0; c < shape[1]; ++c) {
        xy += x(i, c) * y(i, c), xx += x(i, c) * x(i, c), yy += y(i, c) * y(i, c);
      }
      const double cosine = xy / std::sqrt(xx * yy);
      expected += targets(i) == 1 ? 1 - cosine : std::max(0.0, cosine - options.margin);
    }
    expected /= static_cast<double>(shape[0]);
    EXPECT_NEAR(cosine_embedding_loss_backward(x, y, targets, d_x, d_y, options), expected, 1e-14);
    const auto run = [&] { return cosine_embedding_loss(x, y, targets, options); };
    EXPECT_NEAR(run(), expected, 1e-14);
    expect_gradient("x", random, x.elements(), d_x.elements(), run);
    expect_gradient("y", random, y.elements(), d_y.elements(), run);
    auto gx = x, gy = y;  // in place
    cosine_embedding_loss_backward(gx, gy, targets, gx, gy, options);
    EXPECT_TRUE(std::ranges::equal(gx.elements(), d_x.elements()));
    EXPECT_TRUE(std::ranges::equal(gy.elements(), d_y.elements()));
  }
  Tensor2<float> zeros({1, 3}), ones({1, 3}, {1, 1, 1}), d_x({1, 3}), d_y({1, 3});
  const Tensor1<int> alike({1}, {1}), wrong({1}, {0});
  EXPECT_EQ(cosine_embedding_loss_backward(zeros, ones, alike, d_x, d_y), 1.0);
  EXPECT_EQ(d_x(0, 0), 0.0f);
  EXPECT_EQ(d_y(0, 0), 0.0f);
  EXPECT_THROW(cosine_embedding_loss(zeros, ones, wrong), attn::ValueError);
  // NaN passes for either target; at the margin, the gradient is that of a pair beyond it.
  const Tensor2<float> spoilt({1, 3}, {NAN, 1, 1}), first({1, 3}, {1, 0, 0}),
      second({1, 3}, {0, 1, 0});
  const Tensor1<int> unlike({1}, {-1});
  EXPECT_TRUE(std::isnan(cosine_embedding_loss_backward(spoilt, ones, unlike, d_x, d_y)));
  EXPECT_TRUE(std::isnan(d_x(0, 1)));
  EXPECT_TRUE(std::isnan(cosine_embedding_loss(spoilt, ones, alike)));
  EXPECT_EQ(cosine_embedding_loss_backward(first, second, unlike, d_x, d_y), 0.0);
  EXPECT_EQ(d_x(0, 1), 1.0f);
  EXPECT_EQ(d_y(0, 0), 1.0f);
  Tensor2<float> none;
  EXPECT_THROW(cosine_embedding_loss_backward(first, second, unlike, d_x, none), attn::ShapeError);
  EXPECT_THROW(cosine_embedding_loss(zeros, ones, alike, {.margin = 2}), attn::ValueError);
}

TEST(ColumnSums, AddUpAllRows) {
  for (attn::Isa isa : available_isas()) {
    Random random;
    const auto x = random.tensor<double, 3>({3, 70, 37});
    Tensor1<double> sums({37});
    sums.fill(1);
    add_column_sums(x, sums.view(), {.isa = isa});
    for (Index c = 0; c < 37; ++c) {
      double sum = 1;
      for (Index b = 0; b < 3; ++b) {
        for (Index i = 0; i < 70; ++i) sum += x(b, i, c);
      }
      EXPECT_NEAR(sums(c), sum, 1e-12);
    }
  }
}

}  // namespace
}  // namespace attn_test
