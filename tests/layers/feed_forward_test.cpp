// FeedForward: two linear maps and every activation between, with and without a residual, against nested loops.
#include "attn/layers/feed_forward.hpp"

#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "support/error_of.hpp"
#include "support/isas.hpp"
#include "support/random.hpp"
#include "support/reference_layers.hpp"
#include "support/tolerance.hpp"

namespace attn {
namespace {

using attn_test::all_are;
using attn_test::Array;
using attn_test::available_isas;
using attn_test::difference;
using attn_test::max_abs;
using attn_test::Order;
using attn_test::Random;
using attn_test::reference_add;
using attn_test::reference_linear;
using attn_test::reference_map;
using attn_test::to_array;
using attn_test::twice_naive;
using attn_test::Wider;

template <class T>
class FeedForwardTest : public ::testing::Test {};
using Types = ::testing::Types<float, double>;
TYPED_TEST_SUITE(FeedForwardTest, Types);

template <class W, class T>
Array<W> reference(const FeedForward<T>& layer, const Array<T>& x, bool residual,
                   Order order = Order::forward) {
  const auto parameter = [](const auto& p) {
    return p ? to_array(p).template as<W>() : Array<W>();
  };
  const auto inner =
      reference_map(reference_linear(x.template as<W>(), parameter(layer.linear1.weight),
                                     parameter(layer.linear1.bias), order),
                    layer.activation == Activation::relu ? attn_test::reference_relu<W>
                                                         : attn_test::reference_gelu<W>);
  const auto y = reference_linear(inner, parameter(layer.linear2.weight),
                                  parameter(layer.linear2.bias), order);
  return residual ? reference_add(y, x.template as<W>()) : y;
}

TYPED_TEST(FeedForwardTest, IsLinearActivationLinear) {
  using T = TypeParam;
  Random random(1);
  for (const Activation activation : {Activation::relu, Activation::gelu}) {
    for (const bool bias : {true, false}) {
      FeedForward<T> layer(17, 37, activation, bias);
      layer.linear1.weight = random.tensor<T, 2>({37, 17}, 0.3);
      layer.linear2.weight = random.tensor<T, 2>({17, 37}, 0.3);
      if (bias) {
        layer.linear1.bias = random.tensor<T, 1>({37});
        layer.linear2.bias = random.tensor<T, 1>({17});
      }
      const auto x = random.array<T>({2, 9, 17});
      for (const bool residual : {false, true}) {
        const auto exact = reference<Wider<T>>(layer, x, residual);
        const double bound =
            twice_naive([&](Order order) { return reference<T>(layer, x, residual, order); }, exact,
                        max_abs(exact));
        for (Isa isa : available_isas()) {
          Array<T> y(x.shape);
          layer.forward(x.template view<3>(), y.template view<3>(),
                        residual ? x.template view<3>() : TensorView3<const T>(), {.isa = isa});
          EXPECT_EQ(difference(y, exact, bound, isa), "");
          if (!residual) {
            EXPECT_EQ(to_array(layer(x.template view<3>(), {.isa = isa})).data, y.data);
          }
        }
      }
    }
  }
}

TEST(FeedForward, ParametersByPyTorchsNames) {
  const FeedForward<float> layer(3, 4);
  std::vector<std::string> names;
  layer.visit_parameters([&](std::string_view name, auto) { names.emplace_back(name); });
  EXPECT_EQ(names, (std::vector<std::string>{"linear1.weight", "linear1.bias", "linear2.weight",
                                             "linear2.bias"}));
}

TEST(FeedForwardErrors, Features) {
  const FeedForward<float> layer(3, 4);
  Tensor2<float> y({2, 4});
  y.fill(7);
  EXPECT_EQ(attn_test::error_of<ShapeError>([&] {
              layer(Tensor2<float>({2, 5}));
            }),
            "[linear] weight must have shape (out, in) = (4, 5); found (4, 3).");
  EXPECT_EQ(attn_test::error_of<ShapeError>([&] {
              layer.forward(Tensor2<float>({2, 3}), y);
            }),
            "[linear] out must have shape (2, 3); found (2, 4).");
  EXPECT_TRUE(all_are(y, 7));
}

}  // namespace
}  // namespace attn
