// OutputProjection: its own weight, or the embedding table.
#include "attn/layers/embedding/output_projection.hpp"

#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "support/error_of.hpp"
#include "support/references/reference_transformer.hpp"

namespace attn {
namespace {

using attn_test::to_array;

TEST(OutputProjection, IsLinearByItsOwnWeightOrByTheTable) {
  attn_test::Random random(1);
  const auto x = random.tensor<float, 3>({2, 3, 8});
  Embedding<float> words(5, 8);
  attn_test::randomize(words, random);
  for (const bool tied : {false, true}) {
    OutputProjection<float> module(8, 5, tied, true);
    attn_test::randomize(module, random);
    EXPECT_EQ(module.tied(), tied);
    Tensor2<float> weight = words.weight;
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
    EXPECT_EQ(names, tied ? std::vector<std::string>{"bias"}
                          : (std::vector<std::string>{"weight", "bias"}));
    const auto expected = to_array(linear(x, weight, bias.view()));
    for (const bool packed : {false, true}) {
      if (packed) module.pack(words);
      Tensor3<float> y({2, 3, 5});
      module.forward(x, words, y);
      EXPECT_EQ(to_array(y).data, expected.data) << tied << packed;
    }
  }
}

TEST(OutputProjection, TiedWithoutBiasHasNoParameters) {
  EXPECT_TRUE(attn_test::names_of(OutputProjection<float>(8, 5, true)).empty());
}

TEST(OutputProjection, WordsThatWereWrittenAreNotTakenFromAStaleCopy) {
  attn_test::Random random(2);
  const auto x = random.tensor<float, 3>({2, 3, 8});
  Embedding<float> words(5, 8);
  attn_test::randomize(words, random);
  OutputProjection<float> module(8, 5, true);
  const auto logits = [&] {
    Tensor3<float> y({2, 3, 5});
    module.forward(x, words, y);
    return to_array(y).data;
  };
  const auto expected = [&] { return to_array(linear(x, words.weight)).data; };
  module.pack(words);
  attn_test::randomize(words, random);  // by visit_parameters(), as loading does
  EXPECT_EQ(logits(), expected());
  module.pack(words);
  words = attn_test::random_module<Embedding<float>>(random, Embedding<float>(5, 8));
  EXPECT_EQ(logits(), expected());
  module.pack(words);
  words.weight.fill(2);
  words.touch();
  EXPECT_EQ(logits(), expected());
}

}  // namespace
}  // namespace attn
