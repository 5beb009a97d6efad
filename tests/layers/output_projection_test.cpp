// OutputProjection: a weight of its own, or the embedding's table.
#include "attn/layers/output_projection.hpp"

#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "support/error_of.hpp"
#include "support/reference_transformer.hpp"

namespace attn {
namespace {

using attn_test::to_array;

TEST(OutputProjection, IsLinearByItsOwnWeightOrByTheTable) {
  attn_test::Random random(1);
  const auto x = random.tensor<float, 3>({2, 3, 8});
  const auto table = random.tensor<float, 2>({5, 8});
  for (const bool tied : {false, true}) {
    OutputProjection<float> module(8, 5, tied, true);
    attn_test::randomize(module, random);
    EXPECT_EQ(module.tied(), tied);
    Tensor2<float> weight = table;
    Tensor1<float> bias;
    std::vector<std::string> names;
    module.visit_parameters([&]<int Rank>(std::string_view name, TensorView<float, Rank> view) {
      names.emplace_back(name);
      if constexpr (Rank == 2) {
        weight = Tensor2<float>(view);
      } else if constexpr (Rank == 1) {
        bias = Tensor1<float>(view);
      }
    });
    EXPECT_EQ(names,
              tied ? std::vector<std::string>{} : (std::vector<std::string>{"weight", "bias"}));
    const auto expected = to_array(linear(x, weight, bias.view()));
    for (const bool packed : {false, true}) {
      if (packed) module.pack(table);
      Tensor3<float> y({2, 3, 5});
      module.forward(x, table.view(), y);
      EXPECT_EQ(to_array(y).data, expected.data) << tied << packed;
    }
  }
}

}  // namespace
}  // namespace attn
