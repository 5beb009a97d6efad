// expect_module_gradients: compares gradients of all parameters with central differences.
#pragma once

#include <string>

#include "attn/layers/module/saved.hpp"

#include "support/gradient_check.hpp"

namespace attn_test {

/// Randomises all parameters, so that no norm is 1 and no bias 0.
template <class Module>
void draw_parameters(Random& random, Module& module, double scale = 0.3) {
  module.visit_parameters([&]<class T, int Rank>(std::string_view name,
                                                 attn::TensorView<T, Rank> x) {
    const bool is_norm = name.find("norm") != std::string_view::npos && name.ends_with("weight");
    for (Index i = 0; i < x.size(); ++i) {
      x.data()[i] = static_cast<T>(scale * random.normal() + (is_norm ? 1 : 0));
    }
  });
}

/// `loss()` runs the module; `gradients` are those of this loss.
template <class Module, class Loss>
void expect_module_gradients(Random& random, Module& module, const Module& gradients, Loss loss,
                             double tolerance = 2e-6) {
  std::vector<std::pair<std::string, std::span<const double>>> found;
  gradients.visit_parameters([&](std::string_view name, const auto& view) {
    found.emplace_back(name, std::span(view.data(), static_cast<std::size_t>(view.size())));
  });
  std::size_t at = 0;
  module.visit_parameters([&](std::string_view, const auto& view) {
    const auto& [name, gradient] = found.at(at++);
    // Along one direction only: testing each element would run the module too often.
    std::vector<double> start(view.data(), view.data() + view.size()), direction(start.size());
    double expected = 0, size = 0;
    for (std::size_t i = 0; i < start.size(); ++i) {
      direction[i] = random.normal();
      expected += gradient[i] * direction[i];
      size += std::abs(gradient[i] * direction[i]);
    }
    constexpr double kStep = 1e-5;
    const auto along = [&](double step) {
      for (std::size_t i = 0; i < start.size(); ++i) {
        view.data()[i] = start[i] + step * direction[i];
      }
      return loss();
    };
    const double ahead = along(kStep), behind = along(-kStep);
    std::copy(start.begin(), start.end(), view.data());
    EXPECT_NEAR((ahead - behind) / (2 * kStep), expected, tolerance * (1 + std::abs(ahead) + size))
        << name << ", " << random.trace();
  });
}

}  // namespace attn_test
