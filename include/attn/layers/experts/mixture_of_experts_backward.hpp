// Backward of MixtureOfExperts, and the load-balancing loss.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attn/layers/experts/mixture_of_experts.hpp"
#include "attn/layers/feed_forward_backward.hpp"

ATTN_NAMESPACE_BEGIN

template <class T>
struct MixtureOfExpertsSaved {
  Saved<T, 3> x;
  Saved<Accumulator<T>, 2> scores;  ///< (tokens, num_experts)
  Saved<Accumulator<T>, 2> weights;
  Saved<index_t, 1> indices;
  std::vector<FeedForwardSaved<T>> experts;
  Saved<T, 3> results;  ///< of the experts, (1, rows, d_model)
  FeedForwardSaved<T> shared_expert;
  Saved<T, 3> shared, gate;  ///< results of the shared expert and its gate
  /// Factor of load_balancing_loss() in the loss; backward adds its gradient. Set it before
  /// backward.
  double balance = 0;

  index_t bytes() const {
    index_t sum = x.bytes() + scores.bytes() + weights.bytes() + indices.bytes() + results.bytes() +
                  shared_expert.bytes() + shared.bytes() + gate.bytes();
    for (const FeedForwardSaved<T>& expert : experts) sum += expert.bytes();
    return sum;
  }
};

namespace detail {

template <class T>
Routing<Accumulator<T>> saved_routing(const MixtureOfExperts<T>& layer,
                                      MixtureOfExpertsSaved<T>& saved) {
  return layer.routing_in(saved.weights.view().extent(0), saved.indices.view().data(),
                          saved.weights.view().data());
}

}  // namespace detail

/// num_experts times the sum over experts of (the share of tokens that chose it) (its mean score),
/// of the forward call that saved; experts_per_token if both are equal for all experts and scores
/// are softmax. Source: Fedus et al., "Switch Transformers" (2021), section 2.2.
template <class T>
double load_balancing_loss(const MixtureOfExperts<T>& layer, MixtureOfExpertsSaved<T>& saved) {
  const auto routing = detail::saved_routing(layer, saved);
  const auto scores = saved.scores.view();
  const index_t tokens = scores.extent(0), experts = scores.extent(1);
  double loss = 0;
  for (index_t e = 0; e < experts && tokens > 0; ++e) {
    double sum = 0;
    for (index_t t = 0; t < tokens; ++t) sum += static_cast<double>(scores(t, e));
    loss += static_cast<double>(routing.starts(e + 1) - routing.starts(e)) * sum;
  }
  const double n = static_cast<double>((std::max)(tokens, index_t{1}));
  return static_cast<double>(experts) * loss / (n * n);
}

/// MixtureOfExperts::forward() that saves activations: x, out and residual (batch, seq, d_model).
/// Throws ShapeError.
template <class T>
void forward(const MixtureOfExperts<T>& layer, Input3<T> x, Output3<T> out,
             MixtureOfExpertsSaved<T>& saved, Input3<T> residual = {},
             const Execution& execution = {}) {
  x = saved.x.keep(x);
  const MixtureOfExpertsOptions& o = layer.options();
  const index_t tokens = x.extent(0) * x.extent(1), dim = x.extent(2);
  const index_t rows = tokens * o.experts_per_token;
  saved.indices.make({layer.routing_indices(tokens)});
  saved.weights.make({tokens, o.experts_per_token});
  const auto routing = detail::saved_routing(layer, saved);
  layer.route(x, saved.scores.make({tokens, o.num_experts}), routing, execution);
  Scratch<T> memory(execution.scratch(), rows * dim);
  const TensorView3<T> sorted(memory.data(), {1, rows, dim});
  layer.sort(x, routing, sorted, execution);
  const TensorView3<T> results = saved.results.make(sorted.shape());
  saved.experts.resize(layer.experts.size());
  layer.for_experts(routing, [&](index_t e, index_t begin, index_t end) {
    const auto n = static_cast<std::size_t>(e);
    forward(layer.experts[n], sorted.slice(1, begin, end), results.slice(1, begin, end),
            saved.experts[n], {}, execution);
  });
  TensorView3<T> shared, gate;
  if (o.dim_shared > 0) {
    shared = saved.shared.make(x.shape());
    forward(layer.shared_expert, x, shared, saved.shared_expert, {}, execution);
  }
  if (o.shared_gate) {
    gate = saved.gate.make({x.extent(0), x.extent(1), 1});
    layer.shared_expert_gate.forward(x, gate, Activation::none, {}, execution);
  }
  layer.combine(routing, results, residual, shared, gate, out, execution);
}

