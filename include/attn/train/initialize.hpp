// initialize: random parameters by PyTorch's rules.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <cstdint>
#include <string_view>

#include "attn/core/fill.hpp"

ATTN_NAMESPACE_BEGIN

struct InitializeOptions {
  std::uint64_t seed = 0;    ///< seed of the random numbers
  double embedding_std = 1;  ///< standard deviation of embeddings: 1 in PyTorch, 0.02 in GPT-2
};

/// Initialises parameters, by their names, from the distributions of PyTorch's constructors: linear
/// weights and biases uniform within 1 / sqrt(in) (Kaiming with a = sqrt 5); attention's input
/// projections within sqrt(6 / (in + out)) (Xavier, of the matrix as it is stored), their biases
/// and that of out_proj 0; bias_k and bias_v normal; embeddings normal; norms 1 and 0.
template <class Module>
void initialize(Module& module, const InitializeOptions& options = {}) {
  detail::RandomNumbers numbers(options.seed);
  double bound = 0;  // of the last weight, which the bias after it shares
  module.visit_parameters([&]<class T, int Rank>(std::string_view name, TensorView<T, Rank> x) {
    const TensorView<T, 1> all(x.data(), {x.size()});
    const auto draw = [&](auto number) {
      for (index_t i = 0; i < all.extent(0); ++i) all(i) = static_cast<T>(number());
    };
    const auto uniform = [&](double within) {
      draw([&] { return within * (2 * numbers.uniform() - 1); });
    };
    const auto holds = [&](std::string_view part) {
      return name.find(part) != std::string_view::npos;
    };
    const bool is_relative_bias = name.ends_with("relative_bias");  // an embedding of distances
    const bool is_bias = name.ends_with("bias") && !is_relative_bias;
    if (holds("norm")) {
      draw([&] { return is_bias ? 0 : 1; });
    } else if (holds("in_proj_bias") || holds("out_proj.bias") || holds("_proj_bias")) {
      draw([] { return 0; });
    } else if (name.ends_with("bias_k") || name.ends_with("bias_v")) {
      const double deviation = std::sqrt(1.0 / static_cast<double>(x.size()));
      draw([&] { return deviation * numbers.normal(); });
    } else if (is_bias) {
      uniform(bound);
    } else if (name.ends_with("words.weight") || name.ends_with("positions.weight") ||
               name.ends_with("token_types.weight") || is_relative_bias) {
      draw([&] { return options.embedding_std * numbers.normal(); });
    } else if (name.ends_with("_proj_weight")) {
      uniform(std::sqrt(6.0 / static_cast<double>(x.extent(0) + x.extent(Rank - 1))));
    } else {
      bound = 1 / std::sqrt(static_cast<double>(x.extent(Rank - 1)));
      uniform(bound);
    }
  });
}

ATTN_NAMESPACE_END
