// Fills: same numbers for the same seed, the stated distribution, any strides.
#include "attn/core/fill.hpp"

#include <cmath>
#include <random>

#include <gtest/gtest.h>

#include "support/array.hpp"
#include "support/error_of.hpp"

namespace attn {
namespace {

using attn_test::contains;
using attn_test::error_of;
using attn_test::to_array;

TEST(MersenneTwister, HasTheBitsOfTheStandards) {
  for (const std::uint64_t seed : {0ULL, 1ULL, 5489ULL, ~0ULL}) {
    detail::MersenneTwister found(seed);
    std::mt19937_64 expected(seed);
    for (int i = 0; i < 2000; ++i) ASSERT_EQ(found(), expected()) << seed << ", " << i;
  }
  for (const std::uint32_t word : {0U, 7U, ~0U}) {
    detail::MersenneTwister found({word, 3U, ~word});
    std::seed_seq words{word, 3U, ~word};
    std::mt19937_64 expected(words);
    for (int i = 0; i < 2000; ++i) ASSERT_EQ(found(), expected()) << word << ", " << i;
  }
}

TEST(Fill, FollowsFromTheSeed) {
  Tensor2<float> a({5, 7}), b({7, 5}), other({5, 7});
  fill_normal(a, {.seed = 3});
  fill_normal(b.transpose(0, 1), {.seed = 3});
  fill_normal(other, {.seed = 4});
  EXPECT_EQ(to_array(a).data, to_array(b.transpose(0, 1)).data);
  EXPECT_NE(to_array(a).data, to_array(other).data);
  Tensor2<double> wide({5, 7});
  fill_normal(wide, {.seed = 3});
  for (index_t i = 0; i < 35; ++i) {
    EXPECT_EQ(a.elements()[std::size_t(i)], static_cast<float>(wide.elements()[std::size_t(i)]));
  }
}

TEST(Fill, MomentsAndBounds) {
  constexpr index_t kSize = 100000;
  Tensor1<double> x({kSize});
  fill_normal(x, {.mean = 2, .std = 3, .seed = 1});
  double mean = 0, variance = 0;
  for (double value : x.elements()) mean += value / kSize;
  for (double value : x.elements()) variance += (value - mean) * (value - mean) / kSize;
  // Six standard errors.
  EXPECT_NEAR(mean, 2, 6 * 3 / std::sqrt(kSize));
  EXPECT_NEAR(variance, 9, 6 * 9 * std::sqrt(2.0 / kSize));
  fill_uniform(x, {.low = -1, .high = 3, .seed = 1});
  mean = 0;
  for (double value : x.elements()) {
    mean += value / kSize;
    ASSERT_TRUE(value >= -1 && value < 3) << value;
  }
  EXPECT_NEAR(mean, 1, 6 * 4 / std::sqrt(12.0 * kSize));
}

TEST(Fill, ElementsOf16BitsAndNone) {
  Tensor1<bfloat16> small({4});
  fill_uniform(small, {.low = 1, .high = 1});
  EXPECT_EQ(small(3), 1.0F);
  Tensor2<float> none({0, 3});
  fill_normal(none);
  std::vector<float> memory(6);
  fill_uniform(TensorView2<float>(memory.data(), {2, 3}), {.low = 5, .high = 6});
  EXPECT_GE(memory[5], 5.0F);
}

TEST(FillErrors, NumbersOutOfRange) {
  Tensor1<float> x({1}, {7});
  EXPECT_TRUE(
      contains(error_of<ValueError>([&] { fill_normal(x, {.std = -1}); }),
               "[fill_normal] mean and std must be finite, std at least 0; found 0 and -1"));
  EXPECT_THROW(fill_normal(x, {.mean = NAN}), ValueError);
  EXPECT_TRUE(contains(error_of<ValueError>([&] { fill_uniform(x, {.low = 2}); }),
                       "[fill_uniform] low and high must be finite and in order; found 2 and 1"));
  EXPECT_THROW(fill_uniform(x, {.high = INFINITY}), ValueError);
  EXPECT_EQ(x(0), 7.0F);
}

}  // namespace
}  // namespace attn
