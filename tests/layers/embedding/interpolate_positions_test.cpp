// interpolate_positions: PyTorch's results for cubic numbers, and properties at any size.
#include "attn/layers/embedding/interpolate_positions.hpp"

#include <gtest/gtest.h>

#include "attn/core/compare.hpp"

#include "support/error_of.hpp"
#include "support/random.hpp"

namespace attn {
namespace {

using attn_test::error_of;
using attn_test::Random;

/// One column of 1, 8, 27, 64, 125.
Tensor3<double> cubes() {
  Tensor3<double> x({5, 1, 1});
  for (index_t i = 0; i < 5; ++i) x(i, 0, 0) = static_cast<double>((i + 1) * (i + 1) * (i + 1));
  return x;
}

TEST(InterpolatePositions, AsPyTorch) {
  const struct {
    Bicubic kind;
    std::vector<double> expected;
  } cases[] = {
      {Bicubic::plain,
       {0.448978, 3.067058, 12.160359, 27.000000, 48.399418, 93.492683, 129.801804}},
      {Bicubic::plain, {2.148154, 27.000000, 107.851830}},
      {Bicubic::antialiased,
       {0.592233, 3.653741, 12.029159, 27.000000, 51.154522, 93.326874, 128.553406}},
      {Bicubic::antialiased, {2.184617, 28.758141, 101.384598}},
  };
  for (const auto& [kind, expected] : cases) {
    const auto found = interpolate_positions(cubes(), std::ssize(expected), 1, kind);
    for (index_t i = 0; i < std::ssize(expected); ++i) {
      EXPECT_NEAR(found(i, 0, 0), expected[static_cast<std::size_t>(i)], 1e-4);
    }
  }
}

TEST(InterpolatePositions, TheSameSizeAndConstantsStay) {
  Random random(1);
  const auto grid = random.tensor<float, 3>({4, 5, 3});
  Tensor3<float> ones({4, 5, 2});
  ones.fill(1);
  for (const Bicubic kind : {Bicubic::plain, Bicubic::antialiased}) {
    const auto same = interpolate_positions(grid, 4, 5, kind);
    EXPECT_LT(max_abs_difference(same, grid), 1e-6);
    const auto more = interpolate_positions(ones, 9, 2, kind);
    ASSERT_EQ(more.shape(), (Shape<3>{9, 2, 2}));
    for (const float one : more.elements()) EXPECT_NEAR(one, 1, 1e-6);
  }
}

TEST(InterpolatePositionsErrors, GridsWithoutPlaces) {
  EXPECT_EQ(error_of<ShapeError>([] {
              interpolate_positions(Tensor3<float>({0, 2, 3}), 1, 1, Bicubic::plain);
            }),
            "[interpolate_positions] grid must have places, as the 1 x 1 of the result; found (0, "
            "2, 3).");
}

}  // namespace
}  // namespace attn
