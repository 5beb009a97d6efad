// argmax and top_k: against a stable sort of every row, and their errors.
#include "attn/core/ranking.hpp"

#include <algorithm>
#include <limits>
#include <numeric>

#include <gtest/gtest.h>

#include "support/array.hpp"
#include "support/error_of.hpp"
#include "support/random.hpp"

namespace attn {
namespace {

using attn_test::contains;
using attn_test::error_of;
using attn_test::Random;
using attn_test::to_array;

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNotANumber = std::numeric_limits<float>::quiet_NaN();

TEST(Argmax, FirstOfTheLargest) {
  EXPECT_EQ(argmax(Tensor1<float>({5}, {-kInfinity, 2, 3, 3, 1})), 2);
  EXPECT_EQ(argmax(Tensor1<double>({1}, {-1e300})), 0);
  EXPECT_EQ(argmax(Tensor1<float>({2}, {-kInfinity, -kInfinity})), 0);
  EXPECT_EQ(argmax(Tensor1<float>({3}, {1, kInfinity, 2})), 1);
  EXPECT_EQ(argmax(Tensor1<int>({3}, {1, 9, 2})), 1);
  const Tensor2<float> table({3, 2}, {0, 1, 5, 0, 2, 9});
  EXPECT_EQ(to_array(argmax(table)).data, (std::vector<index_t>{1, 0, 1}));
  EXPECT_EQ(to_array(argmax(table.transpose(0, 1))).data, (std::vector<index_t>{1, 2}));
}

TEST(TopK, IsTheFrontOfAStableSort) {
  for (std::uint64_t draw = 0; draw < 40; ++draw) {
    Random random(draw);
    SCOPED_TRACE(random.trace());
    const index_t n = random.integer(1, 12), k = random.integer(0, n);
    Tensor3<float> x({random.integer(0, 3), 2, n});
    for (float& value : x.elements()) value = static_cast<float>(random.integer(-3, 3));
    const auto [values, indices] = top_k(x, k);
    const auto best = argmax(x);
    for (index_t i = 0; i < x.extent(0); ++i) {
      for (index_t j = 0; j < 2; ++j) {
        std::vector<index_t> order(static_cast<std::size_t>(n));
        std::iota(order.begin(), order.end(), 0);
        std::stable_sort(order.begin(), order.end(),
                         [&](index_t a, index_t b) { return x(i, j, a) > x(i, j, b); });
        EXPECT_EQ(best(i, j), order[0]);
        for (index_t r = 0; r < k; ++r) {
          EXPECT_EQ(indices(i, j, r), order[static_cast<std::size_t>(r)]);
          EXPECT_EQ(values(i, j, r), x(i, j, indices(i, j, r)));
        }
      }
    }
  }
}

TEST(RankingErrors, NaNEmptyRowsAndTooMany) {
  const Tensor1<float> nan({2}, {1, kNotANumber});
  EXPECT_EQ(error_of<ValueError>([&] { argmax(nan); }),
            "[argmax] element 1 must be a number; found nan.");
  EXPECT_EQ(error_of<ValueError>([&] { top_k(nan, 1); }),
            "[top_k] element 1 must be a number; found nan.");
  EXPECT_THROW(argmax(Tensor2<float>({3, 0})), ShapeError);
  EXPECT_EQ(argmax(Tensor2<float>({0, 3})).size(), 0);
  EXPECT_TRUE(contains(error_of<ValueError>([&] { top_k(nan, 3); }),
                       "[top_k] k must be 0 to the last extent, 2; found 3."));
  EXPECT_THROW(top_k(nan, -1), ValueError);
}

}  // namespace
}  // namespace attn
