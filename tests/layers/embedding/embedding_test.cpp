// embedding: rows of a table by ids of any integer type and rank; ids outside the table.
#include "attn/layers/embedding/embedding.hpp"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <numeric>

#include <gtest/gtest.h>

#include "support/array.hpp"
#include "support/error_of.hpp"
#include "support/models/parameters.hpp"

namespace attn {
namespace {

using attn_test::all_are;
using attn_test::error_of;
using attn_test::names_and_shapes_of;
using attn_test::to_array;

template <class Id>
concept IdType = requires(Tensor2<float> table, Tensor1<Id> ids) { embedding(table, ids); };
static_assert(IdType<int> && IdType<std::uint8_t> && IdType<std::int64_t>);

Tensor2<float> table() {
  Tensor2<float> t({5, 3});
  std::iota(t.elements().begin(), t.elements().end(), 0.0f);
  return t;
}

template <class Id>
void look_up() {
  const Tensor2<Id> ids({2, 2}, {4, 0, 1, 4});
  const Tensor3<float> y = embedding(table(), ids);
  EXPECT_EQ(y.shape(), (Shape<3>{2, 2, 3}));
  EXPECT_EQ(to_array(y).data, (std::vector<float>{12, 13, 14, 0, 1, 2, 3, 4, 5, 12, 13, 14}));
}

TEST(Embedding, IdsOfEveryIntegerType) {
  look_up<std::int8_t>();
  look_up<std::uint8_t>();
  look_up<int>();
  look_up<unsigned>();
  look_up<std::int64_t>();
  look_up<std::uint64_t>();
}

TEST(Embedding, StridedIdsTableAndOutput) {
  const Tensor2<int> ids({2, 3}, {0, 1, 2, 3, 4, 0});
  Tensor3<float> y({3, 3, 2});
  Tensor2<float> turned({3, 5});
  copy(table().view(), turned.view().transpose(0, 1));
  embedding(turned.view().transpose(0, 1), ids.view().transpose(0, 1), y.view().transpose(1, 2));
  for (index_t i = 0; i < 3; ++i) {
    for (index_t j = 0; j < 2; ++j) {
      for (index_t x = 0; x < 3; ++x) EXPECT_EQ(y(i, x, j), static_cast<float>(3 * ids(j, i) + x));
    }
  }
}

TEST(Embedding, NoIds) {
  EXPECT_EQ(embedding(table(), Tensor2<int>({0, 4})).shape(), (Shape<3>{0, 4, 3}));
}

TEST(Embedding, LayerHoldsTheTable) {
  Embedding<float> layer(5, 3);
  EXPECT_EQ(names_and_shapes_of(layer), (std::vector<std::string>{"weight(5, 3)"}));
  copy(table().view(), layer.weight.view());
  const Tensor2<int> ids({2, 2}, {4, 0, 1, 1});
  Tensor3<float> y({2, 2, 3});
  layer.forward(ids, y);
  for (const Tensor3<float>& x : {y, layer(ids)}) {
    EXPECT_TRUE(std::ranges::equal(x.elements(), embedding(table(), ids).elements()));
  }
}

TEST(EmbeddingErrors, IdsOutsideTheTable) {
  Tensor2<float> y({3, 3});
  y.fill(7);
  EXPECT_EQ(error_of<ValueError>([&] {
              embedding(table(), Tensor1<int>({3}, {0, 1, 5}), y);
            }),
            "[embedding] ids(2) must lie in 0 .. 4; found 5.");
  EXPECT_EQ(error_of<ValueError>([&] {
              embedding(table(), Tensor1<int>({3}, {0, -1, 5}), y);
            }),
            "[embedding] ids(1) must lie in 0 .. 4; found -1.");
  EXPECT_EQ(error_of<ValueError>([&] {
              embedding(
                  table(),
                  Tensor1<std::uint64_t>({3}, {0, 1, std::numeric_limits<std::uint64_t>::max()}),
                  y);
            }),
            "[embedding] ids(2) must lie in 0 .. 4; found 18446744073709551615.");
  EXPECT_TRUE(all_are(y, 7));
}

TEST(EmbeddingErrors, OutputShape) {
  Tensor2<float> y({3, 4});
  y.fill(7);
  EXPECT_EQ(error_of<ShapeError>([&] { embedding(table(), Tensor1<int>({3}), y); }),
            "[embedding] out must have shape (3, 3); found (3, 4).");
  EXPECT_TRUE(all_are(y, 7));
}

}  // namespace
}  // namespace attn