namespace detail {

/// Computes d_logits (tokens, num_experts), the gradient of the router's logits, from d_weights
/// (tokens, experts_per_token), the gradient of the experts' weights, and from the load-balancing
/// loss.
template <class T>
void backward_of_routing(const MixtureOfExperts<T>& layer, MixtureOfExpertsSaved<T>& saved,
                         const TensorView2<Accumulator<T>>& d_weights,
                         const TensorView2<Accumulator<T>>& d_logits) {
  using Acc = Accumulator<T>;
  const MixtureOfExpertsOptions& o = layer.options();
  const auto routing = saved_routing(layer, saved);
  const auto scores = saved.scores.view();
  const index_t tokens = scores.extent(0), experts = scores.extent(1);
  const double n = static_cast<double>(tokens);
  for (index_t t = 0; t < tokens; ++t) {
    for (index_t e = 0; e < experts; ++e) {
      const double share = static_cast<double>(routing.starts(e + 1) - routing.starts(e)) / n;
      d_logits(t, e) = static_cast<Acc>(saved.balance * static_cast<double>(experts) * share / n);
    }
    // weight = scale score / sum, or scale score.
    Acc sum = 0, dot = 0;
    for (index_t j = 0; j < o.experts_per_token; ++j) {
      sum += scores(t, routing.experts(t, j));
      dot += d_weights(t, j) * routing.weights(t, j);
    }
    const Acc scale = static_cast<Acc>(o.scale), divisor = weight_divisor(o.score, sum);
    for (index_t j = 0; j < o.experts_per_token; ++j) {
      d_logits(t, routing.experts(t, j)) +=
          o.normalize ? (scale * d_weights(t, j) - dot) / divisor : scale * d_weights(t, j);
    }
    Acc mean = 0;
    if (o.score == RouterScore::softmax) {
      for (index_t e = 0; e < experts; ++e) mean += d_logits(t, e) * scores(t, e);
    }
    for (index_t e = 0; e < experts; ++e) {
      const Acc p = scores(t, e);
      d_logits(t, e) = o.score == RouterScore::softmax ? p * (d_logits(t, e) - mean)
                                                       : p * (1 - p) * d_logits(t, e);
    }
  }
}

}  // namespace detail

