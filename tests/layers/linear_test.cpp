// linear: every rank, activation, residual and weight layout against nested loops; bad input.
#include "attn/layers/linear.hpp"

#include <gtest/gtest.h>

#include "support/error_of.hpp"
#include "support/isas.hpp"
#include "support/models/parameters.hpp"
#include "support/placed.hpp"
#include "support/references/reference_layers.hpp"
#include "support/tolerance.hpp"

namespace attn {
namespace {

using attn_test::all_are;
using attn_test::Array;
using attn_test::available_isas;
using attn_test::difference;
using attn_test::error_of;
using attn_test::Index;
using attn_test::Layout;
using attn_test::module_bound;
using attn_test::names_of;
using attn_test::Order;
using attn_test::Placed;
using attn_test::Random;
using attn_test::reference_add;
using attn_test::reference_linear;
using attn_test::reference_map;
using attn_test::to_array;
using attn_test::Wider;

template <class T>
class LinearTest : public ::testing::Test {};
using Types = ::testing::Types<float, double>;
TYPED_TEST_SUITE(LinearTest, Types);

TYPED_TEST(LinearTest, RandomSizesWithBiasActivationAndResidual) {
  using T = TypeParam;
  using W = Wider<T>;
  for (std::uint64_t draw = 0; draw < attn_test::draws(80); ++draw) {
    Random random(draw);
    const Index in = random.integer(1, 70), out = random.integer(1, 70);
    const auto x = random.array<T>({random.integer(0, 3), random.integer(1, 9), in});
    const auto weight = random.array<T>({out, in});
    const auto bias = random.chance(0.5) ? random.array<T>({out}) : Array<T>();
    const auto residual =
        random.chance(0.5) ? random.array<T>({x.extent(0), x.extent(1), out}) : Array<T>();
    const bool relu_between = random.chance(0.5);
    SCOPED_TRACE(random.trace() + ": " + attn_test::shape_text(x.shape) + " to " +
                 std::to_string(out));

    const auto naive = [&]<class X>(X, Order order) {
      auto y = reference_linear(x.template as<X>(), weight.template as<X>(), bias.template as<X>(),
                                order);
      if (relu_between) y = reference_map(y, attn_test::reference_relu<X>);
      return residual ? reference_add(y, residual.template as<X>()) : y;
    };
    const auto exact = naive(W{}, Order::forward);
    const double bound = module_bound<T>(naive, exact);

    auto padded = Layout<3>::contiguous();
    padded.gap = random.integer(0, 5);
    const Placed<T, 3> from(x, padded);
    for (Isa isa : available_isas()) {
      Placed<T, 3> to(Shape<3>{x.extent(0), x.extent(1), out}, padded);
      linear(from.read(), weight.template view<2>(),
             bias ? bias.template view<1>() : TensorView1<const T>(), to.view(),
             relu_between ? Activation::relu : Activation::none,
             residual ? residual.template view<3>() : TensorView3<const T>(), {.isa = isa});
      ASSERT_EQ(difference(to.values(), exact, bound, isa, "y"), "");
      ASSERT_TRUE(to.gaps_untouched());
    }
  }
}

TYPED_TEST(LinearTest, EveryRankAndTransposedWeights) {
  using T = TypeParam;
  Random random(1);
  const auto x = random.array<T>({2, 3, 2, 5}), weight = random.array<T>({4, 5});
  const auto exact = reference_linear(x.template as<double>(), weight.template as<double>(), {});
  const double bound = module_bound<T>(
      [&]<class X>(X, Order order) {
        return reference_linear(x.template as<X>(), weight.template as<X>(), {}, order);
      },
      exact);
  Tensor2<T> in_out({5, 4});
  copy(weight.template view<2>(), in_out.view().transpose(0, 1));
  for (Isa isa : available_isas()) {
    const Execution on{.isa = isa};
    const auto check = [&](const auto& y) {
      EXPECT_EQ(difference(to_array(y).reshaped(exact.shape), exact, bound, isa), "");
    };
    check(linear(x.template view<4>(), weight.template view<2>(), {}, Activation::none, on));
    check(linear(x.template view<4>(), in_out.view().transpose(0, 1), {}, Activation::none, on));
    check(linear(TensorView2<const T>(x.data.data(), {12, 5}), weight.template view<2>(), {},
                 Activation::none, on));
    const auto one = linear(TensorView1<const T>(x.data.data(), {5}), weight.template view<2>(), {},
                            Activation::none, on);
    for (Index j = 0; j < 4; ++j) EXPECT_NEAR(one(j), exact(0, 0, 0, j), bound);
  }
}

TYPED_TEST(LinearTest, AResidualMayBeTheOutput) {
  using T = TypeParam;
  Random random(2);
  const auto x = random.array<T>({6, 5}), weight = random.array<T>({7, 5}),
             before = random.array<T>({6, 7});
  const auto naive = [&]<class X>(X, Order order) {
    return reference_add(reference_linear(x.template as<X>(), weight.template as<X>(), {}, order),
                         before.template as<X>());
  };
  const auto exact = naive(Wider<T>{}, Order::forward);
  const double bound = module_bound<T>(naive, exact);
  for (Isa isa : available_isas()) {
    Array<T> y = before;
    linear(x.template view<2>(), weight.template view<2>(), {}, y.template view<2>(),
           Activation::none, static_cast<const Array<T>&>(y).template view<2>(), {.isa = isa});
    EXPECT_EQ(difference(y, exact, bound, isa), "");
  }
}

/// Slices of longer sequences, whose batch rows are not adjacent, give the bits of a copy.
TYPED_TEST(LinearTest, LeadingAxesOfAnyStrides) {
  using T = TypeParam;
  Random random(3);
  const auto x = random.tensor<T, 4>({2, 3, 4, 5}), residual = random.tensor<T, 4>({3, 2, 4, 7});
  const auto weight = random.tensor<T, 2>({7, 5});
  const auto part = x.view().slice(2, 1, 3);
  const auto added = residual.view().transpose(0, 1).slice(2, 0, 2);
  Tensor4<T> y({2, 3, 4, 7}), expected({2, 3, 2, 7});
  linear(Tensor4<T>(part), weight, {}, expected, Activation::none, Tensor4<T>(added));
  linear(part, weight, {}, y.view().slice(2, 2, 4), Activation::none, added);
  EXPECT_EQ(to_array(y.view().slice(2, 2, 4)).data, to_array(expected).data);
  EXPECT_TRUE(all_are(y.view().slice(2, 0, 2), 0));
}

TYPED_TEST(LinearTest, LayerHoldsItsParameters) {
  using T = TypeParam;
  Linear<T> layer(2, 3);
  layer.weight = Tensor2<T>({3, 2}, {1, 2, 3, 4, 5, 6});
  layer.bias = Tensor1<T>({3}, {T(0.5), 0, -1});
  const Tensor2<T> x({1, 2}, {1, 10});
  const Tensor2<T> y = layer(x);
  EXPECT_EQ(to_array(y).data, (std::vector<T>{T(21.5), 43, 64}));
  EXPECT_EQ(names_of(layer), (std::vector<std::string>{"weight", "bias"}));
  EXPECT_EQ(names_of(Linear<T>(2, 3, false)), (std::vector<std::string>{"weight"}));
}

TYPED_TEST(LinearTest, PackedGivesTheSameBitsAndCopiesWithTheLayer) {
  using T = TypeParam;
  Random random(7);
  Linear<T> layer(37, 21);
  for (T& x : layer.weight.elements()) x = static_cast<T>(random.normal());
  Tensor2<T> x({5, 37});
  for (T& value : x.elements()) value = static_cast<T>(random.normal());
  const Tensor2<T> expected = layer(x);
  layer.pack();
  const Linear<T> copied = layer;
  for (Isa isa :
       available_isas()) {  // packed for one instruction set; others use the unpacked weight
    const Execution execution{.isa = isa};
    const Tensor2<T> packed = copied(x, Activation::none, execution);
    Linear<T> plain(37, 21);
    plain.weight = layer.weight;
    EXPECT_EQ(to_array(packed).data, to_array(plain(x, Activation::none, execution)).data);
  }
  EXPECT_EQ(to_array(copied(x)).data, to_array(expected).data);
}

TEST(LinearErrors, ShapesAreNamed) {
  const Tensor3<float> x({2, 3, 4});
  const Tensor2<float> weight({5, 4}), wrong({5, 6});
  Tensor3<float> y({2, 3, 5}), wrong_y({2, 3, 4});
  y.fill(7);
  EXPECT_EQ(error_of<ShapeError>([&] { linear(x, wrong, {}, y); }),
            "[linear] weight must have shape (out, in) = (5, 4); found (5, 6).");
  EXPECT_EQ(error_of<ShapeError>([&] { linear(x, weight, {}, wrong_y); }),
            "[linear] out must have shape (2, 3, 5); found (2, 3, 4).");
  const Tensor1<float> bias({4});
  EXPECT_TRUE(
      attn_test::contains(error_of<ShapeError>([&] { linear(x, weight, bias, y); }),
                          "[linear] bias must be contiguous with shape (out) = (5); found (4)."));
  const Tensor3<float> residual({3, 2, 5});  // the same number of rows
  EXPECT_EQ(error_of<ShapeError>([&] { linear(x, weight, {}, y, Activation::none, residual); }),
            "[linear] residual must have shape (2, 3, 5); found (3, 2, 5).");
  EXPECT_TRUE(all_are(y, 7));
}

TEST(Linear, WhatWasLoadedAfterPackingIsUsed) {
  Random random(8);
  auto layer = attn_test::random_module<Linear<float>>(random, Linear<float>(37, 21));
  const auto x = random.tensor<float, 2>({5, 37});
  const auto expected = [&](const Linear<float>& of) {
    return to_array(linear(x, of.weight, of.bias.view())).data;
  };
  layer.pack();
  const Linear<float> before = layer;
  attn_test::randomize(layer, random);  // by visit_parameters(), as loading does
  const Linear<float>& read_only = layer;
  EXPECT_EQ(to_array(read_only(x)).data, expected(layer));
  EXPECT_EQ(to_array(before(x)).data, expected(before));
  layer.pack();
  EXPECT_EQ(to_array(layer(x)).data, expected(layer));
  layer.weight.fill(2);
  layer.touch();
  EXPECT_EQ(to_array(layer(x)).data, expected(layer));
}

/// An empty weight needs no packing, for any number of rows (one block has at most 384).
TEST(Linear, PacksWeightsWithoutElements) {
  for (const Shape<2>& shape : {Shape<2>{0, 1200}, {3, 0}, {0, 0}}) {
    Linear<float> layer(shape[1], shape[0]);
    layer.pack();
    EXPECT_EQ(layer(Tensor2<float>({2, shape[1]})).shape(), (Shape<2>{2, shape[0]}));
    const PackedWeights<float> packed(layer.weight.view().transpose(0, 1));
    EXPECT_EQ(linear(Tensor2<float>({2, shape[1]}), layer.weight).shape(), (Shape<2>{2, shape[0]}));
    EXPECT_EQ(packed.k(), shape[1]);
    EXPECT_EQ(packed.n(), shape[0]);
  }
}

TEST(Linear, PackedWeightsThatWereMovedFromAreEmpty) {
  PackedWeights<float> a(Tensor2<float>({3, 4}).view());
  const PackedWeights<float> b = std::move(a);
  EXPECT_EQ(b.k(), 3);
  EXPECT_EQ(a.k(), 0);
  EXPECT_EQ(a.n(), 0);
  EXPECT_FALSE(a);
}

TEST(Linear, OfOptions) {
  const Linear<float> layer({.in_features = 3, .out_features = 2, .bias = false});
  EXPECT_EQ(layer.weight.shape(), (Shape<2>{2, 3}));
  EXPECT_FALSE(layer.bias);
  EXPECT_TRUE(Linear<float>({.in_features = 3, .out_features = 2}).bias);
  EXPECT_THROW(Linear<float>({.in_features = 3, .out_features = -2}), ShapeError);
}

}  // namespace
}  // namespace attn
