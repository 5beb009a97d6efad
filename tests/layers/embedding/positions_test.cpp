// sinusoidal_positions: the paper's formula, and other orders of the columns.
#include "attn/layers/embedding/positions.hpp"

#include <gtest/gtest.h>

#include "support/error_of.hpp"

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

TEST(Positions, HalvesHoldTheColumnsInAnotherOrder) {
  for (const index_t dim : {1, 2, 7, 32}) {
    const Tensor2<double> turns = sinusoidal_positions<double>(50, dim),
                          halves =
                              sinusoidal_positions<double>(50, dim, 10000, SinusoidalForm::halves);
    const index_t sines = (dim + 1) / 2;
    for (index_t p = 0; p < 50; ++p) {
      for (index_t j = 0; j < dim; ++j) {
        EXPECT_EQ(halves(p, j), turns(p, j < sines ? 2 * j : 2 * (j - sines) + 1));
      }
    }
  }
}

TEST(Positions, HalvesToBaseEndWithItsInverse) {
  for (const index_t dim : {4, 6, 9, 32}) {
    const index_t pairs = dim / 2;
    const auto table =
        sinusoidal_positions<double>(200, dim, 10000, SinusoidalForm::halves_to_base);
    for (index_t p : {0, 1, 77, 199}) {
      for (index_t i = 0; i < pairs; ++i) {
        const double angle =
            static_cast<double>(p) *
            std::exp(-std::log(10000.0) * static_cast<double>(i) / static_cast<double>(pairs - 1));
        EXPECT_NEAR(table(p, i), std::sin(angle), 1e-12);
        EXPECT_NEAR(table(p, pairs + i), std::cos(angle), 1e-12);
      }
      EXPECT_TRUE(dim % 2 == 0 || table(p, dim - 1) == 0);
    }
  }
  EXPECT_EQ(attn_test::error_of<ValueError>(
                [] { sinusoidal_positions<float>(1, 3, 10000, SinusoidalForm::halves_to_base); }),
            "[sinusoidal_positions] dim must be at least 4 for halves_to_base; found 3.");
}

}  // namespace
}  // namespace attn
