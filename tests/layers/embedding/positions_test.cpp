// sinusoidal_positions: the paper's formula.
#include "attn/layers/embedding/positions.hpp"

#include <gtest/gtest.h>

namespace attn {
namespace {

TEST(Positions, AreThePapersSinesAndCosines) {
  for (const index_t dim : {1, 2, 7, 32}) {
    const Tensor2<double> table = sinusoidal_positions<double>(200, dim);
    for (index_t p : {0, 1, 77, 199}) {
      for (index_t i = 0; 2 * i < dim; ++i) {
        const double angle =
            static_cast<double>(p) /
            std::pow(10000.0, 2 * static_cast<double>(i) / static_cast<double>(dim));
        EXPECT_NEAR(table(p, 2 * i), std::sin(angle), 1e-12);
        if (2 * i + 1 == dim) continue;
        EXPECT_NEAR(table(p, 2 * i + 1), std::cos(angle), 1e-12);
      }
    }
  }
}

TEST(Positions, IntoAPartOfATable) {
  Tensor2<float> wide({5, 9});
  wide.fill(7);
  sinusoidal_positions(wide.view().slice(1, 2, 8));
  const Tensor2<float> table = sinusoidal_positions<float>(5, 6);
  for (index_t p = 0; p < 5; ++p) {
    EXPECT_EQ(wide(p, 1), 7);
    EXPECT_EQ(wide(p, 8), 7);
    for (index_t j = 0; j < 6; ++j) EXPECT_EQ(wide(p, 2 + j), table(p, j));
  }
}

}  // namespace
}  // namespace attn
