// concatenate() and gather_rows() against loops over all elements, and their errors.
#include "attn/core/rearrange.hpp"

#include <gtest/gtest.h>

#include "support/array.hpp"
#include "support/error_of.hpp"
#include "support/random.hpp"

namespace attn {
namespace {

using attn_test::contains;
using attn_test::error_of;
using attn_test::Random;
using attn_test::to_array;

TEST(Concatenate, PartsLieOneBehindTheOther) {
  for (std::uint64_t draw = 0; draw < 30; ++draw) {
    Random random(draw);
    SCOPED_TRACE(random.trace());
    const int axis = static_cast<int>(random.integer(0, 2));
    Shape<3> shape{random.integer(1, 4), random.integer(1, 4), random.integer(1, 4)};
    std::vector<Tensor3<double>> parts;
    for (index_t n = random.integer(1, 4); n > 0; --n) {
      shape[static_cast<std::size_t>(axis)] = random.integer(0, 3);
      parts.push_back(random.tensor<double, 3>(shape));
    }
    const Tensor3<double> all = concatenate(axis, parts);
    index_t at = 0;
    for (const auto& part : parts) {
      const index_t end = at + part.extent(axis);
      EXPECT_EQ(to_array(all.slice(axis, at, end)).data, to_array(part).data);
      at = end;
    }
    EXPECT_EQ(all.extent(axis), at);
  }
}

TEST(Concatenate, TensorsAndViewsAsArguments) {
  const Tensor2<int> a({1, 2}, {1, 2});
  Tensor2<int> b({2, 1}, {3, 4});
  EXPECT_EQ(to_array(concatenate(0, a, b.transpose(0, 1), a)).data,
            (std::vector<int>{1, 2, 3, 4, 1, 2}));
  const std::vector<TensorView2<const int>> views{a, b.transpose(0, 1)};
  EXPECT_EQ(to_array(concatenate(1, views)).data, (std::vector<int>{1, 2, 3, 4}));
  EXPECT_EQ(to_array(concatenate(-1, views)).data, (std::vector<int>{1, 2, 3, 4}));
}

TEST(ConcatenateErrors, OtherExtentsAndAxes) {
  const Tensor2<float> a({1, 2}), b({1, 3});
  EXPECT_EQ(error_of<ShapeError>([&] { concatenate(0, a, a, b); }),
            "[concatenate] part 2 must have shape (1, 2); found (1, 3).");
  EXPECT_TRUE(contains(error_of<ValueError>([&] { concatenate(2, a, b); }),
                       "[concatenate] the axis must be -2 to 1; found 2."));
  EXPECT_THROW(concatenate(-3, a), ValueError);
  EXPECT_THROW(concatenate(0, std::vector<Tensor2<float>>()), ValueError);
}

TEST(GatherRows, RowsByTheirNumbers) {
  Random random(1);
  const auto x = random.tensor<float, 3>({5, 2, 3});
  const Tensor1<index_t> rows({4}, {4, 0, 4, 2});
  const Tensor3<float> y = gather_rows(x, rows);
  for (index_t i = 0; i < 4; ++i) {
    EXPECT_EQ(to_array(y.select(0, i)).data, to_array(x.select(0, rows(i))).data);
  }
  Tensor2<float> out({3, 4});
  gather_rows(x.select(1, 1), rows, out.transpose(0, 1));
  EXPECT_EQ(out(2, 3), x(2, 1, 2));
  const Tensor1<float> line({3}, {1, 2, 3});
  EXPECT_EQ(to_array(gather_rows(line, Tensor1<index_t>({2}, {2, 0}))).data,
            (std::vector<float>{3, 1}));
  EXPECT_EQ(gather_rows(x, Tensor1<index_t>({0})).extent(0), 0);
  // Row numbers of any integer type, like ids.
  const Tensor1<std::uint8_t> bytes({4}, {4, 0, 4, 2});
  EXPECT_EQ(to_array(gather_rows(x, bytes)).data, to_array(y).data);
}

TEST(GatherRowsErrors, NumbersOutsideWriteNothing) {
  const Tensor2<float> x({3, 2});
  Tensor2<float> out({2, 2});
  out.fill(7);
  EXPECT_EQ(error_of<ValueError>([&] {
              gather_rows(x, Tensor1<index_t>({2}, {0, 3}), out);
            }),
            "[gather_rows] rows(1) must be 0 to 2; found 3.");
  EXPECT_THROW(gather_rows(x, Tensor1<index_t>({2}, {-1, 0}), out), ValueError);
  EXPECT_THROW(gather_rows(x, Tensor1<std::uint64_t>({2}, {~std::uint64_t{0}, 0}), out),
               ValueError);
  EXPECT_THROW(gather_rows(x, Tensor1<index_t>({3}), out), ShapeError);
  EXPECT_TRUE(attn_test::all_are(out, 7));
}

}  // namespace
}  // namespace attn
