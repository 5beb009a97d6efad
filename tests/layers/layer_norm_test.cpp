// LayerNorm: the layer holds what the function is given.
#include "attn/layers/layer_norm.hpp"

#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "support/array.hpp"
#include "support/random.hpp"

namespace attn {
namespace {

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

TEST(LayerNorm, ParametersByPyTorchsNames) {
  const LayerNorm<double> layer(4);
  EXPECT_EQ(layer.eps, 1e-5);
  std::vector<std::string> names;
  layer.visit_parameters([&](std::string_view name, TensorView1<const double> value) {
    names.emplace_back(name);
    EXPECT_EQ(value(3), name == "weight" ? 1.0 : 0.0);
  });
  EXPECT_EQ(names, (std::vector<std::string>{"weight", "bias"}));
}

}  // namespace
}  // namespace attn
