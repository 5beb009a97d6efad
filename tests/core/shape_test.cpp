// Shapes: text, checked sizes, contiguous strides.
#include "attn/core/shape.hpp"

#include <limits>

#include <gtest/gtest.h>

#include "support/error_of.hpp"

namespace attn {
namespace {

using attn_test::contains;
using attn_test::error_of;

constexpr index_t kMax = std::numeric_limits<index_t>::max();

TEST(Shape, Text) {
  EXPECT_EQ(to_string(Shape<1>{7}), "(7)");
  EXPECT_EQ(to_string(Shape<4>{2, 4, 128, 64}), "(2, 4, 128, 64)");
}

TEST(Shape, SizeIsTheProduct) {
  EXPECT_EQ(size_of(Shape<1>{5}), 5);
  EXPECT_EQ(size_of(Shape<4>{2, 3, 4, 5}), 120);
  EXPECT_EQ(size_of(Shape<3>{2, 0, 4}), 0);
  EXPECT_EQ(size_of(Shape<2>{kMax, 1}), kMax);
  EXPECT_EQ(size_of(Shape<2>{index_t{1} << 31, index_t{1} << 31}), index_t{1} << 62);
}

TEST(Shape, SizePastTheIndexTypeThrows) {
  EXPECT_TRUE(contains(error_of<ShapeError>([] {
                         size_of(Shape<2>{index_t{1} << 32, index_t{1} << 31});
                       }),
                       "[Shape] the number of elements must fit 63 bits; found (4294967296, "
                       "2147483648)."));
  EXPECT_THROW(size_of(Shape<3>{kMax, kMax, kMax}), ShapeError);
  // The product wraps to a small positive number.
  EXPECT_THROW(size_of(Shape<2>{(index_t{1} << 32) + 1, index_t{1} << 32}), ShapeError);
}

TEST(Shape, NoElementsHoweverLargeTheOtherExtents) {
  EXPECT_EQ(size_of(Shape<3>{kMax, kMax, 0}), 0);
  EXPECT_EQ(size_of(Shape<3>{0, kMax, kMax}), 0);
}

TEST(Shape, NegativeExtentThrows) {
  EXPECT_TRUE(contains(error_of<ShapeError>([] {
                         size_of(Shape<2>{3, -1});
                       }),
                       "[Shape] every extent must be at least 0; found (3, -1)."));
  EXPECT_THROW(size_of(Shape<2>{0, -1}), ShapeError);
  EXPECT_THROW(size_of(Shape<2>{-2, -3}), ShapeError);
}

TEST(Shape, ContiguousStrides) {
  EXPECT_EQ(contiguous_strides(Shape<4>{2, 3, 4, 5}), (Shape<4>{60, 20, 5, 1}));
  EXPECT_EQ(contiguous_strides(Shape<1>{9}), (Shape<1>{1}));
}

}  // namespace
}  // namespace attn
