// ParameterVisitor: names of nested submodules, ranks, and callables with state.
#include "attn/layers/module/parameter_visitor.hpp"

#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "attn/core/tensor.hpp"

namespace attn {
namespace {

TEST(ParameterVisitor, NamesArePrefixedFromTheOutside) {
  Tensor1<float> a({2});
  Tensor2<float> b({3, 4});
  Tensor3<float> c({1, 1, 5});
  std::vector<std::string> names;
  auto keep = [&](std::string_view name, const auto& view) {
    names.push_back(std::string(name) + to_string(view.shape()));
  };
  const ParameterVisitor<float> visitor(keep);
  visitor("a", a.view());
  visitor.under("layer.")("b", b.view());
  visitor.under("layers.").under("0.").under("")("c", c.view());
  EXPECT_EQ(names, (std::vector<std::string>{"a(2)", "layer.b(3, 4)", "layers.0.c(1, 1, 5)"}));
}

TEST(ParameterVisitor, ShowsTheElementsThemselves) {
  Tensor2<double> weight({2, 2}, {1, 2, 3, 4});
  const auto twice = [](std::string_view, auto view) {
    for (index_t i = 0; i < view.size(); ++i) view.data()[i] *= 2;
  };
  const ParameterVisitor<double> visitor(twice);
  visitor.under("part.")("weight", weight.view().transpose(0, 1));
  EXPECT_EQ(weight(1, 0), 6);

  double sum = 0;
  auto add = [&, calls = 0](std::string_view, const auto& view) mutable {
    for (index_t i = 0; i < view.size(); ++i) sum += view.data()[i] * ++calls;
  };
  const Tensor1<double> ones({2}, {1, 1});
  const ParameterVisitor<const double> reader(add);
  reader("x", ones.view());
  reader("x", ones.view());
  EXPECT_EQ(sum, 1 + 2 + 3 + 4);
}

}  // namespace
}  // namespace attn
