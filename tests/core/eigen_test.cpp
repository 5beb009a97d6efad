// Eigen: matrices of both storage orders as views, and views as maps, without a copy.
#include "attn/core/eigen.hpp"

#include <gtest/gtest.h>

#include "attn/core/tensor.hpp"

#include "support/error_of.hpp"

namespace attn {
namespace {

using attn_test::contains;
using attn_test::error_of;

using RowMajor = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

static_assert(MatrixLike<Eigen::MatrixXf> && MatrixLike<Eigen::Map<const RowMajor>>);
static_assert(!MatrixLike<TensorView2<float>> && !MatrixLike<Tensor2<float>>);
static_assert(TensorLike<Eigen::MatrixXd> && rank_v<Eigen::MatrixXd> == 2);
static_assert(std::is_same_v<view_t<const Eigen::MatrixXf&>, TensorView2<const float>>);
static_assert(std::is_convertible_v<Eigen::MatrixXf&, TensorView2<float>>);
static_assert(!std::is_convertible_v<const Eigen::MatrixXf&, TensorView2<float>>);

template <class Matrix>
void expect_same_elements() {
  Matrix m(3, 4);
  for (int i = 0; i < 3; ++i) {
    for (int j = 0; j < 4; ++j) m(i, j) = static_cast<float>(10 * i + j);
  }
  const TensorView2<float> view(m);
  EXPECT_EQ(view.shape(), (Shape<2>{3, 4}));
  EXPECT_EQ(view.data(), m.data());
  for (int i = 0; i < 3; ++i) {
    for (int j = 0; j < 4; ++j) EXPECT_EQ(&view(i, j), &m(i, j));
  }
  auto block = m.block(1, 1, 2, 2);
  const TensorView2<float> part(block);
  EXPECT_EQ(part(1, 1), 22.0f);
  part(0, 0) = -1;
  EXPECT_EQ(m(1, 1), -1.0f);
}

TEST(Eigen, MatricesOfBothStorageOrdersAreViews) {
  expect_same_elements<Eigen::MatrixXf>();
  expect_same_elements<RowMajor>();
}

TEST(Eigen, MapsAndConstMatricesAreViews) {
  float memory[20] = {};
  memory[7] = 3;
  const Eigen::Map<const RowMajor, 0, Eigen::OuterStride<>> map(memory, 2, 3,
                                                                Eigen::OuterStride<>(5));
  const TensorView2<const float> view(map);
  EXPECT_EQ(view.strides(), (Shape<2>{5, 1}));
  EXPECT_EQ(view(1, 2), 3.0f);
  const Eigen::MatrixXf constant = Eigen::MatrixXf::Constant(2, 2, 4.0f);
  EXPECT_EQ(const_view(constant)(1, 1), 4.0f);
}

TEST(Eigen, VectorsAreViewsOfOneAxis) {
  static_assert(!std::is_convertible_v<Eigen::MatrixXf&, TensorView1<float>>);
  static_assert(!std::is_convertible_v<const Eigen::VectorXf&, TensorView1<float>>);
  Eigen::VectorXf column(3);
  column << 1, 2, 3;
  const TensorView1<float> view = column;
  EXPECT_EQ(to_string(view.shape()), "(3)");
  view(2) = 5;
  EXPECT_EQ(column[2], 5.0f);
  const Eigen::RowVectorXf row = column.transpose();
  const TensorView1<const float> of_row = row;
  EXPECT_EQ(of_row(2), 5.0f);
  // One row of a column-major matrix.
  Eigen::MatrixXf matrix(2, 3);
  matrix << 1, 2, 3, 4, 5, 6;
  const TensorView1<float> second = matrix.row(1);
  EXPECT_EQ(to_string(second.strides()), "(2)");
  EXPECT_EQ(second(2), 6.0f);
}

TEST(Eigen, ViewAsMapSharesMemory) {
  Tensor2<double> x({3, 4}, {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11});
  const auto part = x.view().slice(1, 1, 3);
  EigenMap<double> map = eigen_map(part);
  EXPECT_EQ(map.rows(), 3);
  EXPECT_EQ(map.cols(), 2);
  EXPECT_EQ(map.outerStride(), 4);
  map(2, 1) = -5;
  EXPECT_EQ(x(2, 2), -5.0);
  const Tensor2<double>& read_only = x;
  EXPECT_EQ(eigen_map(read_only.view()).sum(), 66.0 - 15.0);
  eigen_map(x)(0, 0) = 1;
  EXPECT_EQ(eigen_map(read_only).sum(), 66.0 - 14.0);
}

// The map of a temporary would dangle.
template <class X>
concept Mappable = requires(X&& x) { eigen_map(std::forward<X>(x)); };
static_assert(Mappable<Tensor2<float>&> && Mappable<TensorView2<const float>>);
static_assert(!Mappable<Tensor2<float>>);

TEST(Eigen, MatrixOfOneBatchEntryAndHead) {
  Tensor4<float> x({2, 3, 4, 5});
  x(1, 2, 3, 4) = 7;
  const auto map = x.view().matrix(1, 2);
  EXPECT_EQ(map.rows(), 4);
  EXPECT_EQ(map(3, 4), 7.0f);
  // (batch, seq, heads, dim) seen as (batch, heads, seq, dim)
  const auto strided = x.view().transpose(1, 2).matrix(1, 3);
  EXPECT_EQ(strided.rows(), 3);
  EXPECT_EQ(strided(2, 4), 7.0f);
  EXPECT_THROW(x.view().matrix(2, 0), ShapeError);
  EXPECT_THROW(x.view().matrix(0, 3), ShapeError);
}

TEST(Eigen, InnermostStrideMustBeOne) {
  Tensor2<float> x({3, 4});
  EXPECT_TRUE(contains(error_of<ShapeError>([&] { eigen_map(x.view().transpose(0, 1)); }),
                       "[eigen_map] the innermost stride must be 1; found 4."));
  // With one column, there is no innermost stride.
  EXPECT_EQ(eigen_map(x.view().slice(1, 2, 3)).cols(), 1);
}

}  // namespace
}  // namespace attn
