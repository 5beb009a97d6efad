// Comparisons against loops over all elements: infinities, NaN, mixed types, any strides.
#include "attn/core/compare.hpp"

#include <algorithm>
#include <limits>

#include <gtest/gtest.h>

#include "attn/core/element.hpp"

#include "support/array.hpp"
#include "support/error_of.hpp"
#include "support/random.hpp"

namespace attn {
namespace {

using attn_test::contains;
using attn_test::error_of;
using attn_test::Random;

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

TEST(Compare, IsTheLargestDifference) {
  for (std::uint64_t draw = 0; draw < 50; ++draw) {
    Random random(draw);
    SCOPED_TRACE(random.trace());
    const index_t m = random.integer(0, 6), n = random.integer(1, 9);
    const auto a = random.tensor<float, 2>({m, n});
    const auto b = random.tensor<double, 2>({n, m});
    double expected = 0;
    bool is_close = true;
    for (index_t i = 0; i < m; ++i) {
      for (index_t j = 0; j < n; ++j) {
        const double difference = std::abs(static_cast<double>(a(i, j)) - b(j, i));
        expected = std::max(expected, difference);
        is_close = is_close && difference <= 0.5 + std::abs(b(j, i));
      }
    }
    EXPECT_EQ(max_abs_difference(a, b.transpose(0, 1)), expected);
    EXPECT_EQ(all_close(a, b.transpose(0, 1), {.rtol = 1, .atol = 0.5}), is_close);
  }
}

TEST(Compare, InfinitiesAndNaN) {
  const Tensor1<float> a({3}, {kInf, -kInf, 1}), b({3}, {kInf, -kInf, 1.5F});
  EXPECT_EQ(max_abs_difference(a, b), 0.5);
  EXPECT_FALSE(all_close(a, b));
  EXPECT_TRUE(all_close(a, a));
  const Tensor1<float> opposite({3}, {-kInf, -kInf, 1});
  EXPECT_EQ(max_abs_difference(a, opposite), static_cast<double>(kInf));
  EXPECT_FALSE(all_close(a, opposite, {.rtol = 1}));
  EXPECT_FALSE(all_close(Tensor1<float>({1}, {1}), Tensor1<float>({1}, {kInf})));
  const Tensor1<float> nan({3}, {kNaN, 5, kNaN});
  EXPECT_TRUE(std::isnan(max_abs_difference(a, nan)));
  EXPECT_TRUE(std::isnan(max_abs_difference(nan, nan)));
  EXPECT_FALSE(all_close(nan, nan));
  EXPECT_TRUE(all_close(nan, nan, {.equal_nan = true}));
  EXPECT_FALSE(all_close(nan, a, {.equal_nan = true}));
}

TEST(Compare, RelativeToTheSecondAsInNumpy) {
  const Tensor1<double> a({1}, {100}), b({1}, {110});
  EXPECT_TRUE(all_close(a, b, {.rtol = 0.095, .atol = 0}));
  EXPECT_FALSE(all_close(b, a, {.rtol = 0.095, .atol = 0}));
  const Tensor1<bfloat16> half({1}, {bfloat16(100.0F)});
  EXPECT_TRUE(all_close(half, a));
}

TEST(CompareErrors, UnlikeShapes) {
  const Tensor2<float> a({2, 3}), b({3, 2});
  EXPECT_EQ(error_of<ShapeError>([&] { max_abs_difference(a, b); }),
            "[max_abs_difference] b must have shape (2, 3); found (3, 2).");
  EXPECT_TRUE(contains(error_of<ShapeError>([&] { (void)all_close(a, b); }), "[all_close] b"));
}

}  // namespace
}  // namespace attn
