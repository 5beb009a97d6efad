// expect_gradient: compares a gradient with central differences, along a direction or by element.
#pragma once

#include <span>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "support/random.hpp"

namespace attn_test {

/// `loss()` reads the memory of `x`; `gradient` is d loss / d x. Tests one random direction, and
/// each element if there are fewer than 64. The step of 1e-5 leaves errors of 1e-10 times third
/// derivatives and of 1e-11 times the loss.
template <class Loss>
void expect_gradient(const std::string& name, Random& random, std::span<double> x,
                     std::span<const double> gradient, Loss loss, double tolerance = 2e-6) {
  ASSERT_EQ(x.size(), gradient.size()) << name;
  const std::vector<double> start(x.begin(), x.end());
  const auto along = [&](const std::vector<double>& direction) {
    constexpr double kStep = 1e-5;
    const auto at = [&](double step) {
      for (std::size_t i = 0; i < x.size(); ++i) x[i] = start[i] + step * direction[i];
      return loss();
    };
    const double ahead = at(kStep), behind = at(-kStep);
    std::copy(start.begin(), start.end(), x.begin());
    double expected = 0, size = std::abs(ahead);
    for (std::size_t i = 0; i < x.size(); ++i) {
      if (direction[i] == 0) continue;
      expected += gradient[i] * direction[i];
      size += std::abs(gradient[i] * direction[i]);
    }
    EXPECT_NEAR((ahead - behind) / (2 * kStep), expected, tolerance * (1 + size))
        << name << ", " << random.trace();
  };
  std::vector<double> direction(x.size());
  for (double& u : direction) u = random.normal();
  along(direction);
  for (std::size_t i = 0; i < x.size() && x.size() < 64; ++i) {
    std::fill(direction.begin(), direction.end(), 0);
    direction[i] = 1;
    along(direction);
  }
}

/// Sum of weights times x: a loss whose gradient of x is `weights`.
inline double weighted_sum(std::span<const double> weights, std::span<const double> x) {
  double sum = 0;
  for (std::size_t i = 0; i < x.size(); ++i) sum += weights[i] * x[i];
  return sum;
}

}  // namespace attn_test
