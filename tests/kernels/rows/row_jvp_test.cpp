// Tangents of softmax, norms, activations, gated products, linear, embeddings, rotary and losses.
#include "attn/kernels/rows/row_jvp.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include <gtest/gtest.h>

#include "attn/kernels/losses/loss_backward_jvp.hpp"
#include "attn/layers/jvp/embedding_jvp.hpp"

#include "support/error_of.hpp"
#include "support/tangent_check.hpp"

namespace attn_test {
namespace {

using Matrix = attn::Tensor2<double>;

/// A random point and tangent of one input, the result of f there, and its tangent by jvp().
template <class F, class Jvp>
void expect_row_tangent(Random& random, const F& f, const Jvp& jvp) {
  for (const attn::Shape<2>& shape : {attn::Shape<2>{3, 1}, {1, 40}, {4, 33}}) {
    auto x = random.tensor<double, 2>(shape, 2);
    for (double& element : x.elements()) {
      if (std::abs(element) < 1e-3) element = 1;  // relu bends at 0
    }
    const auto d_x = random.tensor<double, 2>(shape);
    Matrix d_out(shape);
    jvp(x, d_x, d_out);
    Direction direction;
    direction.add(x, d_x);
    if (shape[1] > 1)
      expect_tangent(
          direction, [&] { return f(x); }, d_out, 1e-5);
    Matrix in_place = d_x;
    jvp(x, in_place, in_place);
    EXPECT_TRUE(std::ranges::equal(in_place.elements(), d_out.elements()));
  }
}

TEST(RowJvp, OfSoftmaxAndActivationsAgreesWithCentralDifferences) {
  Random random(1);
  expect_row_tangent(
      random, [](const Matrix& x) { return attn::softmax(x); },
      [](const Matrix& x, const Matrix& d_x, Matrix& d) {
        attn::softmax_jvp(attn::softmax(x), d_x, d);
      });
  expect_row_tangent(
      random, [](const Matrix& x) { return attn::log_softmax(x); },
      [](const Matrix& x, const Matrix& d_x, Matrix& d) {
        attn::log_softmax_jvp(attn::log_softmax(x), d_x, d);
      });
  using enum attn::Activation;
  for (const attn::Activation form :
       {none, relu, gelu, gelu_tanh, silu, relu_squared, quick_gelu}) {
    expect_row_tangent(
        random, [=](const Matrix& x) { return attn::activate(form, x); },
        [=](const Matrix& x, const Matrix& d_x, Matrix& d) {
          attn::activate_jvp(form, x, d_x, d);
        });
  }
}

TEST(RowJvp, OfNormsAndLinearTakesTangentsOfParameters) {
  for (std::uint64_t n = 0; n < 8; ++n) {
    Random random(n);
    SCOPED_TRACE(random.trace());
    const attn::index_t dim = random.integer(2, 40), out = random.integer(1, 20);
    const attn::Shape<3> shape{random.integer(1, 3), random.integer(1, 4), dim};
    auto x = random.tensor<double, 3>(shape);
    const auto d_x = random.tensor<double, 3>(shape);
    auto weight = random.tensor<double, 1>({dim}), bias = random.tensor<double, 1>({dim});
    const auto d_weight = random.tensor<double, 1>({dim}), d_bias = random.tensor<double, 1>({dim});
    attn::Tensor3<double> d_out(shape);
    Direction direction;
    direction.add(x, d_x);
    const bool has_tangents = random.chance(0.7);
    const attn::TensorView1<const double> none;
    if (has_tangents) direction.add(weight, d_weight);
    attn::rms_norm_jvp(x, d_x, weight, has_tangents ? d_weight.view() : none, 1e-5, d_out);
    expect_tangent(
        direction, [&] { return attn::rms_norm(x, weight, 1e-5); }, d_out, 1e-5);
    if (has_tangents) direction.add(bias, d_bias);
    attn::layer_norm_jvp(x, d_x, weight, has_tangents ? d_weight.view() : none,
                         has_tangents ? d_bias.view() : none, 1e-5, d_out);
    expect_tangent(
        direction, [&] { return attn::layer_norm(x, weight, bias, 1e-5); }, d_out, 1e-5);

    auto w = random.tensor<double, 2>({out, dim});
    const auto d_w = random.tensor<double, 2>({out, dim});
    auto b = random.tensor<double, 1>({out});
    const auto d_b = random.tensor<double, 1>({out});
    attn::Tensor3<double> d_y({shape[0], shape[1], out});
    Direction of_linear;
    of_linear.add(x, d_x);
    if (has_tangents) of_linear.add(w, d_w), of_linear.add(b, d_b);
    attn::linear_jvp(x, d_x, w, has_tangents ? d_w.view() : attn::TensorView2<const double>(),
                     has_tangents ? d_b.view() : none, d_y);
    expect_tangent(
        of_linear, [&] { return attn::linear(x, w, b); }, d_y, 1e-5);
  }
}

TEST(RowJvp, OfGatedUnitsKeepsTheLimit) {
  Random random(3);
  for (const attn::GatedUnit unit : {attn::GatedUnit(attn::Activation::silu),
                                     attn::GatedUnit(attn::Activation::quick_gelu, 1.5, 1)}) {
    auto a = random.tensor<double, 2>({3, 19}, 2), b = random.tensor<double, 2>({3, 19}, 2);
    const auto d_a = random.tensor<double, 2>({3, 19}), d_b = random.tensor<double, 2>({3, 19});
    Matrix d_out({3, 19});
    attn::glu_jvp(unit, a, d_a, b, d_b, d_out);
    Direction direction;
    direction.add(a, d_a), direction.add(b, d_b);
    expect_tangent(
        direction, [&] { return attn::glu(unit, a, b); }, d_out, 1e-5);
  }
}

TEST(RowJvp, OfEmbeddingAndRotaryIsTheFunctionOfTheTangent) {
  Random random(4);
  auto table = random.tensor<double, 2>({7, 5});
  const auto d_table = random.tensor<double, 2>({7, 5});
  attn::Tensor2<int> ids({2, 3});
  std::ranges::copy(std::vector<int>{3, 0, 3, 6, 1, 2}, ids.data());
  attn::Tensor3<double> d_out({2, 3, 5});
  attn::embedding_jvp(d_table, ids, d_out);
  Direction of_table;
  of_table.add(table, d_table);
  expect_tangent(
      of_table, [&] { return attn::embedding(table, ids); }, d_out);
  auto x = random.tensor<double, 4>({2, 3, 4, 6});
  const auto d_x = random.tensor<double, 4>({2, 3, 4, 6});
  const auto cos = random.tensor<double, 2>({4, 3}), sin = random.tensor<double, 2>({4, 3});
  attn::Tensor2<attn::index_t> positions({2, 4});
  for (attn::index_t i = 0; i < 8; ++i) positions.data()[i] = i % 4;
  attn::Tensor4<double> d_y(x.shape());
  attn::rotary_embedding_jvp(d_x, cos, sin, positions, d_y);
  Direction of_x;
  of_x.add(x, d_x);
  const auto rotated = [&] {
    attn::Tensor4<double> y(x.shape());
    attn::rotary_embedding(x, cos, sin, positions, y);
    return y;
  };
  expect_tangent(of_x, rotated, d_y);
}

/// Masked elements and ignored rows have no tangent, as in forward.
TEST(RowJvp, DoesNotUseTangentsOfMaskedElements) {
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN(),
                   kInf = std::numeric_limits<double>::infinity();
  Random random(6);
  for (const attn::index_t columns : {1, 4, 23}) {
    auto x = random.tensor<double, 2>({3, columns}), d_x = random.tensor<double, 2>(x.shape());
    Matrix spoiled = d_x;
    for (attn::index_t j = 0; j < columns; ++j) {
      x(1, j) = -kInf, d_x(1, j) = 0, spoiled(1, j) = j % 2 == 0 ? kNan : kInf;
    }
    const attn::index_t last = columns - 1;
    if (last > 0) x(0, last) = -kInf, d_x(0, last) = 0, spoiled(0, last) = kNan;
    Matrix expected(x.shape()), found(x.shape());
    const Matrix y = attn::softmax(x), log_y = attn::log_softmax(x);
    attn::softmax_jvp(y, d_x, expected), attn::softmax_jvp(y, spoiled, found);
    for (attn::index_t i = 0; i < 3; ++i) {
      for (attn::index_t j = 0; j < columns; ++j) EXPECT_NEAR(found(i, j), expected(i, j), 1e-15);
    }
    attn::softmax_backward(spoiled, y, found);
    for (attn::index_t j = 0; j < columns; ++j) EXPECT_EQ(found(1, j), 0);
    attn::log_softmax_jvp(log_y, d_x, expected), attn::log_softmax_jvp(log_y, spoiled, found);
    for (attn::index_t j = 0; j < last; ++j) EXPECT_EQ(found(0, j), expected(0, j));
    d_x(2, 0) = kNan;
    attn::softmax_jvp(y, d_x, found);
    EXPECT_TRUE(std::isnan(found(2, 0)));
  }
  auto x = random.tensor<double, 2>({2, 3}), y = random.tensor<double, 2>({2, 3}),
       d_x = random.tensor<double, 2>({2, 3});
  const auto d_y = random.tensor<double, 2>({2, 3});
  for (attn::index_t j = 0; j < 3; ++j) y(1, j) = -x(1, j);  // cosine -1: below the margin
  attn::Tensor1<int> targets({2}), pairs({2});
  targets(0) = 1, targets(1) = -100;
  pairs(0) = 1, pairs(1) = -1;
  const auto losses = [&] {
    return std::array{attn::cross_entropy_jvp(x, d_x, targets, {.ignore_index = -100}).d_loss,
                      attn::cosine_embedding_loss_jvp(x, d_x, y, d_y, pairs).d_loss};
  };
  const auto expected = losses();
  for (attn::index_t j = 0; j < 3; ++j) d_x(1, j) = kNan;
  EXPECT_EQ(losses(), expected);
  for (attn::index_t j = 0; j < 3; ++j) x(1, j) = 0;  // without a direction
  EXPECT_TRUE(std::isfinite(attn::contrastive_loss_jvp(x, d_x, y, d_y).d_loss));
  d_x(0, 0) = kNan;
  for (const double d_loss : losses()) EXPECT_TRUE(std::isnan(d_loss));
}

/// Also the tangents of their gradients are 0, if all rows are ignored, too.
TEST(RowJvp, IgnoredRowsHaveNoSecondDerivative) {
  Random random(8);
  const auto x = random.tensor<double, 2>({2, 3});
  auto d_x = random.tensor<double, 2>({2, 3});
  attn::Tensor1<int> targets({2});
  targets(0) = 1, targets(1) = -100;
  const auto gradients = [&](attn::CrossEntropyOptions<double> options = {}) {
    options.ignore_index = -100;
    Matrix d(x.shape()), tangent(x.shape());
    const attn::LossTangent loss = attn::cross_entropy_backward_jvp(
        {x, d_x}, targets, attn::DualView<double, 2>{d, tangent}, options);
    EXPECT_TRUE(std::isfinite(loss.d_loss));
    return tangent;
  };
  const Matrix expected = gradients();
  for (attn::index_t j = 0; j < 3; ++j) d_x(1, j) = std::numeric_limits<double>::quiet_NaN();
  const Matrix found = gradients();
  EXPECT_TRUE(std::ranges::equal(found.elements(), expected.elements()));
  EXPECT_NE(found(0, 0), 0);
  for (attn::index_t j = 0; j < 3; ++j) EXPECT_EQ(found(1, j), 0);
  targets(0) = -100;
  for (const Matrix& none : {gradients(), gradients({.divisor = 2})}) {
    for (const double t : none.elements()) EXPECT_EQ(t, 0);
  }
}

/// d_out may be d_x, which a call that throws leaves as it is.
TEST(RowJvp, OfNormsChecksBeforeItWrites) {
  Random random(7);
  const auto x = random.tensor<double, 2>({2, 3});
  const auto d_x = random.tensor<double, 2>({2, 3});
  const attn::Tensor1<double> two({2});
  const attn::TensorView1<const double> none;
  Matrix d = d_x;
  const auto expect_unchanged = [&](const auto& call, std::string_view name) {
    EXPECT_TRUE(contains(error_of<attn::ShapeError>(call), name));
    EXPECT_TRUE(std::ranges::equal(d.elements(), d_x.elements()));
  };
  for (int wrong = 0; wrong < 3; ++wrong) {
    const auto given = [&](int which) { return which == wrong ? two.view() : none; };
    const std::string_view names[] = {"_jvp] weight", "_jvp] d_weight", "_jvp] d_bias"};
    expect_unchanged([&] { attn::layer_norm_jvp(x, d, given(0), given(1), given(2), 1e-5, d); },
                     names[wrong]);
    if (wrong == 2) break;
    expect_unchanged([&] { attn::rms_norm_jvp(x, d, given(0), given(1), 1e-5, d); }, names[wrong]);
  }
  const Matrix narrow({2, 2});
  expect_unchanged([&] { attn::rms_norm_jvp(x, narrow, {}, {}, 1e-5, d); }, "[rms_norm_jvp] d_x");
  attn::RMSNorm<double> norm(3);
  attn::Tensor3<double> batch({1, 2, 3}), wide({1, 3, 2});
  expect_unchanged(
      [&] {
        attn::jvp(norm, norm, batch, d.view().unsqueeze(0), wide.view().transpose(1, 2),
                  d.view().unsqueeze(0));
      },
      "[Norm] out");
}

TEST(RowJvp, OfLossesAgreesWithCentralDifferences) {
  Random random(5);
  auto x = random.tensor<double, 2>({6, 9}), y = random.tensor<double, 2>({6, 9});
  const auto d_x = random.tensor<double, 2>({6, 9}), d_y = random.tensor<double, 2>({6, 9});
  Direction of_x, of_both;
  of_x.add(x, d_x);
  of_both.add(x, d_x), of_both.add(y, d_y);
  const auto expect_loss = [](const Direction& direction, const auto& loss,
                              const attn::LossTangent& found) {
    attn::Tensor1<double> d({1});
    d(0) = found.d_loss;
    EXPECT_NEAR(found.loss, loss(), 1e-12);
    const auto run = [&] {
      attn::Tensor1<double> value({1});
      value(0) = loss();
      return value;
    };
    expect_tangent(direction, run, d, 1e-6);
  };
  attn::Tensor1<int> targets({6}), pairs({6});
  std::ranges::copy(std::vector<int>{0, 8, 3, -100, 2, 2}, targets.data());
  std::ranges::copy(std::vector<int>{1, -1, 1, -1, -1, 1}, pairs.data());
  const auto weights = random.tensor<double, 1>({9});
  attn::Tensor1<double> positive = weights;
  for (double& w : positive.elements()) w = std::abs(w);
  attn::CrossEntropyOptions<double> options{
      .ignore_index = -100, .label_smoothing = 0.1, .class_weights = positive};
  expect_loss(
      of_x, [&] { return attn::cross_entropy(x, targets, options); },
      attn::cross_entropy_jvp(x, d_x, targets, options));
  expect_loss(
      of_x, [&] { return attn::mse_loss(x, y); }, attn::mse_loss_jvp(x, d_x, y));
  expect_loss(
      of_both, [&] { return attn::cosine_embedding_loss(x, y, pairs, {.margin = -0.2}); },
      attn::cosine_embedding_loss_jvp(x, d_x, y, d_y, pairs, {.margin = -0.2}));
  const auto contrastive = [&] {
    Matrix g_x(x.shape()), g_y(y.shape());
    return attn::contrastive_loss_backward(x, y, g_x, g_y, {.temperature = 0.5});
  };
  expect_loss(of_both, contrastive,
              attn::contrastive_loss_jvp(x, d_x, y, d_y, {.temperature = 0.5}));
  options.gradient_scale = 2;
  EXPECT_TRUE(contains(
      error_of<attn::ValueError>([&] { attn::cross_entropy_jvp(x, d_x, targets, options); }),
      "gradient_scale"));
}

TEST(RowJvp, ChecksShapes) {
  Matrix x({2, 3}), wide({2, 4});
  attn::Tensor1<double> four({4});
  const auto error = [](const auto& f) { return error_of<attn::ShapeError>(f); };
  EXPECT_TRUE(contains(error([&] { attn::log_softmax_jvp(x, wide, x); }), "d_x"));
  EXPECT_TRUE(
      contains(error([&] { attn::layer_norm_jvp(x, x, {}, four, {}, 1e-5, x); }), "d_weight"));
  EXPECT_TRUE(
      contains(error([&] { attn::glu_jvp(attn::Activation::silu, x, wide, x, x, x); }), "d_a"));
  EXPECT_TRUE(contains(error([&] { attn::linear_jvp(x, wide, x, {}, {}, x); }), "d_x"));
  EXPECT_TRUE(contains(error([&] { attn::mse_loss_jvp(x, wide, x); }), "d_x"));
}

}  // namespace
}  // namespace attn_test
