// Views: element access at every rank, and operations that make views from views.
#include "attn/core/view.hpp"

#include <numeric>
#include <vector>

#include <gtest/gtest.h>

#include "attn/core/argument_types.hpp"
#include "attn/core/eigen.hpp"
#include "attn/core/tensor.hpp"

#include "support/array.hpp"
#include "support/error_of.hpp"
#include "support/random.hpp"

namespace attn {
namespace {

using attn_test::contains;
using attn_test::error_of;
using attn_test::to_array;

// Wrong rank, lost const and missing axes do not compile.
static_assert(!std::is_convertible_v<TensorView3<float>, TensorView4<float>>);
static_assert(!std::is_convertible_v<TensorView4<float>, TensorView4<double>>);
static_assert(!std::is_convertible_v<TensorView2<const float>, TensorView2<float>>);
static_assert(std::is_convertible_v<TensorView2<float>, TensorView2<const float>>);
template <class V, class... I>
concept Indexable = requires(V v, I... i) { v(i...); };
static_assert(Indexable<TensorView3<float>, int, index_t, long>);
template <class V>
concept Selectable = requires(V v) { v.select(0, 0); };
static_assert(Selectable<TensorView2<float>> && !Selectable<TensorView1<float>>);
template <class V>
concept HasMatrices = requires(V v) { &V::matrix; };
static_assert(!HasMatrices<TensorView3<float>>);
static_assert(TensorLike<TensorView3<const double>> && TensorLike<std::vector<float>>);
static_assert(std::is_same_v<scalar_t<TensorView2<const float>>, float>);
static_assert(rank_v<TensorView<int, 6>> == 6);

/// 0, 1, 2, ..
std::vector<int> numbers(int n) {
  std::vector<int> x(static_cast<std::size_t>(n));
  std::iota(x.begin(), x.end(), 0);
  return x;
}

template <int Rank>
void count_through(const Shape<Rank>& shape) {
  std::vector<int> memory = numbers(static_cast<int>(size_of(shape)));
  const TensorView<int, Rank> view(memory.data(), shape);
  EXPECT_EQ(to_array(view).data, memory);
  EXPECT_TRUE(view.is_contiguous());
  EXPECT_EQ(view.size(), static_cast<index_t>(memory.size()));
  EXPECT_EQ(view.at_index({}), memory.data());
}

TEST(View, EveryRank) {
  count_through<1>({5});
  count_through<2>({2, 3});
  count_through<3>({2, 3, 4});
  count_through<4>({2, 3, 4, 5});
  count_through<5>({2, 1, 3, 2, 2});
  count_through<6>({1, 2, 1, 3, 1, 2});
}

TEST(View, StridesOfAnySign) {
  std::vector<int> memory = numbers(24);
  const TensorView2<int> padded(memory.data(), {3, 4}, {8, 2});
  EXPECT_EQ(padded(2, 3), 22);
  EXPECT_FALSE(padded.is_contiguous());
  const TensorView1<int> repeated(memory.data() + 5, {4}, {0});
  EXPECT_EQ(to_array(repeated).data, (std::vector<int>{5, 5, 5, 5}));
  const TensorView1<int> backwards(memory.data() + 3, {4}, {-1});
  EXPECT_EQ(to_array(backwards).data, (std::vector<int>{3, 2, 1, 0}));
  padded(1, 1) = -7;
  EXPECT_EQ(memory[10], -7);
}

TEST(View, ContiguityIgnoresAxesOfOne) {
  int x[6] = {};
  EXPECT_TRUE((TensorView3<int>(x, {1, 2, 3}, {99, 3, 1}).is_contiguous()));
  EXPECT_TRUE((TensorView3<int>(x, {2, 1, 3}, {3, 99, 1}).is_contiguous()));
  EXPECT_FALSE((TensorView3<int>(x, {2, 1, 3}, {4, 99, 1}).is_contiguous()));
  EXPECT_FALSE((TensorView2<int>(x, {2, 3}, {1, 2}).is_contiguous()));
}

TEST(View, NothingGiven) {
  const TensorView3<float> none;
  EXPECT_FALSE(none);
  EXPECT_EQ(none.data(), nullptr);
  EXPECT_EQ(none.size(), 0);
}

TEST(View, Span) {
  std::vector<int> memory = numbers(6);
  const TensorView2<int> view(std::span<int>(memory), {2, 3});
  EXPECT_EQ(view(1, 2), 5);
  const TensorView2<const int> read_only(std::span<const int>(memory), {3, 2});
  EXPECT_EQ(read_only(2, 1), 5);
  EXPECT_TRUE(contains(error_of<ShapeError>([&] {
                         TensorView2<int>(std::span<int>(memory), {2, 4});
                       }),
                       "[TensorView] the span must have 8 elements for shape (2, 4); found 6."));
}

TEST(View, Transpose) {
  std::vector<int> memory = numbers(24);
  const TensorView4<int> view(memory.data(), {2, 3, 2, 2});
  const TensorView4<int> t = view.transpose(1, 2);
  EXPECT_EQ(t.shape(), (Shape<4>{2, 2, 3, 2}));
  for (int a = 0; a < 2; ++a) {
    for (int b = 0; b < 3; ++b) {
      for (int c = 0; c < 2; ++c) EXPECT_EQ(&t(a, c, b, 1), &view(a, b, c, 1));
    }
  }
}

TEST(View, Slice) {
  std::vector<int> memory = numbers(12);
  const TensorView2<int> view(memory.data(), {3, 4});
  EXPECT_EQ(to_array(view.slice(1, 1, 3)).data, (std::vector<int>{1, 2, 5, 6, 9, 10}));
  EXPECT_EQ(to_array(view.slice(0, 2, 3)).data, (std::vector<int>{8, 9, 10, 11}));
  EXPECT_EQ(view.slice(0, 1, 1).size(), 0);
  EXPECT_EQ(view.slice(0, 3, 3).size(), 0);
  EXPECT_TRUE(contains(error_of<ShapeError>([&] { view.slice(1, 2, 5); }),
                       "[TensorView::slice] the range must lie within extent 4; found [2, 5)."));
  EXPECT_THROW(view.slice(1, -1, 2), ShapeError);
  EXPECT_THROW(view.slice(1, 3, 2), ShapeError);
}

TEST(View, Select) {
  std::vector<int> memory = numbers(24);
  const TensorView3<int> view(memory.data(), {2, 3, 4});
  EXPECT_EQ(to_array(view.select(0, 1)).data[0], 12);
  EXPECT_EQ(to_array(view.select(1, 2)).data, (std::vector<int>{8, 9, 10, 11, 20, 21, 22, 23}));
  EXPECT_EQ(to_array(view.select(2, 3)).data, (std::vector<int>{3, 7, 11, 15, 19, 23}));
  EXPECT_TRUE(contains(error_of<ShapeError>([&] { view.select(1, 3); }),
                       "[TensorView::select] the index must lie within extent 3; found 3."));
  EXPECT_THROW(view.select(0, -1), ShapeError);
}

TEST(View, UnsqueezeInsertsAnAxisThatBroadcasts) {
  std::vector<int> memory = numbers(6);
  const TensorView2<int> view(memory.data(), {2, 3});
  EXPECT_EQ(view.unsqueeze(0).shape(), (Shape<3>{1, 2, 3}));
  EXPECT_EQ(view.unsqueeze(1).shape(), (Shape<3>{2, 1, 3}));
  EXPECT_EQ(view.unsqueeze(2).shape(), (Shape<3>{2, 3, 1}));
  for (int axis = 0; axis < 3; ++axis) {
    EXPECT_EQ(to_array(view.unsqueeze(axis)).data, memory) << axis;
    EXPECT_EQ(view.unsqueeze(axis).stride(axis), 0);
  }
  EXPECT_EQ((TensorView1<int>(memory.data(), {6}).unsqueeze(1).shape()), (Shape<2>{6, 1}));
}

TEST(View, Split) {
  std::vector<int> memory = numbers(24);
  const TensorView2<int> view(memory.data(), {2, 12});
  const TensorView3<int> split = view.split(1, 3);
  EXPECT_EQ(split.shape(), (Shape<3>{2, 3, 4}));
  EXPECT_EQ(to_array(split).data, memory);
  EXPECT_EQ(view.split(0, 2).shape(), (Shape<3>{2, 1, 12}));
  const TensorView2<int> padded(memory.data(), {2, 4}, {12, 3});
  EXPECT_EQ(padded.split(1, 2)(1, 1, 1), 12 + 9);
  EXPECT_TRUE(
      contains(error_of<ShapeError>([&] { view.split(1, 5); }),
               "[TensorView::split] the extent 12 must be divisible by the parts; found 5."));
  EXPECT_THROW(view.split(1, 0), ShapeError);
  EXPECT_THROW(view.split(1, -3), ShapeError);
}

TEST(View, RowsJoinLeadingAxes) {
  std::vector<int> memory = numbers(60);
  const TensorView3<int> whole(memory.data(), {2, 3, 4});
  EXPECT_EQ(whole.rows().shape(), (Shape<2>{6, 4}));
  EXPECT_EQ(to_array(whole.rows()).data, to_array(whole).data);
  EXPECT_EQ(to_array(whole.slice(2, 1, 3).rows()).data, to_array(whole.slice(2, 1, 3)).data);
  EXPECT_EQ((TensorView1<int>(memory.data(), {5}).rows().shape()), (Shape<2>{1, 5}));
  EXPECT_EQ((TensorView4<int>(memory.data(), {2, 1, 3, 4}, {12, 77, 4, 1}).rows().shape()),
            (Shape<2>{6, 4}));
  EXPECT_EQ((TensorView3<int>(memory.data(), {0, 3, 4}).rows().size()), 0);
  EXPECT_EQ((TensorView3<int>(memory.data(), {2, 0, 4}).rows().shape()), (Shape<2>{0, 4}));
  EXPECT_EQ((whole.slice(1, 0, 0).rows().shape()), (Shape<2>{0, 4}));
}

TEST(View, RowsThatDoNotJoinThrow) {
  std::vector<int> memory = numbers(60);
  const TensorView3<int> whole(memory.data(), {2, 3, 4});
  EXPECT_TRUE(
      contains(error_of<ShapeError>([&] { whole.slice(1, 0, 2).rows(); }),
               "[TensorView::rows] the leading axes must lie one stride apart to be joined; "
               "found strides (12, 4, 1) of (2, 2, 4)."));
  EXPECT_THROW(whole.transpose(0, 1).rows(), ShapeError);
}

TEST(View, RowsOfRepeatedAxes) {
  std::vector<int> memory = numbers(60);
  // All rows are the same row.
  const TensorView3<int> one(memory.data(), {2, 3, 4}, {0, 0, 1});
  EXPECT_EQ(to_array(one.rows()).data, to_array(one).data);
  // Each of two rows three times: no single stride can describe this.
  EXPECT_THROW((TensorView3<int>(memory.data(), {2, 3, 4}, {4, 0, 1}).rows()), ShapeError);
  // Three rows, twice.
  EXPECT_THROW((TensorView3<int>(memory.data(), {2, 3, 4}, {0, 4, 1}).rows()), ShapeError);
}

TEST(View, ViewOfWhatFunctionsAccept) {
  std::vector<int> memory = numbers(6);
  TensorView2<int> view(memory.data(), {2, 3});
  EXPECT_EQ(view_of(view).data(), memory.data());
  const auto read_only = const_view(view);
  static_assert(std::is_same_v<decltype(read_only), const TensorView2<const int>>);
  EXPECT_EQ(read_only.shape(), view.shape());
}

/// Elements of `to` equal those of `from`, in order.
template <class A, class B>
void expect_same_order(const A& from, const B& to) {
  EXPECT_EQ(to_array(from).data, to_array(to).data);
}

TEST(View, ReshapeNeverCopiesAndKeepsTheOrder) {
  std::vector<int> memory = numbers(1000);
  int viewed = 0, refused = 0;
  for (std::uint64_t draw = 0; draw < 500; ++draw) {
    attn_test::Random random(draw);
    SCOPED_TRACE(random.trace());
    // A contiguous (2, 3, 4, 5) with axes exchanged, sliced and repeated.
    TensorView<int, 4> x(memory.data(), {2, 3, 4, 5});
    if (random.chance(0.5)) {
      const int a = static_cast<int>(random.integer(0, 3));
      x = x.transpose(a, static_cast<int>(random.integer(0, 3)));
    }
    if (random.chance(0.4)) x = x.slice(static_cast<int>(random.integer(0, 3)), 0, 1);
    const int cut = static_cast<int>(random.integer(0, 3));
    if (random.chance(0.2) && x.extent(cut) > 1) x = x.slice(cut, 1, 2);
    const index_t n = x.size();
    const auto parts = random.pick<index_t>({1, 2, 3, 4, 5, 6, 12, 20});
    if (n % parts != 0) continue;
    try {
      const auto y = x.reshape({parts, -1});
      expect_same_order(x, y);
      ++viewed;
      const auto z = y.reshape(x.shape());
      expect_same_order(x, z);
    } catch (const ShapeError&) {
      ++refused;
      EXPECT_FALSE(x.is_contiguous());
      EXPECT_GT(parts, 0);
    }
  }
  EXPECT_GT(viewed, 100);
  EXPECT_GT(refused, 20);
}

TEST(View, ReshapeOfWhatNeedsNoCopy) {
  std::vector<int> memory = numbers(24);
  const TensorView3<int> x(memory.data(), {2, 3, 4});
  // Rows of a wider matrix: axes within rows and within columns regroup.
  const auto part = TensorView2<int>(memory.data(), {4, 6}).slice(1, 0, 4);
  EXPECT_EQ(part.reshape({2, 2, 2, 2}).strides(), (Shape<4>{12, 6, 2, 1}));
  EXPECT_THROW(part.reshape({16}), ShapeError);
  EXPECT_EQ(x.reshape({1, 24, 1}).shape(), (Shape<3>{1, 24, 1}));
  // Repeated axes remain repeated.
  const auto repeated = x.select(0, 0).unsqueeze(0).expand({5, 3, 4});
  EXPECT_EQ(repeated.reshape({5, 12}).strides(), (Shape<2>{0, 1}));
  const TensorView2<int> none(nullptr, {0, 7});
  EXPECT_EQ(none.reshape({7, 0, 2}).shape(), (Shape<3>{7, 0, 2}));
  EXPECT_EQ(none.reshape({-1, 7}).extent(0), 0);
}

TEST(View, PermuteIsExchangesOfAxes) {
  std::vector<int> memory = numbers(120);
  const TensorView4<int> x(memory.data(), {2, 3, 4, 5});
  expect_same_order(x.permute({0, 2, 1, 3}), x.transpose(1, 2));
  const auto y = x.permute({3, 0, 1, 2});
  EXPECT_EQ(y.shape(), (Shape<4>{5, 2, 3, 4}));
  EXPECT_EQ(y(4, 1, 2, 3), x(1, 2, 3, 4));
}

TEST(View, MergeUndoesSplit) {
  std::vector<int> memory = numbers(120);
  const TensorView3<int> x(memory.data(), {4, 6, 5});
  for (int axis = 0; axis < 3; ++axis) {
    const auto y = x.split(axis, x.extent(axis) == 5 ? 5 : 2).merge(axis);
    EXPECT_EQ(y.shape(), x.shape());
    expect_same_order(x, y);
  }
  EXPECT_EQ(x.slice(1, 0, 1).merge(1).strides(), (Shape<2>{30, 1}));
  EXPECT_EQ(x.slice(1, 0, 1).merge(0).strides(), (Shape<2>{30, 1}));
  EXPECT_TRUE(contains(
      error_of<ShapeError>([&] { x.transpose(0, 1).merge(0); }),
      "[TensorView::merge] the axes must lie one stride apart to be joined; found strides"));
}

TEST(View, ExpandRepeats) {
  std::vector<int> memory = numbers(3);
  const TensorView1<int> x(memory.data(), {3});
  const auto y = x.expand({2, 4, 3});
  EXPECT_EQ(y.strides(), (Shape<3>{0, 0, 1}));
  EXPECT_EQ(x.unsqueeze(1).expand({3, 2})(2, 1), 2);
  EXPECT_EQ(x.expand({0, 3}).size(), 0);
  EXPECT_EQ(x.expand({5, -1}).strides(), (Shape<2>{0, 1}));
  EXPECT_EQ(x.unsqueeze(0).expand({2, 4, -1, -1}).shape(), (Shape<4>{2, 4, 1, 3}));
}

TEST(View, NegativeAxesCountFromTheLast) {
  std::vector<int> memory = numbers(60);
  const TensorView3<int> x(memory.data(), {3, 4, 5});
  for (int axis = 0; axis < 3; ++axis) {
    const int same = axis - 3;
    EXPECT_EQ(x.extent(same), x.extent(axis));
    EXPECT_EQ(x.stride(same), x.stride(axis));
    EXPECT_EQ(to_array(x.select(same, 2)).data, to_array(x.select(axis, 2)).data);
    EXPECT_EQ(to_array(x.slice(same, 1, 3)).data, to_array(x.slice(axis, 1, 3)).data);
    EXPECT_EQ(x.split(same, 1).strides(), x.split(axis, 1).strides());
    EXPECT_EQ(x.transpose(same, 0).strides(), x.transpose(axis, 0).strides());
  }
  EXPECT_EQ(x.unsqueeze(-1).shape(), (Shape<4>{3, 4, 5, 1}));
  EXPECT_EQ(x.unsqueeze(-4).shape(), (Shape<4>{1, 3, 4, 5}));
  EXPECT_EQ(x.merge(-2).shape(), x.merge(1).shape());
  EXPECT_EQ(x.permute({0, -1, 1}).shape(), (Shape<3>{3, 5, 4}));
  EXPECT_EQ(Tensor2<float>({2, 7}).extent(-1), 7);
}

TEST(ViewErrors, AxesThatAreNone) {
  std::vector<int> memory = numbers(24);
  const TensorView3<int> x(memory.data(), {2, 3, 4});
  const auto error = [](auto f) { return error_of<ValueError>(f); };
  EXPECT_EQ(error([&] { x.transpose(0, 3); }),
            "[TensorView::transpose] the axis must be -3 to 2; found 3.");
  EXPECT_EQ(error([&] { x.slice(-4, 0, 1); }),
            "[TensorView::slice] the axis must be -3 to 2; found -4.");
  EXPECT_EQ(error([&] { x.select(3, 0); }),
            "[TensorView::select] the axis must be -3 to 2; found 3.");
  EXPECT_EQ(error([&] { x.split(3, 1); }),
            "[TensorView::split] the axis must be -3 to 2; found 3.");
  EXPECT_EQ(error([&] { x.unsqueeze(4); }),
            "[TensorView::unsqueeze] the axis must be -4 to 3; found 4.");
  EXPECT_EQ(error([&] { x.merge(2); }), "[TensorView::merge] the axis must be -3 to 1; found 2.");
  EXPECT_THROW(x.merge(-1), ValueError);
  EXPECT_EQ(error([&] { x.extent(3); }), "[TensorView::extent] the axis must be -3 to 2; found 3.");
  EXPECT_THROW(x.stride(-4), ValueError);
  EXPECT_THROW(Tensor2<float>({2, 3}).extent(2), ValueError);
  EXPECT_TRUE(contains(error_of<ShapeError>([&] { x.permute({0, 1, -2}); }), "found (0, 1, 1)"));
  EXPECT_TRUE(contains(error_of<ShapeError>([&] { x.permute({0, 1, -4}); }), "found (0, 1, -4)"));
}

TEST(ViewErrors, ShapesThatDoNotFit) {
  std::vector<int> memory = numbers(24);
  const TensorView2<int> x(memory.data(), {4, 6});
  const auto error = [](auto f) { return error_of<ShapeError>(f); };
  EXPECT_EQ(error([&] {
              x.reshape({5, 5});
            }),
            "[TensorView::reshape] the shape must have the 24 elements of (4, 6), -1 at most once; "
            "found (5, 5).");
  EXPECT_TRUE(contains(error([&] { x.reshape({-1, 5}); }), "found (-1, 5)"));
  EXPECT_TRUE(contains(error([&] { x.reshape({-1, -1, 4}); }), "found (-1, -1, 4)"));
  EXPECT_TRUE(contains(error([&] { x.reshape({-2, -12}); }), "found (-2, -12)"));
  EXPECT_TRUE(contains(error([&] { x.reshape({index_t{1} << 62, 4}); }), "have the 24 elements"));
  EXPECT_TRUE(contains(error([&] {
                         TensorView2<int>(nullptr, {0, 3}).reshape({0, -1});
                       }),
                       "found (0, -1)"));
  EXPECT_TRUE(contains(error([&] { x.transpose(0, 1).reshape({24}); }),
                       "[TensorView::reshape] the axes must allow a view of shape (24)"));
  EXPECT_EQ(error([&] {
              x.permute({1, 1});
            }),
            "[TensorView::permute] the axes must be 0 to 1, each once; found (1, 1).");
  EXPECT_THROW(x.permute({0, 2}), ShapeError);
  EXPECT_EQ(error([&] {
              x.expand({4, 5});
            }),
            "[TensorView::expand] the tensor must broadcast to (4, 5); found (4, 6).");
  EXPECT_THROW(x.expand({-1, 4, 6}), ShapeError);
}

/// A std::vector is a tensor of one axis; similar types are not.
TEST(TensorView, OfVectors) {
  std::vector<float> x{1, 2, 3};
  const std::vector<float>& fixed = x;
  const TensorView1<float> view = x;
  const TensorView1<const float> read = fixed;
  EXPECT_EQ(view.data(), x.data());
  EXPECT_EQ(read.shape(), (Shape<1>{3}));
  EXPECT_EQ(view_of(x).data(), x.data());
  static_assert(std::same_as<decltype(view_of(fixed)), TensorView1<const float>>);
  static_assert(!std::convertible_to<std::vector<double>&, TensorView1<const float>>);
  static_assert(!std::convertible_to<const std::vector<float>&, TensorView1<float>>);
  static_assert(!std::convertible_to<std::vector<float>&, TensorView2<const float>>);
  static_assert(TemporaryTensor<std::vector<float>> && !TemporaryTensor<std::vector<float>&>);
  static_assert(!TensorLike<std::vector<bool>> && !TensorLike<std::string>);
  static_assert(!TensorLike<std::array<float, 3>> && !TensorLike<std::span<float>>);
}

/// Overloads by element or rank remain distinct, whatever types options convert.
int which(TensorView1<const float>) { return 1; }
int which(TensorView1<const double>) { return 2; }
int which(TensorView2<const float>) { return 3; }

TEST(TensorView, OverloadsStayApart) {
  const std::vector<double> doubles{1};
  EXPECT_EQ(which(doubles), 2);
  EXPECT_EQ(which(Tensor1<float>({1})), 1);
  EXPECT_EQ(which(Tensor2<float>({1, 1})), 3);
}

TEST(OptionView, TakesWhatViewsTake) {
  struct Options {
    OptionView<const float, 1> slopes = {};
    OptionView<float, 2> out = {};
  };
  const std::vector<float> x{1, 2};
  Tensor2<float> out({2, 2});
  Eigen::RowVectorXf row(3);
  EXPECT_FALSE(Options{}.slopes);
  EXPECT_EQ((Options{.slopes = x, .out = out}.out.data()), out.data());
  EXPECT_EQ((Options{.slopes = {x.data(), {2}}}.slopes.extent(0)), 2);
  EXPECT_EQ((Options{.slopes = row}.slopes.extent(0)), 3);
  Options options;
  options.out = out.view().transpose(0, 1);
  EXPECT_EQ(options.out.stride(0), 1);
  options.out = {};
  EXPECT_FALSE(options.out);
}

}  // namespace
}  // namespace attn