/// Computes d_x (batch, seq, d_model) = its gradient + residual; adds the gradients of the
/// parameters to `gradients`, for the choice of experts that forward made.
template <class T>
void backward(const MixtureOfExperts<T>& layer, Input3<T> d_out, MixtureOfExpertsSaved<T>& saved,
              Output3<T> d_x, MixtureOfExperts<Accumulator<T>>& gradients, Input3<T> residual = {},
              const Execution& execution = {}) {
  using Acc = Accumulator<T>;
  const MixtureOfExpertsOptions& o = layer.options();
  const auto routing = detail::saved_routing(layer, saved);
  const TensorView3<const T> x = saved.x.view(), results = saved.results.view();
  const index_t seq = x.extent(1), dim = x.extent(2), tokens = routing.experts.extent(0);
  Workspace& workspace = execution.scratch();
  Scratch<T> memory(workspace, 2 * results.size());
  const TensorView3<T> d_results(memory.data(), results.shape()),
      d_sorted(memory.data() + results.size(), results.shape());
  Scratch<Acc> acc_memory(workspace, routing.weights.size() + tokens * o.num_experts + tokens);
  const TensorView2<Acc> d_weights(acc_memory.data(), routing.weights.shape());
  const TensorView2<Acc> d_logits(acc_memory.data() + d_weights.size(), {tokens, o.num_experts});
  const TensorView3<const T> shared = saved.shared.view(), gate = saved.gate.view();
  Scratch<T> shared_memory(workspace, o.dim_shared > 0 ? x.size() + tokens : 0);
  const TensorView3<T> d_shared(shared_memory.data(), x.shape());
  const TensorView3<T> d_gate(shared_memory.data() + (o.dim_shared > 0 ? x.size() : 0),
                              {x.extent(0), seq, 1});
  detail::for_rows(execution.threads(), tokens, dim, [&](index_t t) {
    const index_t b = t / seq, i = t % seq;
    for (index_t j = 0; j < o.experts_per_token; ++j) {
      const index_t row = routing.slots(t, j);
      Acc dot = 0;
      for (index_t n = 0; n < dim; ++n) {
        const Acc d = d_out(b, i, n);
        dot += d * results(0, row, n);
        d_results(0, row, n) = static_cast<T>(routing.weights(t, j) * d);
      }
      d_weights(t, j) = dot;
    }
    if (o.dim_shared == 0) return;
    const Acc s = o.shared_gate ? 1 / (1 + std::exp(-Acc{gate(b, i, 0)})) : Acc{1};
    Acc dot = 0;
    for (index_t n = 0; n < dim; ++n) {
      const Acc d = d_out(b, i, n);
      dot += d * shared(b, i, n);
      d_shared(b, i, n) = static_cast<T>(s * d);
    }
    if (o.shared_gate) d_gate(b, i, 0) = static_cast<T>(s * (1 - s) * dot);
  });
  layer.for_experts(routing, [&](index_t e, index_t begin, index_t end) {
    const auto n = static_cast<std::size_t>(e);
    backward(layer.experts[n], d_results.slice(1, begin, end), saved.experts[n],
             d_sorted.slice(1, begin, end), gradients.experts[n], {}, execution);
  });
  detail::backward_of_routing(layer, saved, d_weights, d_logits);
  TensorView3<const T> rest = residual;
  if (o.dim_shared > 0) {
    backward(layer.shared_expert, d_shared, saved.shared_expert, d_x, gradients.shared_expert, rest,
             execution);
    rest = d_x;
  }
  if (o.shared_gate) {
    linear_backward(d_gate, x, layer.shared_expert_gate.weight.view(), d_x,
                    gradients.shared_expert_gate.weight.view(), {}, rest, execution);
    rest = d_x;
  }
  const auto through_router = [&](const TensorView3<const T>& d) {
    linear_backward(d, x, layer.router.weight.view(), d_x, gradients.router.weight.view(),
                    gradients.router.bias.view(), rest, execution);
  };
  const Shape<3> logits_shape{x.extent(0), seq, o.num_experts};
  if constexpr (std::same_as<T, Acc>) {
    through_router({d_logits.data(), logits_shape});
  } else {
    Scratch<T> rounded_memory(workspace, d_logits.size());
    const TensorView3<T> rounded(rounded_memory.data(), logits_shape);
    convert(TensorView3<const Acc>(d_logits.data(), logits_shape), rounded, execution);
    through_router(rounded);
  }
  detail::for_rows(execution.threads(), tokens, dim, [&](index_t t) {
    T* to = d_x.at_index({t / seq, t % seq, 0});
    for (index_t n = 0; n < dim; ++n) {
      Acc sum = to[n * d_x.stride(2)];
      for (index_t j = 0; j < o.experts_per_token; ++j) sum += d_sorted(0, routing.slots(t, j), n);
      to[n * d_x.stride(2)] = static_cast<T>(sum);
    }
  });
}

ATTN_NAMESPACE_END
