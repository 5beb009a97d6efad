// NamedTensor: what it stores of a view, and the order of its bytes.
#include "attn/io/named_tensor.hpp"

#include <cstring>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include "attn/core/tensor.hpp"

#include "support/error_of.hpp"

namespace attn {
namespace {

using attn_test::contains;
using attn_test::error_of;

template <class T>
std::vector<T> elements(const NamedTensor& tensor, int* pieces = nullptr) {
  std::vector<T> result;
  tensor.for_each_run([&](std::span<const std::byte> run) {
    const std::size_t before = result.size();
    EXPECT_EQ(run.size() % sizeof(T), 0u);
    result.resize(before + run.size() / sizeof(T));
    std::memcpy(result.data() + before, run.data(), run.size());
    if (pieces) ++*pieces;
  });
  return result;
}

TEST(NamedTensor, RemembersTheView) {
  const Tensor<std::int64_t, 3> values({1, 2, 2}, {1, 2, 3, 4});
  const NamedTensor tensor("x", values);
  EXPECT_EQ(tensor.name(), "x");
  EXPECT_EQ(tensor.dtype(), DType::I64);
  EXPECT_EQ(tensor.shape(), (std::vector<index_t>{1, 2, 2}));
  EXPECT_EQ(tensor.size(), 4);
  const auto view = tensor.view<std::int64_t, 3>();
  EXPECT_EQ(view.data(), values.data());
  EXPECT_TRUE(contains(error_of<DTypeError>([&] { (void)tensor.view<float, 3>(); }),
                       "tensor \"x\" must hold F32; found I64."));
  EXPECT_TRUE(contains(error_of<ShapeError>([&] { (void)tensor.view<std::int64_t, 2>(); }),
                       "must have rank 2; found (1, 2, 2)."));
}

TEST(NamedTensor, GivesContiguousDataInOnePiece) {
  const Tensor3<float> values({2, 1, 2}, {1, 2, 3, 4});
  int pieces = 0;
  EXPECT_EQ(elements<float>(NamedTensor("x", values), &pieces), (std::vector<float>{1, 2, 3, 4}));
  EXPECT_EQ(pieces, 1);
  EXPECT_TRUE(elements<float>(NamedTensor("x", Tensor2<float>({0, 3}))).empty());
}

TEST(NamedTensor, FollowsEveryStride) {
  const int extents[] = {2, 3, 1, 4};
  Tensor4<float> values({extents[0], extents[1], extents[2], extents[3]});
  for (index_t i = 0; i < values.size(); ++i) values.data()[i] = static_cast<float>(i);
  for (int a = 0; a < 4; ++a) {
    for (int b = 0; b < 4; ++b) {
      for (int axis = 0; axis < 4; ++axis) {
        auto view = const_view(values).transpose(a, b);
        view = view.slice(axis, view.extent(axis) / 2, view.extent(axis));
        const Tensor4<float> copy(view);
        const std::vector<float> expected(copy.elements().begin(), copy.elements().end());
        EXPECT_EQ(elements<float>(NamedTensor("x", view)), expected) << a << b << axis;
      }
    }
  }
}

TEST(NamedTensor, RepeatsBroadcastAxes) {
  const double values[] = {1, 2};
  const TensorView<const double, 2> view(values, {3, 2}, {0, 1});
  EXPECT_EQ(elements<double>(NamedTensor("x", view)), (std::vector<double>{1, 2, 1, 2, 1, 2}));
}

TEST(NamedTensor, RefusesWhatNothingCanHave) {
  EXPECT_TRUE(contains(
      error_of<ValueError>([] { NamedTensor("x", TensorView1<const float>(nullptr, {2})); }),
      "tensor \"x\" must have data"));
  EXPECT_TRUE(contains(error_of<ShapeError>([] {
                         const float f = 0;
                         NamedTensor("x", TensorView1<const float>(&f, {-1}));
                       }),
                       "at least 0"));
}

}  // namespace
}  // namespace attn
