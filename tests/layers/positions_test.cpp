// sinusoidal_positions: the paper's formula.
#include "attn/layers/positions.hpp"

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

}  // namespace
}  // namespace attn
