// Masks: how typed masks are made and combined, and what does not compile.
#include "attn/attention/mask.hpp"

#include <limits>

#include <Eigen/Core>
#include <gtest/gtest.h>

#include "attn/attention/sdpa.hpp"
#include "attn/core/eigen.hpp"

#include "support/error_of.hpp"
#include "support/isas.hpp"
#include "support/random.hpp"

namespace attn {
namespace {

using attn_test::error_of;
using attn_test::Index;
using attn_test::Random;
using attn_test::to_array;
using Dense = Mask::Dense;

// A mask never loses its polarity; for the arguments of each maker see tests/compile_errors.
static_assert(!std::is_convertible_v<Tensor2<bool>, Mask>);

// Masks refer to their tensors: temporary views compile, temporary tensors do not.
template <class X>
concept KeepsTemporary = requires(X (*make)()) { keep_mask(make()); };
template <class X>
concept PadsTemporary = requires(X (*make)()) { key_padding_mask(make()); };
template <class X>
concept CountsTemporary = requires(X (*make)()) {
  key_lengths(make());
  query_lengths(make());
  left_padding(make());
  prefix_lm(make());
  query_offsets(make());
};
template <class X>
concept DocumentsOfTemporary = requires(X (*make)()) { documents(make()); };
using Lengths1 = Eigen::Matrix<index_t, Eigen::Dynamic, 1>;
static_assert(KeepsTemporary<TensorView2<bool>> && !KeepsTemporary<Tensor2<bool>>);
static_assert(!KeepsTemporary<const Tensor2<bool>>);
static_assert(PadsTemporary<TensorView2<const bool>> && !PadsTemporary<Tensor2<bool>>);
static_assert(CountsTemporary<TensorView1<index_t>> && CountsTemporary<Eigen::Map<Lengths1>>);
template <class X>
concept CountsKeys = requires(X (*make)()) { key_lengths(make()); };
static_assert(!CountsKeys<Tensor1<index_t>> && !CountsKeys<Lengths1>);
static_assert(DocumentsOfTemporary<TensorView2<index_t>>);
static_assert(!DocumentsOfTemporary<Tensor2<index_t>>);

TEST(Mask, LengthsAndOffsetsOfEigenVectors) {
  const Lengths1 lengths = Lengths1::LinSpaced(3, 1, 3);
  const Eigen::Matrix<index_t, 1, Eigen::Dynamic> row = lengths.transpose();
  EXPECT_EQ(key_lengths(lengths).key_lengths.data(), lengths.data());
  EXPECT_EQ(key_lengths(row).key_lengths(2), 3);
  EXPECT_EQ(prefix_lm(lengths).prefix_lengths.shape(), (Shape<1>{3}));
  EXPECT_EQ(query_offsets(lengths).values(1), 2);
}

TEST(Mask, NothingMasksNothing) {
  const Mask none;
  EXPECT_EQ(none.num_dense, 0);
  EXPECT_FALSE(none.causal);
  EXPECT_FALSE(none.key_lengths);
}

TEST(Mask, DenseMasksAreViewsWithAxesAtTheRight) {
  const Tensor2<bool> bits({5, 7});
  const Mask mask = keep_mask(bits);
  ASSERT_EQ(mask.num_dense, 1);
  const Dense& part = mask.dense[0];
  EXPECT_EQ(part.kind, Dense::Kind::keep);
  EXPECT_EQ(part.element, Dense::Element::boolean);
  EXPECT_EQ(part.data, bits.data());
  EXPECT_EQ(part.shape, (Shape<4>{1, 1, 5, 7}));
  EXPECT_EQ(part.strides, (Shape<4>{0, 0, 7, 1}));
}

TEST(Mask, ExtentsOfOneBroadcast) {
  const Tensor4<float> bias({3, 1, 1, 9});
  const Dense part = additive_mask(bias).dense[0];
  EXPECT_EQ(part.kind, Dense::Kind::add);
  EXPECT_EQ(part.element, Dense::Element::f32);
  EXPECT_EQ(part.strides, (Shape<4>{9, 0, 0, 1}));
  const Tensor1<double> row({4});
  EXPECT_EQ(additive_mask(row).dense[0].element, Dense::Element::f64);
}

TEST(Mask, PyTorchKeyPadding) {
  const Tensor2<bool> padding({2, 6});
  const Dense masked = key_padding_mask(padding).dense[0];
  EXPECT_EQ(masked.kind, Dense::Kind::drop);
  EXPECT_EQ(masked.shape, (Shape<4>{2, 1, 1, 6}));
  const Tensor2<float> bias({2, 6});
  EXPECT_EQ(key_padding_mask(bias).dense[0].kind, Dense::Kind::add);
}

/// A mask of one axis would be read as (heads) if there are as many heads as keys.
TEST(Mask, PyTorchKeyPaddingHasTwoAxes) {
  const Tensor1<bool> row({4}, {false, false, true, true});
  EXPECT_EQ(key_padding_mask(row.view().unsqueeze(0)).dense[0].shape, (Shape<4>{1, 1, 1, 4}));
  const Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor> added(2, 3);
  EXPECT_EQ(key_padding_mask(added).dense[0].shape, (Shape<4>{2, 1, 1, 3}));
}

TEST(Mask, CombineByAnd) {
  const Tensor2<bool> bits({5, 7});
  const Tensor1<index_t> lengths({2}, {3, 7});
  const Mask mask = causal() & keep_mask(bits) & sliding_window(4, -1) & drop_mask(bits) &
                    sliding_window(9, 2) & key_lengths(lengths);
  EXPECT_TRUE(mask.causal);
  EXPECT_EQ(mask.num_dense, 2);
  EXPECT_EQ(mask.left, 4);
  EXPECT_EQ(mask.right, 2);
  EXPECT_EQ(mask.key_lengths.data(), lengths.data());
  EXPECT_EQ((key_lengths(lengths) & causal()).key_lengths.data(), lengths.data());
}

TEST(Mask, CombinationsThatDoNotExistThrow) {
  const Tensor2<bool> bits({5, 7});
  const Tensor1<index_t> lengths({2});
  const Mask two = keep_mask(bits) & keep_mask(bits);
  const Mask four = two & two;
  EXPECT_EQ(error_of<ValueError>([&] { (void)(four & keep_mask(bits)); }),
            "[Mask] the number of dense parts must be at most 4; found 5.");
  EXPECT_EQ(error_of<ValueError>([&] { (void)(key_lengths(lengths) & key_lengths(lengths)); }),
            "[Mask] key lengths must be given once; found two of them.");
}

TEST(Mask, WindowsBelowMinusOneThrow) {
  EXPECT_EQ(error_of<ValueError>([] { sliding_window(-2, 0); }),
            "[sliding_window] left and right must be at least -1; found -2 and 0.");
  EXPECT_THROW(sliding_window(0, -5), ValueError);
}

/// Windows as wide as the index type mask out nothing.
TEST(Mask, WidestWindowsAreOpen) {
  constexpr index_t kMax = std::numeric_limits<index_t>::max();
  Random random(1);
  const auto x = random.tensor<float, 4>({1, 1, 9, 8});
  const auto expected = to_array(scaled_dot_product_attention(x, x, x));
  for (const Mask& mask : {sliding_window(kMax, kMax), sliding_window(-1, kMax),
                           sliding_window(kMax, -1), sliding_window(1000, 1000)}) {
    const auto y = scaled_dot_product_attention(x, x, x, {.mask = mask});
    EXPECT_EQ(to_array(y).data, expected.data);
  }
}

/// Each dense form in PyTorch and the tutorials, against the same mask at full shape.
TEST(Mask, EveryBroadcastForm) {
  Random random(2);
  const auto q = random.tensor<float, 4>({2, 3, 5, 8}), k = random.tensor<float, 4>({2, 3, 7, 8});
  for (int form = 0; form < 16; ++form) {
    const auto extent = [&](int axis, Index whole) { return form >> axis & 1 ? whole : Index{1}; };
    Tensor4<bool> bits({extent(0, 2), extent(1, 3), extent(2, 5), extent(3, 7)});
    for (bool& bit : bits.elements()) bit = random.chance(0.7);
    Tensor4<bool> whole({2, 3, 5, 7}), flipped({2, 3, 5, 7});
    Tensor4<float> bias({2, 3, 5, 7});
    for (Index b = 0; b < 2; ++b) {
      for (Index h = 0; h < 3; ++h) {
        for (Index i = 0; i < 5; ++i) {
          for (Index j = 0; j < 7; ++j) {
            const auto at = [&](int axis, Index n) { return form >> axis & 1 ? n : Index{0}; };
            const bool visible = bits(at(0, b), at(1, h), at(2, i), at(3, j));
            whole(b, h, i, j) = visible;
            flipped(b, h, i, j) = !visible;
            bias(b, h, i, j) = visible ? 0 : -std::numeric_limits<float>::infinity();
          }
        }
      }
    }
    for (Isa isa : attn_test::available_isas()) {
      const auto run = [&](const Mask& mask) {
        return to_array(
                   scaled_dot_product_attention(q, k, k, {.mask = mask, .execution = {.isa = isa}}))
            .data;
      };
      const auto expected = run(keep_mask(whole));
      EXPECT_EQ(run(keep_mask(bits)), expected) << form;
      EXPECT_EQ(run(drop_mask(flipped)), expected) << form;
      EXPECT_EQ(run(additive_mask(bias)), expected) << form;
    }
  }
}

TEST(DocumentsOf, IdsOfLengths) {
  const auto ids = [](const Tensor2<index_t>& x) {
    EXPECT_EQ(x.extent(0), 1);
    return std::vector<index_t>(x.elements().begin(), x.elements().end());
  };
  EXPECT_EQ(ids(documents_of({2, 0, 3})), (std::vector<index_t>{0, 0, 2, 2, 2}));
  EXPECT_EQ(ids(documents_of(std::vector<index_t>{1, 1})), (std::vector<index_t>{0, 1}));
  EXPECT_EQ(ids(documents_of(Tensor1<index_t>({2}, {1, 2}))), (std::vector<index_t>{0, 1, 1}));
  EXPECT_EQ(documents_of({}).extent(1), 0);
  EXPECT_TRUE(attn_test::contains(
      attn_test::error_of<ValueError>([] {
        documents_of({2, -1});
      }),
      "[documents_of] every length must be at least 0, their sum below 2^63; found -1."));
}

}  // namespace
}  // namespace attn
