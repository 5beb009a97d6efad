// Tensors: construction, deep copies, alignment, and copy() between views of any strides.
#include "attn/core/tensor.hpp"

#include <cstdint>
#include <numeric>
#include <utility>

#include <gtest/gtest.h>

#include "attn/core/eigen.hpp"

#include "support/array.hpp"
#include "support/error_of.hpp"

namespace attn {
namespace {

using attn_test::contains;
using attn_test::error_of;
using attn_test::to_array;

static_assert(std::is_convertible_v<Tensor2<float>&, TensorView2<float>>);
static_assert(std::is_convertible_v<const Tensor2<float>&, TensorView2<const float>>);
static_assert(!std::is_convertible_v<const Tensor2<float>&, TensorView2<float>>);
static_assert(!std::is_convertible_v<Tensor3<float>&, TensorView4<float>>);
static_assert(TensorLike<Tensor4<double>> && rank_v<Tensor4<double>> == 4);
static_assert(std::is_same_v<view_t<const Tensor2<float>&>, TensorView2<const float>>);
static_assert(std::is_same_v<view_t<Tensor2<float>&>, TensorView2<float>>);

TEST(Tensor, StartsAsZeros) {
  const Tensor4<double> x({2, 3, 4, 5});
  EXPECT_EQ(x.size(), 120);
  for (double value : x.elements()) EXPECT_EQ(value, 0.0);
  EXPECT_EQ(x.extent(2), 4);
  EXPECT_TRUE(x);
}

TEST(Tensor, DefaultStandsForNone) {
  const Tensor3<float> none;
  EXPECT_FALSE(none);
  EXPECT_FALSE(none.view());
  EXPECT_EQ(none.size(), 0);
}

TEST(Tensor, ValuesInOrder) {
  const Tensor2<int> x({2, 3}, {1, 2, 3, 4, 5, 6});
  EXPECT_EQ(x(0, 2), 3);
  EXPECT_EQ(x(1, 0), 4);
  EXPECT_TRUE(contains(error_of<ShapeError>([] {
                         Tensor2<int>({2, 3}, {1, 2});
                       }),
                       "[Tensor] the values must number 6; found 2."));
}

TEST(Tensor, ShapesThatNothingCanHaveThrow) {
  EXPECT_THROW(Tensor2<float>({-1, 2}), ShapeError);
  EXPECT_THROW((Tensor3<float>({index_t{1} << 31, index_t{1} << 31, 4})), ShapeError);
  EXPECT_THROW((Tensor2<double>({index_t{1} << 31, index_t{1} << 30})), ShapeError);  // bytes
}

TEST(Tensor, CopiesAreDeepAndKeepTheirAlignment) {
  Tensor1<float> x({5});
  x.fill(2);
  Tensor1<float> y = x;
  y(0) = 9;
  EXPECT_EQ(x(0), 2);
  x = y;
  EXPECT_EQ(x(0), 9);
  EXPECT_NE(x.data(), y.data());
  const Tensor1<float>& self = x;
  x = self;
  EXPECT_EQ(x(0), 9);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(x.data()) % 64, 0u);
}

TEST(Tensor, Moves) {
  Tensor1<float> x({5});
  float* data = x.data();
  const Tensor1<float> y = std::move(x);
  EXPECT_EQ(y.data(), data);
}

TEST(Tensor, MovedFromIsEmptyAndCanBeCopied) {
  Tensor2<float> x({2, 3}, {1, 2, 3, 4, 5, 6}), y({1, 1});
  Tensor2<float> z = std::move(x);
  y = std::move(z);
  for (const Tensor2<float>* gone : {&x, &z}) {
    EXPECT_EQ(gone->shape(), (Shape<2>{0, 0}));
    EXPECT_EQ(gone->size(), 0);
    EXPECT_FALSE(*gone);
    EXPECT_TRUE(gone->elements().empty());
    const Tensor2<float> copied = *gone;
    EXPECT_EQ(copied.size(), 0);
  }
  x.fill(7);
  EXPECT_EQ(to_array(y).data, (std::vector<float>{1, 2, 3, 4, 5, 6}));
}

TEST(Tensor, ContiguousCopyOfAView) {
  Tensor2<int> x({2, 3}, {1, 2, 3, 4, 5, 6});
  const Tensor2<int> t(x.view().transpose(0, 1));
  EXPECT_EQ(to_array(t).data, (std::vector<int>{1, 4, 2, 5, 3, 6}));
  EXPECT_TRUE(t.view().is_contiguous());
}

TEST(Tensor, CopyBetweenStrides) {
  Tensor3<int> from({2, 3, 4}), to({4, 3, 2});
  std::iota(from.elements().begin(), from.elements().end(), 0);
  copy(from, to.view().transpose(0, 2));
  for (int a = 0; a < 2; ++a) {
    for (int b = 0; b < 3; ++b) {
      for (int c = 0; c < 4; ++c) EXPECT_EQ(to(c, b, a), from(a, b, c));
    }
  }
  EXPECT_TRUE(contains(error_of<ShapeError>([&] { copy(from, to); }),
                       "[copy] to must have shape (2, 3, 4); found (4, 3, 2)."));
}

TEST(Tensor, CopyTakesWhateverHasAView) {
  Tensor2<float> from({2, 3}, {1, 2, 3, 4, 5, 6}), to({3, 2});
  copy(from.view().transpose(0, 1), to);
  EXPECT_EQ(to_array(to).data, (std::vector<float>{1, 4, 2, 5, 3, 6}));
  Eigen::MatrixXf columns(3, 2);  // column-major
  copy(to, columns);
  EXPECT_EQ(columns, (Eigen::MatrixXf(3, 2) << 1, 4, 2, 5, 3, 6).finished());
}

TEST(Tensor, NoElements) {
  const Tensor2<float> x({0, 4});
  EXPECT_EQ(x.size(), 0);
  EXPECT_EQ(Tensor2<float>(x).shape(), (Shape<2>{0, 4}));
}

template <class X>
concept Viewed = requires(X&& x) {
  static_cast<X&&>(x).reshape({2, 3});
  static_cast<X&&>(x).permute({0, 1});
  static_cast<X&&>(x).expand({4, 2, 3});
  static_cast<X&&>(x).merge(0);
  static_cast<X&&>(x).split(0, 1);
  static_cast<X&&>(x).select(0, 0);
  static_cast<X&&>(x).slice(0, 0, 1);
  static_cast<X&&>(x).transpose(0, 1);
  static_cast<X&&>(x).unsqueeze(0);
};
template <class X>
concept Reshaped = requires(X&& x) {
  static_cast<X&&>(x).reshape({2, 3});
};
template <class X>
concept Selected = requires(X&& x) { static_cast<X&&>(x).select(0, 0); };
template <class X>
concept ViewedSomehow = requires(X&& x) {
  static_cast<X&&>(x).permute({0, 1});
} || requires(X&& x) {
  static_cast<X&&>(x).expand({4, 2, 3});
} || requires(X&& x) { static_cast<X&&>(x).merge(0); } || requires(X&& x) {
  static_cast<X&&>(x).split(0, 1);
} || requires(X&& x) { static_cast<X&&>(x).slice(0, 0, 1); } || requires(X&& x) {
  static_cast<X&&>(x).transpose(0, 1);
} || requires(X&& x) { static_cast<X&&>(x).unsqueeze(0); };
static_assert(Viewed<Tensor2<float>&> && Viewed<const Tensor2<float>&>);
static_assert(Viewed<TensorView2<float>> && Viewed<TensorView2<const float>&>);
static_assert(!Reshaped<Tensor2<float>> && !Reshaped<const Tensor2<float>>);
static_assert(!Selected<Tensor2<float>> && !Selected<const Tensor2<float>>);
static_assert(!ViewedSomehow<Tensor2<float>> && !ViewedSomehow<const Tensor2<float>>);

TEST(Tensor, ViewsOfItByItsOwnMembers) {
  Tensor2<int> x({2, 3}, {1, 2, 3, 4, 5, 6});
  const Tensor2<int>& same = x;
  x.reshape({3, 2})(2, 1) = 7;
  EXPECT_EQ(same.permute({1, 0})(2, 1), 7);
  EXPECT_EQ(same.reshape({-1}).extent(0), 6);
  EXPECT_EQ(same.merge(0)(3), 4);
  EXPECT_EQ(same.expand({2, 2, 3})(1, 0, 2), 3);
  EXPECT_EQ(same.select(0, 1).data(), x.data() + 3);
  EXPECT_EQ(same.unsqueeze(1).shape(), (Shape<3>{2, 1, 3}));
  EXPECT_EQ(same.split(1, 3).shape(), (Shape<3>{2, 3, 1}));
}

}  // namespace
}  // namespace attn
