// split_heads and combine_heads: a view without a copy, and back.
#include "attn/layers/attention/heads.hpp"

#include <limits>
#include <numeric>

#include <gtest/gtest.h>

#include "attn/core/eigen.hpp"

#include "support/array.hpp"
#include "support/error_of.hpp"
#include "support/references/reference_layers.hpp"

namespace attn {
namespace {

using attn_test::all_are;
using attn_test::error_of;
using attn_test::reference_combine_heads;
using attn_test::reference_split_heads;
using attn_test::to_array;

// The view of a temporary would dangle.
template <class X>
concept Splittable = requires(X&& x) { split_heads(std::forward<X>(x), 2); };
static_assert(Splittable<Tensor3<float>&> && Splittable<const Tensor3<float>&>);
static_assert(Splittable<TensorView3<const double>>);
static_assert(!Splittable<Tensor3<float>>);
static_assert(Splittable<Tensor2<float>&> && Splittable<TensorView2<const double>>);
static_assert(Splittable<const Eigen::MatrixXf&> && Splittable<Eigen::Map<Eigen::MatrixXf>>);
static_assert(!Splittable<Tensor2<float>> && !Splittable<Eigen::MatrixXf>);

Tensor3<float> numbers(const Shape<3>& shape) {
  Tensor3<float> x(shape);
  std::iota(x.elements().begin(), x.elements().end(), 0.0f);
  return x;
}

TEST(Heads, SplitIsAView) {
  Tensor3<float> x = numbers({2, 5, 12});
  const TensorView4<float> heads = split_heads(x, 3);
  EXPECT_EQ(heads.shape(), (Shape<4>{2, 3, 5, 4}));
  EXPECT_EQ(heads.data(), x.data());
  EXPECT_EQ(to_array(heads).data, reference_split_heads(to_array(x), 3).data);
  heads(1, 2, 4, 3) = -1;
  EXPECT_EQ(x(1, 4, 11), -1.0f);
}

TEST(Heads, AMatrixIsABatchOfOne) {
  Tensor3<float> x = numbers({1, 5, 12});
  Tensor2<float> matrix(x.select(0, 0));
  const TensorView4<float> heads = split_heads(matrix, 3);
  EXPECT_EQ(heads.shape(), (Shape<4>{1, 3, 5, 4}));
  EXPECT_EQ(heads.data(), matrix.data());
  EXPECT_EQ(to_array(heads).data, to_array(split_heads(x, 3)).data);
  const Eigen::MatrixXf columns = eigen_map(matrix);  // column-major
  const TensorView4<const float> same = split_heads(columns, 3);
  EXPECT_EQ(same.data(), columns.data());
  EXPECT_EQ(to_array(same).data, to_array(heads).data);
  EXPECT_EQ(error_of<ShapeError>([&] { split_heads(columns, 5); }),
            "[split_heads] the last extent 12 must be divisible by num_heads; found 5.");
}

TEST(Heads, RoundTrip) {
  for (index_t heads : {1, 2, 3, 4, 6, 12}) {
    const Tensor3<float> x = numbers({2, 5, 12});
    EXPECT_EQ(to_array(combine_heads(split_heads(x, heads))).data, to_array(x).data) << heads;
  }
}

TEST(Heads, CombineReordersWhatIsNotAView) {
  Tensor4<float> x({2, 3, 5, 4});
  std::iota(x.elements().begin(), x.elements().end(), 0.0f);
  Tensor3<float> y({2, 5, 12});
  combine_heads(x, y);
  EXPECT_EQ(to_array(y).data, reference_combine_heads(to_array(x)).data);
}

TEST(Heads, SplitsPaddedRows) {
  Tensor3<float> x = numbers({2, 5, 12});
  const TensorView4<float> heads = split_heads(x.view().slice(2, 2, 8), 2);
  EXPECT_EQ(heads(1, 1, 3, 0), x(1, 3, 5));
}

TEST(HeadsErrors, IndivisibleHeadsAndShapes) {
  const Tensor3<float> x({2, 5, 12});
  EXPECT_EQ(error_of<ShapeError>([&] { split_heads(x, 5); }),
            "[split_heads] the last extent 12 must be divisible by num_heads; found 5.");
  EXPECT_THROW(split_heads(x, 0), ShapeError);
  EXPECT_THROW(split_heads(x, -2), ShapeError);
  const Tensor4<float> heads({2, 3, 5, 4});
  Tensor3<float> wrong({2, 5, 11});
  wrong.fill(7);
  EXPECT_EQ(error_of<ShapeError>([&] { combine_heads(heads, wrong); }),
            "[combine_heads] out must have shape (2, 5, 12); found (2, 5, 11).");
  EXPECT_TRUE(all_are(wrong, 7));
}

TEST(SplitQkv, ViewsOfOnePackedTensor) {
  Tensor3<float> x({2, 3, (4 + 2 * 2) * 5});
  for (index_t n = 0; n < x.size(); ++n) x.data()[n] = static_cast<float>(n);
  const auto [q, k, v] = split_qkv(x, 4, 2);
  EXPECT_EQ(q.shape(), (Shape<4>{2, 4, 3, 5}));
  EXPECT_EQ(k.shape(), (Shape<4>{2, 2, 3, 5}));
  EXPECT_EQ(&q(1, 3, 2, 4), &x(1, 2, 3 * 5 + 4));
  EXPECT_EQ(&k(1, 1, 2, 4), &x(1, 2, 5 * 5 + 4));
  EXPECT_EQ(&v(0, 0, 1, 0), &x(0, 1, 6 * 5));
  const Tensor3<float>& constant = x;
  EXPECT_EQ(split_qkv(constant, 4, 2).v.data(), &x(0, 0, 30));
  EXPECT_EQ(split_qkv(x.view().slice(2, 0, 36), 2).k.shape(), (Shape<4>{2, 2, 3, 6}));
}

TEST(SplitQkv, BadInput) {
  const Tensor3<float> x({2, 3, 41});
  EXPECT_EQ(error_of<ShapeError>([&] { split_qkv(x, 4, 2); }),
            "[split_qkv] the last extent 41 must be divisible by num_heads + 2 num_kv_heads; found "
            "4 + 2 x 2.");
  constexpr index_t most = std::numeric_limits<index_t>::max();
  for (const auto& [heads, kv_heads] :
       {std::pair{index_t{1}, most}, {most, index_t{1}}, {most, most}, {index_t{-1}, index_t{1}}}) {
    EXPECT_NE(error_of<ShapeError>([&, n = heads, m = kv_heads] { split_qkv(x, n, m); }), "");
  }
}

}  // namespace
}  // namespace attn
