// Parameters of modules: their names, random values, and copies in another type.
#pragma once

#include <cmath>
#include <map>
#include <string>
#include <vector>

#include "support/random.hpp"

namespace attn_test {

template <class Module>
std::vector<std::string> names_of(const Module& module) {
  std::vector<std::string> names;
  module.visit_parameters([&](std::string_view name, const auto&) { names.emplace_back(name); });
  return names;
}

/// "weight(3, 4)"
template <class Module>
std::vector<std::string> names_and_shapes_of(const Module& module) {
  std::vector<std::string> names;
  module.visit_parameters([&](std::string_view name, const auto& view) {
    names.push_back(std::string(name) + attn::to_string(view.shape()));
  });
  return names;
}

template <class T>
using ReferenceParameters = std::map<std::string, Array<T>>;

/// A module's parameters in another type.
template <class W, class Module>
ReferenceParameters<W> parameters_of(const Module& module) {
  ReferenceParameters<W> parameters;
  module.visit_parameters([&](std::string_view name, const auto& view) {
    parameters[std::string(name)] = to_array(view).template as<W>();
  });
  return parameters;
}

/// Adds random numbers to a module's parameters: matrices are scaled by their fan-in, vectors stay
/// near their start.
template <class Module>
void randomize(Module& module, Random& random) {
  module.visit_parameters([&]<class T, int Rank>(std::string_view, attn::TensorView<T, Rank> p) {
    const double scale = Rank == 1 ? 0.5 : 1 / std::sqrt(static_cast<double>(p.extent(Rank - 1)));
    for (Index i = 0; i < p.size(); ++i) {
      p.data()[i] = static_cast<T>(p.data()[i] + static_cast<T>(scale * random.normal()));
    }
  });
}

/// A module of the options with random parameters.
template <class Module, class Options>
Module random_module(Random& random, const Options& options) {
  Module module(options);
  randomize(module, random);
  return module;
}

}  // namespace attn_test
