// scaled_dot_product_attention with bad input: the message names function, argument, expected and found, and nothing is
// written.
#include "attn/attention/problem_checks.hpp"

#include <limits>

#include <gtest/gtest.h>

#include "attn/attention/sdpa.hpp"

#include "support/array.hpp"
#include "support/error_of.hpp"

namespace attn {
namespace {

using attn_test::all_are;
using attn_test::error_of;

/// A good call, to be spoilt in one respect.
struct Call {
  Shape<4> q{2, 4, 5, 8}, k{2, 2, 7, 8}, v{2, 2, 7, 6}, out{2, 4, 5, 6};
  Shape<4> weights{2, 4, 5, 7};
  Shape<3> lse{2, 4, 5};
  AttentionOptions<float> options = {};

  /// The message of the Error thrown; outputs must be left as they were.
  template <class Error>
  std::string error() const {
    const Tensor4<float> qt(q), kt(k), vt(v);
    Tensor4<float> out_t(out), weights_t(weights);
    Tensor3<float> lse_t(lse);
    out_t.fill(7), weights_t.fill(7), lse_t.fill(7);
    AttentionOptions<float> with_outputs = options;
    with_outputs.weights = weights_t;
    with_outputs.lse = lse_t;
    const std::string text =
        error_of<Error>([&] { scaled_dot_product_attention(qt, kt, vt, out_t, with_outputs); });
    EXPECT_TRUE(all_are(out_t, 7));
    EXPECT_TRUE(all_are(weights_t, 7));
    EXPECT_TRUE(all_are(lse_t, 7));
    return text;
  }
  std::string shape_error() const { return error<ShapeError>(); }
  std::string value_error() const { return error<ValueError>(); }
};

const std::string kName = "[scaled_dot_product_attention] ";

TEST(SdpaErrors, AGoodCallIsNone) {
  const Call call;
  const Tensor4<float> q(call.q), k(call.k), v(call.v);
  Tensor4<float> out(call.out);
  EXPECT_NO_THROW(scaled_dot_product_attention(q, k, v, out));
}

TEST(SdpaErrors, Extents) {
  EXPECT_EQ((Call{.k = {2, 2, 7, 9}}.shape_error()),
            kName +
                "k must have shape (batch, num_kv_heads, kv_len, head_dim) = (2, 2, 7, 8); "
                "found (2, 2, 7, 9).");
  EXPECT_EQ((Call{.k = {3, 2, 7, 8}}.shape_error()),
            kName +
                "k must have shape (batch, num_kv_heads, kv_len, head_dim) = (2, 2, 7, 8); "
                "found (3, 2, 7, 8).");
  EXPECT_EQ((Call{.v = {2, 2, 6, 6}}.shape_error()),
            kName +
                "v must have shape (batch, num_kv_heads, kv_len, head_dim_v) = (2, 2, 7, 6); "
                "found (2, 2, 6, 6).");
  EXPECT_EQ((Call{.v = {2, 4, 7, 6}}.shape_error()),
            kName +
                "v must have shape (batch, num_kv_heads, kv_len, head_dim_v) = (2, 2, 7, 6); "
                "found (2, 4, 7, 6).");
  EXPECT_EQ((Call{.out = {2, 4, 5, 8}}.shape_error()),
            kName +
                "out must have shape (batch, num_heads, q_len, head_dim_v) = (2, 4, 5, 6); "
                "found (2, 4, 5, 8).");
}

TEST(SdpaErrors, IndivisibleHeads) {
  EXPECT_EQ((Call{.k = {2, 3, 7, 8}, .v = {2, 3, 7, 6}}.shape_error()),
            kName + "num_heads and num_kv_heads must divide without remainder; found (4, 3).");
  EXPECT_EQ((Call{.k = {2, 8, 7, 8}, .v = {2, 8, 7, 6}}.shape_error()),
            kName + "num_heads and num_kv_heads must divide without remainder; found (4, 8).");
}

TEST(SdpaErrors, EmptyAxes) {
  EXPECT_EQ((Call{.q = {2, 4, 0, 8}, .out = {2, 4, 0, 6}, .weights = {2, 4, 0, 7}, .lse = {2, 4, 0}}
                 .shape_error()),
            kName + "q must have no empty axis; found (2, 4, 0, 8).");
  EXPECT_EQ((Call{.k = {2, 2, 0, 8}, .v = {2, 2, 0, 6}, .weights = {2, 4, 5, 0}}.shape_error()),
            kName + "k must have no empty axis; found (2, 2, 0, 8).");
  EXPECT_EQ((Call{.v = {2, 2, 7, 0}, .out = {2, 4, 5, 0}}.shape_error()),
            kName + "v must have no empty axis; found (2, 2, 7, 0).");
  EXPECT_EQ((Call{.q = {2, 4, 5, 0}, .k = {2, 2, 7, 0}}.shape_error()),
            kName + "q must have no empty axis; found (2, 4, 5, 0).");
  EXPECT_EQ((Call{.k = {2, 0, 7, 8}, .v = {2, 0, 7, 6}}.shape_error()),
            kName + "k must have no empty axis; found (2, 0, 7, 8).");
}

TEST(SdpaErrors, InnermostStride) {
  const Call call;
  Tensor4<float> q(call.q), k(call.k), v(call.v), out(call.out), weights(call.weights);
  out.fill(7);
  const Tensor4<float> turned({2, 4, 8, 5});
  EXPECT_EQ(
      error_of<ShapeError>(
          [&] { scaled_dot_product_attention(turned.view().transpose(2, 3), k, v, out); }),
      kName + "q must have innermost stride 1 (these are the strides); found (160, 40, 1, 5).");
  Tensor4<float> turned_out({2, 4, 6, 5}), turned_weights({2, 4, 7, 5});
  EXPECT_EQ(
      error_of<ShapeError>(
          [&] { scaled_dot_product_attention(q, k, v, turned_out.view().transpose(2, 3)); }),
      kName + "out must have innermost stride 1 (these are the strides); found (120, 30, 1, 5).");
  EXPECT_EQ(
      error_of<ShapeError>([&] {
        scaled_dot_product_attention(q, k, v, out,
                                     {.weights = turned_weights.view().transpose(2, 3)});
      }),
      kName +
          "weights must have innermost stride 1 (these are the strides); found (140, 35, 1, 5).");
  EXPECT_TRUE(all_are(out, 7));
  EXPECT_TRUE(all_are(turned_out, 0));
}

TEST(SdpaErrors, NonFiniteScale) {
  constexpr double inf = std::numeric_limits<double>::infinity();
  for (const double scale : {inf, -inf, std::numeric_limits<double>::quiet_NaN()}) {
    Call call;
    call.options.scale = scale;
    EXPECT_EQ(call.value_error(),
              kName + "scale must be finite; found " + std::to_string(scale) + ".");
  }
  // Finite as a double, but not in the type that computes.
  Call call;
  call.options.scale = 1e300;
  EXPECT_NE(call.value_error(), "");
}

TEST(SdpaErrors, MasksThatDoNotBroadcast) {
  const std::string expected =
      kName + "mask must broadcast to (batch, num_heads, q_len, kv_len) = (2, 4, 5, 7); found ";
  const Tensor2<bool> rows({4, 7});
  const Tensor4<float> heads({2, 2, 5, 7});
  const Tensor3<bool> per_batch({2, 5, 7});  // lands on the heads
  Call call;
  call.options.mask = keep_mask(rows);
  EXPECT_EQ(call.shape_error(), expected + "(1, 1, 4, 7).");
  call.options.mask = causal() & additive_mask(heads);
  EXPECT_EQ(call.shape_error(), expected + "(2, 2, 5, 7).");
  call.options.mask = drop_mask(per_batch);
  EXPECT_EQ(call.shape_error(), expected + "(1, 2, 5, 7).");
  call.options.mask = drop_mask(Tensor1<bool>({0}));
  EXPECT_EQ(call.shape_error(), expected + "(1, 1, 1, 0).");
}

TEST(SdpaErrors, MasksOfAnotherElementType) {
  const Tensor2<double> bias({5, 7});
  Call call;
  call.options.mask = additive_mask(bias);
  EXPECT_EQ(call.error<DTypeError>(),
            kName + "an additive mask must have the element type of q; found another.");
}

TEST(SdpaErrors, KeyLengths) {
  Call call;
  const Tensor1<index_t> three({3}, {1, 2, 3}), negative({2}, {3, -1}), long_one({2}, {8, 7});
  call.options.mask = key_lengths(three);
  EXPECT_EQ(call.shape_error(), kName + "key_lengths must have shape (batch) = (2); found (3).");
  call.options.mask = key_lengths(negative);
  EXPECT_EQ(call.value_error(), kName + "key_lengths(1) must lie in 0 .. 7; found -1.");
  call.options.mask = key_lengths(long_one);
  EXPECT_EQ(call.value_error(), kName + "key_lengths(0) must lie in 0 .. 7; found 8.");
}

TEST(SdpaErrors, PerHeadOptions) {
  const Tensor1<float> two({2});
  Call call;
  call.options.alibi_slopes = two;
  EXPECT_EQ(call.shape_error(),
            kName + "alibi_slopes must have shape (num_heads) = (4); found (2).");
  call.options = {};
  call.options.sinks = two;
  EXPECT_EQ(call.shape_error(), kName + "sinks must have shape (num_heads) = (4); found (2).");
}

TEST(SdpaErrors, Outputs) {
  EXPECT_EQ((Call{.weights = {2, 4, 5, 8}}.shape_error()),
            kName +
                "weights must have shape (batch, num_heads, q_len, kv_len) = (2, 4, 5, 7); "
                "found (2, 4, 5, 8).");
  EXPECT_EQ((Call{.lse = {2, 2, 5}}.shape_error()),
            kName + "lse must have shape (batch, num_heads, q_len) = (2, 4, 5); found (2, 2, 5).");
}

}  // namespace
}  // namespace attn
