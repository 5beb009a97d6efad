// explain(): the tokens of each expert, and the work and memory of a call of MixtureOfExperts.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdio>

#include "attn/layers/experts/mixture_of_experts.hpp"

ATTN_NAMESPACE_BEGIN

/// The sizes of a call of MixtureOfExperts.
struct ExpertsExplanation {
  std::vector<index_t> tokens;  ///< of each expert
  index_t used = 0;             ///< experts that have tokens
  double flops = 0;             ///< of the products with all weights
  double bytes = 0;             ///< of all weights that are read, those of used experts only

  /// The sizes in words, one fact per line.
  std::string text() const {
    const index_t most = tokens.empty() ? 0 : *std::max_element(tokens.begin(), tokens.end());
    char work[64];
    std::snprintf(work, sizeof(work), "%.4g GFLOP, %.4g MB of weights\n", flops * 1e-9,
                  bytes * 1e-6);
    return "experts    " + std::to_string(used) + " of " + std::to_string(tokens.size()) +
           " used, at most " + std::to_string(most) + (most == 1 ? " token" : " tokens") + " each" +
           "\nwork       " + work;
  }
};

/// Returns the sizes of layer.forward(x, ..) for x (batch, seq, d_model), whose router it runs.
/// Throws ShapeError.
template <class T, TensorLike X>
ATTN_COLD ExpertsExplanation explain(const MixtureOfExperts<T>& layer, const X& x,
                                     const Execution& execution = {}) {
  ATTN_ASSERT_INPUT(X, T, 3, "explain: x", "(batch, seq, d_model)", "the layer");
  using Acc = Accumulator<T>;
  const auto from = detail::view_as<const T, 3>(x);
  const MixtureOfExpertsOptions& o = layer.options();
  const index_t tokens = from.extent(0) * from.extent(1);
  Tensor2<Acc> scores({tokens, o.num_experts}), weights({tokens, o.experts_per_token});
  Tensor1<index_t> indices({layer.routing_indices(tokens)});
  const auto routing = layer.routing_in(tokens, indices.data(), weights.data());
  layer.route(from, scores.view(), routing, execution);

  ExpertsExplanation result;
  const auto add = [&](index_t rows, index_t elements, index_t bytes) {
    result.flops += 2 * static_cast<double>(rows) * static_cast<double>(elements);
    result.bytes += static_cast<double>(bytes);
  };
  const auto add_weight = [&](index_t rows, const Tensor2<T>& weight) {
    add(rows, weight.size(), weight.size() * index_t{sizeof(T)});
  };
  const auto add_expert = [&](index_t rows, const FeedForward<T>& expert) {
    visit_weights<const T>(expert, [&](std::string_view, WeightSlot<const T>& slot) {
      add(rows, size_of(slot.shape), slot.bytes);
    });
  };
  result.tokens.resize(layer.experts.size());
  layer.for_experts(routing, [&](index_t e, index_t begin, index_t end) {
    result.tokens[static_cast<std::size_t>(e)] = end - begin;
    result.used += 1;
    add_expert(end - begin, layer.experts[static_cast<std::size_t>(e)]);
  });
  if (tokens == 0) return result;
  add_weight(tokens, layer.router.weight);
  if (o.dim_shared > 0) add_expert(tokens, layer.shared_expert);
  if (o.shared_gate) add_weight(tokens, layer.shared_expert_gate.weight);
  return result;
}

ATTN_NAMESPACE_END
