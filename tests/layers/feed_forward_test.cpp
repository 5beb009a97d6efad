// FeedForward: every activation, gated and not, with and without residual, against loops.
#include "attn/layers/feed_forward.hpp"

#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "support/error_of.hpp"
#include "support/isas.hpp"
#include "support/references/reference_transformer.hpp"

namespace attn {
namespace {

using attn_test::all_are;
using attn_test::Array;
using attn_test::available_isas;
using attn_test::difference;
using attn_test::names_and_shapes_of;
using attn_test::Order;
using attn_test::Random;
using attn_test::reference_add;
using attn_test::to_array;
using attn_test::Wider;

template <class T>
class FeedForwardTest : public ::testing::Test {};
using Types = ::testing::Types<float, double>;
TYPED_TEST_SUITE(FeedForwardTest, Types);

TYPED_TEST(FeedForwardTest, IsLinearActivationLinear) {
  using T = TypeParam;
  Random random(1);
  for (const Activation activation :
       {Activation::relu, Activation::relu_squared, Activation::gelu, Activation::gelu_tanh,
        Activation::silu, Activation::quick_gelu}) {
    for (const bool gated : {false, true}) {
      for (const bool bias : {true, false}) {
        FeedForward<T> layer({.d_model = 17,
                              .dim_feedforward = 37,
                              .activation = activation,
                              .gated = gated,
                              .bias = bias});
        attn_test::randomize(layer, random);
        const auto x = random.array<T>({2, 9, 17});
        for (const bool residual : {false, true}) {
          const auto reference = [&]<class W>(W, Order order) {
            const attn_test::ReferenceTransformer<W> model{
                attn_test::parameters_of<W>(layer), {.activation = activation}, order};
            const auto in = x.template as<W>();
            const auto y = model.feed_forward("", in);
            return residual ? reference_add(y, in) : y;
          };
          const auto exact = reference(Wider<T>{}, Order::forward);
          const double bound = attn_test::module_bound<T>(reference, exact);
          for (Isa isa : available_isas()) {
            Array<T> y(x.shape);
            layer.forward(x.template view<3>(), y.template view<3>(),
                          residual ? x.template view<3>() : TensorView3<const T>(), {.isa = isa});
            EXPECT_EQ(difference(y, exact, bound, isa), "");
            if (!residual) {
              EXPECT_EQ(to_array(layer(x.template view<3>(), {.isa = isa})).data, y.data);
            }
            if (gated) continue;
            const Linear<T>&first = layer.linear1, &second = layer.linear2;
            Array<T> z(x.shape);
            feed_forward(x.template view<3>(), first.weight, first.bias.view(), second.weight,
                         second.bias.view(), z.template view<3>(), activation,
                         residual ? x.template view<3>() : TensorView3<const T>(), {.isa = isa});
            EXPECT_EQ(z.data, y.data);
            if (!residual) {
              EXPECT_EQ(to_array(feed_forward(x.template view<3>(), first.weight, first.bias.view(),
                                              second.weight, second.bias.view(), activation,
                                              {.isa = isa}))
                            .data,
                        y.data);
            }
          }
        }
      }
    }
  }
}

TEST(FeedForward, PackedGivesTheSameBits) {
  Random random(2);
  for (const bool gated : {false, true}) {
    FeedForward<float> layer({.d_model = 17, .dim_feedforward = 37, .gated = gated});
    attn_test::randomize(layer, random);
    const auto x = random.tensor<float, 2>({5, 17});
    const auto expected = to_array(layer(x));
    layer.pack();
    EXPECT_EQ(to_array(layer(x)).data, expected.data);
  }
}

TEST(FeedForward, ParametersByTheirNames) {
  EXPECT_EQ(names_and_shapes_of(FeedForward<float>({.d_model = 3, .dim_feedforward = 4})),
            (std::vector<std::string>{"linear1.weight(4, 3)", "linear1.bias(4)",
                                      "linear2.weight(3, 4)", "linear2.bias(3)"}));
  EXPECT_EQ(names_and_shapes_of(FeedForward<float>(
                {.d_model = 3, .dim_feedforward = 4, .gated = true, .bias = false})),
            (std::vector<std::string>{"gate_proj.weight(4, 3)", "up_proj.weight(4, 3)",
                                      "down_proj.weight(3, 4)"}));
}

TEST(FeedForwardErrors, Features) {
  const FeedForward<float> layer({.d_model = 3, .dim_feedforward = 4});
  Tensor2<float> y({2, 4});
  y.fill(7);
  EXPECT_EQ(attn_test::error_of<ShapeError>([&] {
              layer(Tensor2<float>({2, 5}));
            }),
            "[Linear] x must have the last extent 3; found (2, 5).");
  EXPECT_EQ(attn_test::error_of<ShapeError>([&] {
              layer.forward(Tensor2<float>({2, 3}), y);
            }),
            "[linear] out must have shape (2, 3); found (2, 4).");
  EXPECT_TRUE(all_are(y, 7));
  const Tensor2<float> x({2, 3}), weight1({4, 3}), weight2({5, 6});
  EXPECT_EQ(attn_test::error_of<ShapeError>([&] { feed_forward(x, weight2, {}, weight2, {}, y); }),
            "[feed_forward] weight1 must have shape (dim_feedforward, d_model) = (5, 3); found (5, "
            "6).");
  EXPECT_EQ(attn_test::error_of<ShapeError>([&] { feed_forward(x, weight1, {}, weight2, {}, y); }),
            "[feed_forward] weight2 must have shape (d_out, dim_feedforward) = (5, 4); found (5, "
            "6).");
  EXPECT_TRUE(all_are(y, 7));
}

TEST(FeedForward, WhatWasLoadedAfterPackingIsUsed) {
  Random random(3);
  for (const bool gated : {false, true}) {
    FeedForward<float> layer({.d_model = 17, .dim_feedforward = 37, .gated = gated});
    const auto x = random.tensor<float, 2>({5, 17});
    layer.pack();
    attn_test::randomize(layer, random);  // by visit_parameters(), as loading does
    const auto found = to_array(layer(x));
    layer.pack();
    EXPECT_EQ(to_array(layer(x)).data, found.data);
    EXPECT_GT(attn_test::max_abs(found), 0);
  }
}

}  // namespace
}  // namespace attn
