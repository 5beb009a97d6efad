// The buckets of transformers' T5, attention with them, and ALiBi slopes.
#include "attn/attention/relative_bias.hpp"

#include <gtest/gtest.h>

#include "attn/attention/sdpa.hpp"

#include "support/array.hpp"
#include "support/error_of.hpp"
#include "support/random.hpp"

namespace attn {
namespace {

using attn_test::error_of;
using attn_test::Random;

/// A bias per bucket that is the bucket's number, for one head.
Tensor2<float> numbered(index_t count) {
  Tensor2<float> table({count, 1});
  for (index_t i = 0; i < count; ++i) table(i, 0) = static_cast<float>(i);
  return table;
}

/// A bucket and the number of successive distances in it, from distance -128 on; from transformers'
/// T5, 32 buckets.
using Runs = std::vector<std::pair<int, int>>;

void expect_runs(const Tensor2<float>& bias, const Runs& runs) {
  ASSERT_EQ(bias.shape(), (Shape<2>{1, 257}));
  index_t at = 0;
  for (const auto& [bucket, count] : runs) {
    for (int n = 0; n < count; ++n, ++at) {
      ASSERT_EQ(bias(0, at), static_cast<float>(bucket)) << "distance " << at - 128;
    }
  }
  EXPECT_EQ(at, 257);
}

TEST(T5RelativeBias, BucketsOfEncoders) {
  expect_runs(t5_relative_bias(numbered(32), true),
              {{15, 38}, {14, 27}, {13, 18}, {12, 14}, {11, 9},  {10, 7},  {9, 4},  {8, 4},
               {7, 1},   {6, 1},   {5, 1},   {4, 1},   {3, 1},   {2, 1},   {1, 1},  {0, 1},
               {17, 1},  {18, 1},  {19, 1},  {20, 1},  {21, 1},  {22, 1},  {23, 1}, {24, 4},
               {25, 4},  {26, 7},  {27, 9},  {28, 14}, {29, 18}, {30, 27}, {31, 38}});
}

TEST(T5RelativeBias, BucketsOfDecoders) {
  expect_runs(t5_relative_bias(numbered(32), false),
              {{31, 16}, {30, 14}, {29, 12}, {28, 10}, {27, 10}, {26, 8}, {25, 7}, {24, 6},
               {23, 6},  {22, 5},  {21, 4},  {20, 4},  {19, 3},  {18, 3}, {17, 2}, {16, 3},
               {15, 1},  {14, 1},  {13, 1},  {12, 1},  {11, 1},  {10, 1}, {9, 1},  {8, 1},
               {7, 1},   {6, 1},   {5, 1},   {4, 1},   {3, 1},   {2, 1},  {1, 1},  {0, 129}});
}

TEST(T5RelativeBias, AttentionAddsTheBucketOfEachDistance) {
  Random random(1);
  const auto table = random.tensor<double, 2>({32, 3});
  const auto q = random.tensor<double, 4>({1, 3, 300, 8}),
             kv = random.tensor<double, 4>({1, 3, 300, 8});
  const Tensor2<double> bias = t5_relative_bias(table, true);
  Tensor4<double> dense({1, 3, 300, 300});
  for (index_t h = 0; h < 3; ++h) {
    for (index_t i = 0; i < 300; ++i) {
      for (index_t j = 0; j < 300; ++j) {
        dense(0, h, i, j) = bias(h, 128 + std::clamp<index_t>(j - i, -128, 128));
      }
    }
  }
  const auto y = scaled_dot_product_attention(q, kv, kv, {.relative_bias = bias});
  const auto expected = scaled_dot_product_attention(q, kv, kv, {.mask = additive_mask(dense)});
  EXPECT_TRUE(attn_test::to_array(y).data == attn_test::to_array(expected).data);
}

TEST(T5RelativeBias, BackwardIsItsTranspose) {
  attn_test::Random random;
  for (const bool bidirectional : {true, false}) {
    const auto table = random.tensor<double, 2>({6, 3}), d_bias = random.tensor<double, 2>({3, 19});
    const Tensor2<double> bias = t5_relative_bias(table, bidirectional, 9);
    auto d_table = random.tensor<double, 2>({6, 3});
    const Tensor2<double> before = d_table;
    t5_relative_bias_backward(d_bias, bidirectional, d_table);
    double forward = 0, backward = 0;
    for (index_t i = 0; i < bias.size(); ++i) forward += bias.data()[i] * d_bias.data()[i];
    for (index_t i = 0; i < table.size(); ++i) {
      backward += table.data()[i] * (d_table.data()[i] - before.data()[i]);
    }
    EXPECT_NEAR(forward, backward, 1e-12) << random.trace();
  }
}

// Slopes of the code published by Press et al.
TEST(AlibiSlopes, OfPowersOfTwoAndOthers) {
  const auto expect = [](index_t heads, const std::vector<double>& exponents) {
    const Tensor1<double> slopes = alibi_slopes<double>(heads);
    ASSERT_EQ(slopes.size(), std::ssize(exponents));
    for (index_t h = 0; h < heads; ++h) {
      EXPECT_DOUBLE_EQ(slopes(h), std::exp2(-exponents[static_cast<std::size_t>(h)])) << h;
    }
  };
  expect(1, {8});
  expect(8, {1, 2, 3, 4, 5, 6, 7, 8});
  expect(6, {2, 4, 6, 8, 1, 3});
  expect(12, {1, 2, 3, 4, 5, 6, 7, 8, 0.5, 1.5, 2.5, 3.5});
  EXPECT_EQ(error_of<ValueError>([] { alibi_slopes<float>(0); }),
            "[alibi_slopes] num_heads must be positive; found 0.");
}

TEST(T5RelativeBias, BadInput) {
  Tensor2<double> table({32, 2}), even({2, 256}), of_three({3, 257});
  const std::string axes =
      "bias must have shape (num_heads, 2 max_distance + 1) = (2, 257); found ";
  EXPECT_EQ(error_of<ShapeError>([&] { t5_relative_bias(table, true, even); }),
            "[t5_relative_bias] " + axes + "(2, 256).");
  EXPECT_EQ(error_of<ShapeError>([&] { t5_relative_bias(table, true, of_three); }),
            "[t5_relative_bias] " + axes + "(3, 257).");
  EXPECT_EQ(error_of<ShapeError>([&] { t5_relative_bias_backward(of_three, true, table); }),
            "[t5_relative_bias_backward] d_" + axes + "(3, 257).");
  EXPECT_THROW(t5_relative_bias_backward(Tensor2<double>({2, 9}), true, table), ValueError);
  EXPECT_EQ(error_of<ValueError>([] { t5_relative_bias(numbered(3), true); }),
            "[t5_relative_bias] num_buckets must be at least 4; found 3.");
  EXPECT_EQ(error_of<ValueError>([] { t5_relative_bias(numbered(32), false, 16); }),
            "[t5_relative_bias] max_distance must exceed 16 and be at most 2^30; found 16.");
}

}  // namespace
}  // namespace attn
