// Checks of tangents: central differences, and <J t, w> = <t, J^T w> with gradients.
#pragma once

#include <algorithm>
#include <span>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "support/gradient_check.hpp"
#include "support/models/module_gradients.hpp"

namespace attn_test {

/// A point and a direction: inputs and parameters with their tangents, in pieces.
struct Direction {
  std::vector<std::span<double>> at;
  std::vector<std::span<const double>> along;

  template <class X>
  void add(X& x, const X& tangent) {
    at.emplace_back(x.data(), static_cast<std::size_t>(x.size()));
    along.emplace_back(tangent.data(), static_cast<std::size_t>(tangent.size()));
  }
  /// Draws the tangents of all parameters, and adds them.
  template <class Module>
  void add_parameters(Random& random, Module& module, Module& tangents) {
    module.visit_parameters([&](std::string_view, const auto& x) {
      at.emplace_back(x.data(), static_cast<std::size_t>(x.size()));
    });
    tangents.visit_parameters([&](std::string_view, const auto& x) {
      for (Index i = 0; i < x.size(); ++i) x.data()[i] = random.normal();
      along.emplace_back(x.data(), static_cast<std::size_t>(x.size()));
    });
  }

  /// run() at the point moved by `step`; leaves the point as it was.
  template <class Run>
  auto run_at(double step, const Run& run) const {
    std::vector<std::vector<double>> start;
    for (std::size_t n = 0; n < at.size(); ++n) {
      start.emplace_back(at[n].begin(), at[n].end());
      for (std::size_t i = 0; i < at[n].size(); ++i) at[n][i] += step * along[n][i];
    }
    auto result = run();
    for (std::size_t n = 0; n < at.size(); ++n) std::ranges::copy(start[n], at[n].begin());
    return result;
  }
};

/// run() returns a tensor; d_out is its tangent in `direction`, to be compared with the difference
/// of two points `step` away.
template <class Run, class DOut>
void expect_tangent(const Direction& direction, const Run& run, const DOut& d_out,
                    double tolerance = 2e-6, double step = 1e-5) {
  ASSERT_EQ(direction.at.size(), direction.along.size());
  const auto ahead = direction.run_at(step, run), behind = direction.run_at(-step, run);
  double size = 0;
  for (const double x : d_out.elements()) size = std::max(size, std::abs(x));
  ASSERT_EQ(ahead.size(), d_out.size());
  EXPECT_GT(size, 0);
  for (Index i = 0; i < d_out.size(); ++i) {
    ASSERT_NEAR((ahead.data()[i] - behind.data()[i]) / (2 * step), d_out.data()[i],
                tolerance * (1 + size))
        << i;
  }
}

/// The sum of gradient x tangent over all parameters.
template <class Module>
double dot_parameters(const Module& gradients, const Module& tangents) {
  std::vector<std::span<const double>> found;
  gradients.visit_parameters([&](std::string_view, const auto& x) {
    found.emplace_back(x.data(), static_cast<std::size_t>(x.size()));
  });
  double sum = 0;
  std::size_t at = 0;
  tangents.visit_parameters([&](std::string_view, const auto& x) {
    sum += weighted_sum(found.at(at++), {x.data(), static_cast<std::size_t>(x.size())});
  });
  return sum;
}

template <class X>
double dot(const X& a, const X& b) {
  return weighted_sum(a.elements(), b.elements());
}

}  // namespace attn_test
