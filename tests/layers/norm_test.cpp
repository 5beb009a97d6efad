// LayerNorm and RMSNorm: the layers give the results of the functions.
#include "attn/layers/norm.hpp"

#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "support/models/parameters.hpp"

namespace attn {
namespace {

using attn_test::names_of;
using attn_test::to_array;

TEST(LayerNorm, IsTheFunctionWithItsParameters) {
  attn_test::Random random(1);
  const auto x = random.tensor<float, 3>({2, 3, 8});
  LayerNorm<float> layer(8, 1e-6);
  EXPECT_EQ(to_array(layer(x)).data, to_array(layer_norm(x, {}, {}, 1e-6)).data);
  layer.weight = random.tensor<float, 1>({8});
  layer.bias = random.tensor<float, 1>({8});
  const auto expected = layer_norm(x, layer.weight, layer.bias, 1e-6);
  EXPECT_EQ(to_array(layer(x)).data, to_array(expected).data);
  Tensor3<float> y(x.shape());
  layer.forward(x, y);
  EXPECT_EQ(to_array(y).data, to_array(expected).data);
}

TEST(RMSNorm, IsTheFunctionWithItsParameters) {
  attn_test::Random random(2);
  auto x = random.tensor<double, 3>({2, 3, 8});
  RMSNorm<double> layer(8, 1e-6);
  layer.weight = random.tensor<double, 1>({8});
  const auto expected = to_array(rms_norm(x, layer.weight, 1e-6));
  EXPECT_EQ(to_array(layer(x)).data, expected.data);
  layer.forward(x, x);
  EXPECT_EQ(to_array(x).data, expected.data);
}

TEST(LayerNorm, ParametersByPyTorchsNames) {
  const LayerNorm<double> layer(4);
  EXPECT_EQ(layer.eps, 1e-5);
  layer.visit_parameters([&](std::string_view name, const auto& value) {
    EXPECT_EQ(value.data()[3], name == "weight" ? 1.0 : 0.0);
  });
  EXPECT_EQ(names_of(layer), (std::vector<std::string>{"weight", "bias"}));
  EXPECT_EQ(names_of(LayerNorm<float>(4, 1e-5, false)), (std::vector<std::string>{"weight"}));
  EXPECT_EQ(names_of(RMSNorm<float>(4)), (std::vector<std::string>{"weight"}));
}

}  // namespace
}  // namespace attn
