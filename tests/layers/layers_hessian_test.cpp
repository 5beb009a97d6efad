// Tangents of gradients: functions against central differences, Encoder against PyTorch.
#include <gtest/gtest.h>

#include "attn/io/safetensors.hpp"
#include "attn/io/state_dict.hpp"
#include "attn/kernels/rows/activation_backward.hpp"
#include "attn/kernels/rows/norm_backward.hpp"
#include "attn/layers/hessian/encoder_hessian.hpp"
#include "attn/layers/layer_stack_backward.hpp"

#include "support/error_of.hpp"
#include "support/hessian_check.hpp"

namespace attn_test {
namespace {

using Tokens = attn::Tensor3<double>;
using Dual3 = attn::DualView<double>;

/// backward(inputs) returns the gradient of one input for inputs x, .., d_out; jvp(inputs, tangents,
/// d, d_tangent) adds it and its tangent. Checks both at random points of this shape.
template <class Backward, class Jvp>
void expect_gradient_tangent(Random& random, std::size_t inputs, const Backward& backward,
                             const Jvp& jvp) {
  for (const attn::Shape<3>& shape : {attn::Shape<3>{1, 3, 33}, {2, 2, 8}}) {
    std::vector<Tokens> at, along;
    Direction direction;
    at.reserve(inputs), along.reserve(inputs);
    for (std::size_t n = 0; n < inputs; ++n) {
      at.push_back(random.tensor<double, 3>(shape, 2));
      along.push_back(random.tensor<double, 3>(shape));
      for (double& x : at.back().elements()) {
        // relu and limits bend here.
        if (std::abs(x) < 1e-3 || std::abs(std::abs(x) - 2) < 1e-3) x = 1;
      }
      direction.add(at.back(), along.back());
    }
    Tokens d(shape), tangent(shape);
    d.fill(1), tangent.fill(2);  // gradients are added
    jvp(at, along, Dual3{d, tangent});
    const Tokens expected = backward(at);
    for (Index i = 0; i < d.size(); ++i) {
      ASSERT_NEAR(d.data()[i] - 1, expected.data()[i], 1e-12 * (1 + std::abs(d.data()[i])));
      tangent.data()[i] -= 2;
    }
    double size = 0;
    for (const double x : tangent.elements()) size = std::max(size, std::abs(x));
    ASSERT_GT(size, 0);
    expect_tangent(
        direction, [&] { return backward(at); }, tangent, 1e-5);
  }
}

TEST(LayersHessian, ActivationsAgreeWithCentralDifferences) {
  using enum attn::Activation;
  for (const attn::Activation form :
       {none, relu, gelu, gelu_tanh, silu, relu_squared, quick_gelu}) {
    SCOPED_TRACE(static_cast<int>(form));
    Random random(1);
    expect_gradient_tangent(
        random, 2,
        [=](const auto& in) {
          Tokens d(in[0].shape());
          attn::activate_backward(form, in[1], in[0], d);
          return d;
        },
        [=](const auto& in, const auto& along, const Dual3& d) {
          attn::activate_backward_jvp(form, {in[1], along[1]}, {in[0], along[0]}, d);
        });
    for (const bool of_gate : {true, false}) {
      for (const attn::GatedUnit& unit : {attn::GatedUnit(form), attn::GatedUnit(form, 2, 1)}) {
        expect_gradient_tangent(
            random, 3,
            [&](const auto& in) {
              Tokens d_a(in[0].shape()), d_b(in[0].shape());
              attn::glu_backward(unit, in[2], in[0], in[1], d_a, d_b);
              return of_gate ? d_a : d_b;
            },
            [&](const auto& in, const auto& along, const Dual3& d) {
              Tokens other(in[0].shape()), d_other(other);
              const Dual3 unused{other, d_other};
              attn::glu_backward_jvp(unit, {in[2], along[2]}, {in[0], along[0]}, {in[1], along[1]},
                                     of_gate ? d : unused, of_gate ? unused : d);
            });
      }
    }
  }
}

/// A sigmoid far from 0 has no derivatives, instead of NaN.
TEST(LayersHessian, ActivationsAreFiniteFarFromZero) {
  using enum attn::Activation;
  attn::Tensor3<float> one({1, 1, 2}), x({1, 1, 2});
  one.fill(1);
  x(0, 0, 0) = 1e4f, x(0, 0, 1) = -1e4f;
  for (const attn::Activation form : {gelu, gelu_tanh, silu, quick_gelu}) {
    attn::Tensor3<float> d(x.shape()), tangent(x.shape());
    attn::activate_backward_jvp(form, {one, one}, {x, one}, attn::DualView<float>{d, tangent});
    EXPECT_EQ(d(0, 0, 0), 1);
    EXPECT_EQ(tangent(0, 0, 0), 1);  // of d_out
    EXPECT_EQ(d(0, 0, 1), 0);
    EXPECT_EQ(tangent(0, 0, 1), 0);
  }
}

/// A stack with every kind of norm, and with tokens at its end that are padding.
TEST(LayersHessian, EncoderAgreesWithCentralDifferences) {
  for (std::uint64_t n = 0; n < draws(12); ++n) {
    Random random(n);
    SCOPED_TRACE(random.trace());
    attn::TransformerStackOptions o;
    o.num_layers = random.integer(1, 2);
    o.layer = {.d_model = 8, .nhead = 2, .dim_feedforward = 10, .dropout = 0};
    o.layer.activation = attn::Activation::gelu;
    o.layer.norm_first = random.chance(0.5);
    o.layer.bias = random.chance(0.5);
    o.layer.attention.alibi = random.chance(0.4);
    o.layer.attention.sinks = random.chance(0.4);
    if (random.chance(0.4)) o.layer.attention.softcap = 2;
    attn::Encoder<double> model(o);
    draw_parameters(random, model, 0.5);
    const auto x = random.tensor<double, 3>({2, 7, 8}),
               target = random.tensor<double, 3>(x.shape());
    attn::Tensor1<attn::index_t> lengths({2});
    lengths(0) = 7, lengths(1) = 4;
    const attn::AttentionOptions<double> options{.mask = attn::key_lengths(lengths.view())};
    expect_hessian(
        random, model,
        [&](attn::Encoder<double>& gradients) {
          attn::EncoderSaved<double> saved;
          Tokens out(x.shape()), d(x.shape());
          attn::forward(model, x, out, saved, options);
          attn::mse_loss_backward(out, target, d);
          attn::backward(model, d, saved, d, gradients, options);
        },
        [&](const attn::Encoder<double>& vector, attn::Encoder<double>& result) {
          attn::hessian_vector_product(
              model, x,
              [&](const auto& out, const auto& d) {
                return attn::mse_loss_backward_jvp(out, target, d);
              },
              vector, result, options);
        },
        2e-5);
    if (HasFailure()) break;
  }
}

/// Norms of the vector may be empty, which are 0, and those of the result, which are skipped.
TEST(LayersHessian, EmptyTangentsAreZero) {
  for (const bool norm_first : {true, false}) {
    Random random(6);
    attn::TransformerStackOptions o{.num_layers = 2};
    o.layer = {.d_model = 8, .nhead = 2, .dim_feedforward = 10, .norm_first = norm_first};
    attn::Encoder<double> model(o), zero(o);
    draw_parameters(random, model, 0.5), draw_parameters(random, zero, 0.5);
    attn::Encoder<double> empty = zero;
    const auto x = random.tensor<double, 3>({2, 5, 8}),
               target = random.tensor<double, 3>({2, 5, 8});
    for (auto& layer : zero.layers) layer.norm2.weight.fill(0), layer.norm2.bias.fill(0);
    for (auto& layer : empty.layers) layer.norm2.weight = {}, layer.norm2.bias = {};
    const auto product = [&](const auto& vector, auto result) {
      attn::hessian_vector_product(
          model, x,
          [&](const auto& out, const auto& d) {
            return attn::mse_loss_backward_jvp(out, target, d);
          },
          vector, result);
      return result;
    };
    const attn::Encoder<double> none = attn::gradients_of(model);
    auto expected = product(zero, none);
    const auto same = [&](const attn::Encoder<double>& found) {
      return std::ranges::equal(joined_parameters(found).elements(),
                                joined_parameters(expected).elements());
    };
    EXPECT_TRUE(same(product(empty, none)));
    auto without = none;
    for (auto* stack : {&expected, &without}) {
      for (auto& layer : stack->layers) layer.norm2.weight = {}, layer.norm2.bias = {};
    }
    EXPECT_TRUE(same(product(zero, without)));
  }
}

/// tests/data/hessian/make.py
TEST(LayersHessian, EncoderHasTheProductOfPyTorch) {
  const attn::SafetensorsFile golden(ATTN_TEST_DATA_DIR "/hessian/golden.safetensors");
  attn::TransformerStackOptions o;
  o.num_layers = 2;
  o.layer = {.d_model = 8, .nhead = 2, .dim_feedforward = 12, .dropout = 0};
  o.layer.activation = attn::Activation::gelu;
  o.layer.norm_first = true;
  o.norm = true;
  attn::Encoder<double> model(o), vector(o), expected(o);
  attn::load_state_dict(model, golden, {.prefix = "model."});
  attn::load_state_dict(vector, golden, {.prefix = "vector."});
  attn::load_state_dict(expected, golden, {.prefix = "product."});
  const auto x = golden.load<double, 3>("x"), target = golden.load<double, 3>("target");
  attn::Encoder<double> result = attn::gradients_of(model);
  const attn::LossTangent loss = attn::hessian_vector_product(
      model, x,
      [&](const auto& out, const auto& d) { return attn::mse_loss_backward_jvp(out, target, d); },
      vector, result, {.mask = attn::causal()});
  const auto golden_loss = golden.load<double, 1>("loss");
  EXPECT_NEAR(loss.loss, golden_loss(0), 1e-12);
  const auto found = joined_parameters(result), wanted = joined_parameters(expected);
  ASSERT_EQ(found.size(), wanted.size());
  for (Index i = 0; i < found.size(); ++i) {
    ASSERT_NEAR(found(i), wanted(i), 1e-10 * (1 + std::abs(wanted(i)))) << i;
  }
}

/// A composition of one's own: the squared norm of a gated product that reads its input twice.
TEST(LayersHessian, TapeTakesOnesOwnComposition) {
  Random random(7);
  Tokens x = random.tensor<double, 3>({1, 3, 6});
  const auto along = random.tensor<double, 3>(x.shape());
  const attn::GatedUnit unit(attn::Activation::silu);
  const auto run = [&](const Tokens& tangent) {
    attn::HessianTape<double> tape;
    const auto in = tape.input(x, tangent);
    const auto out = tape.add(in, tape.glu(unit, in, tape.activate(attn::Activation::gelu, in)), 2);
    attn::copy(out.x.value, out.d.value);  // the gradient of half the squared norm
    attn::copy(out.x.tangent, out.d.tangent);
    tape.run_backward();
    return std::pair(Tokens(in.d.value), Tokens(in.d.tangent));
  };
  Direction direction;
  direction.add(x, along);
  expect_tangent(
      direction, [&] { return run(along).first; }, run(along).second, 1e-5);
  EXPECT_TRUE(contains(error_of<attn::ShapeError>([&] {
                         (void)run(Tokens({1, 3, 5}));
                       }),
                       "[HessianTape] tangent"));
}

}  // namespace
}  // namespace attn_test
