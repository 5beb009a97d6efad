// scaled_dot_product_attention with invalid input: messages name function, argument, requirement
// and value, and nothing is written.
// found, and nothing is written.
#include "attn/attention/call/problem_checks.hpp"

#include <limits>

#include <gtest/gtest.h>

#include "attn/attention/sdpa.hpp"

#include "support/array.hpp"
#include "support/error_of.hpp"

namespace attn {
namespace {

using attn_test::all_are;
using attn_test::error_of;

/// A valid call, in which each test invalidates one thing.
struct Call {
  Shape<4> q{2, 4, 5, 8}, k{2, 2, 7, 8}, v{2, 2, 7, 6}, out{2, 4, 5, 6};
  Shape<4> weights{2, 4, 5, 7};
  Shape<3> lse{2, 4, 5};
  AttentionOptions<float> options = {};

  /// Returns the message of the Error thrown; outputs must be unchanged.
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

TEST(SdpaErrors, EmptyAxesOfHeads) {
  EXPECT_EQ((Call{.v = {2, 2, 7, 0}, .out = {2, 4, 5, 0}}.shape_error()),
            kName + "v must have a last axis that is not empty; found (2, 2, 7, 0).");
  EXPECT_EQ((Call{.q = {2, 4, 5, 0}, .k = {2, 2, 7, 0}}.shape_error()),
            kName + "q must have a last axis that is not empty; found (2, 4, 5, 0).");
  EXPECT_EQ((Call{.k = {2, 0, 7, 8}, .v = {2, 0, 7, 6}}.shape_error()),
            kName + "num_heads and num_kv_heads must divide without remainder; found (4, 0).");
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
    EXPECT_EQ(call.value_error(), kName + "scale must be finite; found " + to_string(scale) + ".");
  }
  // Finite as a double, but not in the type that computes.
  Call call;
  call.options.scale = 1e300;
  EXPECT_EQ(call.value_error(), kName + "scale must be finite; found 1e+300.");
}

TEST(SdpaErrors, SoftcapOutsideOfWhatComputes) {
  for (const double softcap : {-1.0, 1e300, 1e-300, 1e-40}) {
    Call call;
    call.options.softcap = softcap;
    EXPECT_EQ(call.value_error(), kName + "softcap must be 0 or a positive normal number; found " +
                                      to_string(softcap) + ".");
  }
}

TEST(SdpaErrors, MasksThatDoNotBroadcast) {
  const std::string expected =
      kName + "mask must broadcast to (batch, num_heads, q_len, kv_len) = (2, 4, 5, 7); found ";
  const Tensor2<bool> rows({4, 7});
  const Tensor4<float> heads({2, 2, 5, 7});
  const Tensor3<bool> per_batch({2, 5, 7});  // 2 is read as the number of heads
  Call call;
  call.options.mask = keep_mask(rows);
  EXPECT_EQ(call.shape_error(), expected + "(1, 1, 4, 7).");
  call.options.mask = causal() & additive_mask(heads);
  EXPECT_EQ(call.shape_error(), expected + "(2, 2, 5, 7).");
  call.options.mask = drop_mask(per_batch);
  EXPECT_EQ(call.shape_error(), expected + "(1, 2, 5, 7).");
  const Tensor1<bool> nothing({0});
  call.options.mask = drop_mask(nothing);
  EXPECT_EQ(call.shape_error(), expected + "(1, 1, 1, 0).");
}

TEST(SdpaErrors, MasksOfAnotherElementType) {
  const Tensor2<double> bias({5, 7});
  Call call;
  call.options.mask = Mask(additive_mask(bias));  // the mask does not store its element type
  EXPECT_EQ(call.error<DTypeError>(),
            kName + "an additive mask must have the element type of q, float; found double.");
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
  const Tensor1<float> four({4});
  const Tensor2<float> turned({4, 2}), rows({2, 4});
  call.options = {.batch_alibi_slopes = turned};
  EXPECT_EQ(
      call.shape_error(),
      kName + "batch_alibi_slopes must have shape (batch, num_heads) = (2, 4); found (4, 2).");
  call.options = {.alibi_slopes = four, .batch_alibi_slopes = rows};
  EXPECT_EQ(call.value_error(),
            kName + "alibi_slopes and batch_alibi_slopes must not be given together; found both.");
}

TEST(SdpaErrors, QueriesOfValues) {
  const Tensor4<float> wide({2, 4, 5, 8}), strided({2, 4, 6, 5});
  Call call;
  call.options.qv = wide;
  EXPECT_EQ(call.shape_error(),
            kName +
                "qv must have shape (batch, num_heads, q_len, head_dim_v) = (2, 4, 5, 6); found "
                "(2, 4, 5, 8).");
  call.options.qv = strided.view().transpose(2, 3);
  EXPECT_EQ(
      call.shape_error(),
      kName + "qv must have innermost stride 1 (these are the strides); found (120, 30, 1, 5).");
}

TEST(SdpaErrors, Outputs) {
  EXPECT_EQ((Call{.weights = {2, 4, 5, 8}}.shape_error()),
            kName +
                "weights must have shape (batch, num_heads, q_len, kv_len) = (2, 4, 5, 7); "
                "found (2, 4, 5, 8).");
  EXPECT_EQ((Call{.lse = {2, 2, 5}}.shape_error()),
            kName + "lse must have shape (batch, num_heads, q_len) = (2, 4, 5); found (2, 2, 5).");
}

TEST(SdpaErrors, EntriesOfEachBatchRow) {
  const Tensor1<index_t> far({2}, {0, 6}), beyond({2}, {0, 9});
  Call call;
  call.options.mask = query_lengths(far);
  EXPECT_EQ(call.value_error(), kName + "query_lengths(1) must lie in 0 .. 5; found 6.");
  call.options.mask = left_padding(beyond);
  EXPECT_EQ(call.value_error(), kName + "left_padding(1) must lie in 0 .. 7; found 9.");
  call.options.mask = prefix_lm(beyond);
  EXPECT_EQ(call.value_error(), kName + "prefix_lm(1) must lie in 0 .. 7; found 9.");
  const Tensor1<index_t> offsets({3});
  call.options = {.offset = query_offsets(offsets)};
  EXPECT_EQ(call.shape_error(), kName + "query_offsets must have shape (batch) = (2); found (3).");
  call.options = {.offset = query_offset((index_t{1} << 60) + 1)};
  EXPECT_EQ(call.value_error(),
            kName + "query_offset must lie in -2^60 .. 2^60; found 1152921504606846977.");
}

TEST(SdpaErrors, Documents) {
  const Tensor2<index_t> falling({1, 7}, {0, 0, 1, 1, 2, 1, 3}), longer({2, 8});
  Call call;
  call.options.mask = documents(falling);
  EXPECT_EQ(call.value_error(),
            kName + "documents must have ids that do not decrease along a row; found 1 after 2.");
  call.options.mask = documents(longer);
  EXPECT_EQ(
      call.shape_error(),
      kName + "documents must have shape (batch or 1, first_key + kv_len) = (2, 7); found (2, 8).");
}

TEST(SdpaErrors, RelativeBias) {
  const Tensor2<float> even({4, 6}), two({2, 7});
  Call call;
  call.options.relative_bias = even;
  EXPECT_EQ(call.shape_error(),
            kName + "relative_bias must have shape (num_heads, 2 n + 1) = (4, 7); found (4, 6).");
  call.options.relative_bias = two;
  EXPECT_EQ(call.shape_error(),
            kName + "relative_bias must have shape (num_heads, 2 n + 1) = (4, 7); found (2, 7).");
}

TEST(SdpaErrors, ChosenHeads) {
  const Tensor1<index_t> beyond({2}, {0, 4}), twice({2}, {1, 1});
  Call call{.weights = {2, 2, 5, 7}};
  call.options.weight_heads = beyond;
  EXPECT_EQ(call.value_error(), kName + "weight_heads(1) must lie in 0 .. 3; found 4.");
  call.options.weight_heads = twice;
  EXPECT_EQ(call.value_error(),
            kName + "weight_heads must name each head at most once; found 1 twice.");
}

/// Two sequences in one row of 5 queries and 7 keys.
Call packed_call() {
  return {.q = {1, 4, 5, 8},
          .k = {1, 2, 7, 8},
          .v = {1, 2, 7, 6},
          .out = {1, 4, 5, 6},
          .weights = {2, 4, 3, 4},
          .lse = {1, 4, 5}};
}

TEST(SdpaErrors, PackedSequences) {
  const Tensor1<index_t> q_starts({3}, {0, 2, 5}), kv_starts({3}, {0, 4, 7}), late({3}, {1, 2, 5}),
      falling({3}, {0, 6, 5}), more({4}, {0, 1, 2, 7}), one({1}, {0});
  Call call = packed_call();
  const auto with = [&](const Tensor1<index_t>& q, const Tensor1<index_t>& kv) {
    call.options.cu_seqlens_q = q;
    call.options.cu_seqlens_k = kv;
    return call;
  };
  EXPECT_EQ(with(late, kv_starts).value_error(),
            kName + "cu_seqlens_q(0) must lie in 0 .. 0; found 1.");
  EXPECT_EQ(with(falling, kv_starts).value_error(),
            kName + "cu_seqlens_q(1) must lie in 0 .. 5; found 6.");
  EXPECT_EQ(with(q_starts, q_starts).value_error(),
            kName + "cu_seqlens_k(2) must lie in 7 .. 7; found 5.");
  EXPECT_EQ(with(q_starts, more).shape_error(),
            kName + "cu_seqlens_k must have shape (batch + 1) = (3); found (4).");
  EXPECT_EQ(with(one, kv_starts).value_error(),
            kName + "cu_seqlens_q(0) must lie in 5 .. 5; found 0.");
  const index_t start = 0;
  call.options.cu_seqlens_q = {&start, {0}};
  EXPECT_EQ(call.shape_error(), kName + "cu_seqlens_q must have shape (batch + 1); found (0).");
  EXPECT_EQ(with(q_starts, {}).value_error(),
            kName + "cu_seqlens_q and cu_seqlens_k must be given together; found one of them.");
  call.q = {2, 4, 5, 8}, call.out = {2, 4, 5, 6}, call.lse = {2, 4, 5};
  EXPECT_EQ(with(q_starts, kv_starts).shape_error(),
            kName +
                "q must have shape (1, num_heads, total, head_dim) = (1, 4, 5, 8); "
                "found (2, 4, 5, 8).");
}

TEST(SdpaErrors, Pages) {
  const Tensor2<index_t> table({2, 3}, {0, 1, 2, 3, 4, 5}), beyond({2, 3}, {0, 1, 2, 3, 4, 6}),
      three({3, 3});
  const Tensor1<index_t> lengths({2}, {21, 14});
  Call call{.k = {6, 2, 7, 8}, .v = {6, 2, 7, 6}, .weights = {2, 4, 5, 21}};
  call.options.block_table = beyond;
  EXPECT_EQ(call.value_error(), kName + "block_table(5) must lie in 0 .. 5; found 6.");
  call.options.mask = key_lengths(lengths);
  call.options.block_table = three;
  EXPECT_EQ(call.shape_error(), kName + "key_lengths must have shape (batch) = (3); found (2).");
  call.options.mask = {};
  EXPECT_EQ(call.shape_error(),
            kName + "block_table must have shape (batch, pages) = (2, 3); found (3, 3).");
  call.options.block_table = table;
  call.k = {5, 2, 7, 8};
  EXPECT_EQ(call.value_error(), kName + "block_table(5) must lie in 0 .. 4; found 5.");
}

TEST(SdpaErrors, PositionsOfFunctorsAreInts) {
  constexpr index_t kMany = index_t{1} << 31;
  const Tensor1<float> row({8});
  const TensorView4<const float> q(row.data(), {1, 1, 1, 8}),
      k(row.data(), {1, 1, kMany, 8}, {0, 0, 0, 1});
  Tensor4<float> out({1, 1, 1, 8});
  EXPECT_EQ(
      error_of<ValueError>([&] {
        scaled_dot_product_attention(q, k, k, out, {},
                                     mask_mod([](int, int, int, int) { return true; }));
      }),
      kName +
          "functors must be given with batch, num_heads, q_len and first_key + kv_len below 2^31; "
          "found 2147483648.");
}

}  // namespace
}  // namespace attn
