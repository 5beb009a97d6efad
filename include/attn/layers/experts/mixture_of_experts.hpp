// MixtureOfExperts: a feed-forward of which each token uses a few experts.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <span>
#include <string>
#include <vector>

#include "attn/exec/row_ranges.hpp"
#include "attn/layers/experts/routing.hpp"
#include "attn/layers/feed_forward.hpp"

ATTN_NAMESPACE_BEGIN

/// x (batch, seq, d_model) to the same shape: the results of each token's experts, which are
/// feed-forwards, weighted by the router, plus the result of the shared expert. Tokens are sorted
/// by expert: the weights of an expert are read once for all its tokens, those of an expert without
/// tokens not at all. A token's result does not depend on the other tokens or the number of
/// threads. Source: Shazeer et al., "Outrageously Large Neural Networks" (2017), section 2.
template <class T>
class MixtureOfExperts {
 public:
  MixtureOfExperts() = default;
  /// Throws ValueError for options that contradict each other.
  MixtureOfExperts(index_t d_model, Activation activation, const MixtureOfExpertsOptions& options)
      : options_(options) {
    detail::check_experts(options);
    router = Linear<T>(d_model, options.num_experts, options.bias);
    if (options.score == RouterScore::sigmoid) {
      correction_bias = Tensor1<T>({options.num_experts});
    }
    const auto expert = [&](index_t dim) {
      return FeedForward<T>({.d_model = d_model,
                             .dim_feedforward = dim,
                             .activation = activation,
                             .gated = options.gated,
                             .bias = options.bias,
                             .glu_limit = options.glu_limit,
                             .glu_offset = options.glu_offset});
    };
    experts.reserve(static_cast<std::size_t>(options.num_experts));
    for (index_t e = 0; e < options.num_experts; ++e) {
      experts.push_back(expert(options.dim_feedforward));
    }
    if (options.dim_shared > 0) shared_expert = expert(options.dim_shared);
    if (options.shared_gate) shared_expert_gate = Linear<T>(d_model, 1, false);
  }

  const MixtureOfExpertsOptions& options() const { return options_; }
  /// Whether there are experts.
  explicit operator bool() const { return !experts.empty(); }

  /// Writes the result + residual to `out` (batch, seq, d_model), which may be the residual, not x.
  /// Throws ShapeError.
  template <TensorLike X, TensorLike Out>
  void forward(const X& x, Out&& out, TensorView3<const T> residual = {},
               const Execution& execution = {}) const {
    ATTN_ASSERT_INPUT(X, T, 3, "MixtureOfExperts: x", "(batch, seq, d_model)", "the layer");
    ATTN_ASSERT_OUTPUT(Out, T, 3, "MixtureOfExperts: out", "(batch, seq, d_model)", "the layer");
    const auto from = detail::view_as<const T, 3>(x);
    const auto to = detail::view_as<T, 3>(out);
    check_shape("MixtureOfExperts", "out", from.shape(), to.shape());
    if (residual) check_shape("MixtureOfExperts", "residual", from.shape(), residual.shape());
    const index_t tokens = from.extent(0) * from.extent(1), dim = from.extent(2);
    const index_t rows = tokens * options_.experts_per_token;
    Workspace& workspace = execution.scratch();
    Scratch<Acc> scores(workspace, tokens * options_.num_experts);
    Scratch<index_t> indices(workspace, routing_indices(tokens));
    Scratch<Acc> weights(workspace, rows);
    const auto routing = routing_in(tokens, indices.data(), weights.data());
    route(from, {scores.data(), {tokens, options_.num_experts}}, routing, execution);
    Scratch<T> memory(workspace, 2 * rows * dim);
    const TensorView3<T> sorted(memory.data(), {1, rows, dim}),
        results(memory.data() + rows * dim, {1, rows, dim});
    sort(from, routing, sorted, execution);
    for_experts(routing, [&](index_t e, index_t begin, index_t end) {
      experts[static_cast<std::size_t>(e)].forward(sorted.slice(1, begin, end),
                                                   results.slice(1, begin, end), {}, execution);
    });
    Scratch<T> shared_memory(workspace, options_.dim_shared > 0 ? from.size() + tokens : 0);
    TensorView3<T> shared, gate;
    if (options_.dim_shared > 0) {
      shared = {shared_memory.data(), from.shape()};
      shared_expert.forward(from, shared, {}, execution);
    }
    if (options_.shared_gate) {
      gate = {shared_memory.data() + from.size(), {from.extent(0), from.extent(1), 1}};
      shared_expert_gate.forward(from, gate, Activation::none, {}, execution);
    }
    combine(routing, results, residual, shared, gate, to, execution);
  }

  /// See Linear::pack(). The router and the gate are not packed.
  void pack(MatmulPrecision precision = MatmulPrecision::highest) {
    for (FeedForward<T>& expert : experts) expert.pack(precision);
    if (options_.dim_shared > 0) shared_expert.pack(precision);
  }

  /// router., correction_bias, experts.0., experts.1., .., shared_expert., shared_expert_gate.
  void visit_parameters(const ParameterVisitor<T>& f) { visit(*this, f); }
  void visit_parameters(const ParameterVisitor<const T>& f) const { visit(*this, f); }

  using Acc = Accumulator<T>;

  // Steps of forward(), which training shares.

  /// Number of indices of a Routing.
  index_t routing_indices(index_t tokens) const {
    return 2 * tokens * options_.experts_per_token + options_.num_experts + 1;
  }
  detail::Routing<Acc> routing_in(index_t tokens, index_t* indices, Acc* weights) const {
    const Shape<2> chosen{tokens, options_.experts_per_token};
    const index_t rows = size_of(chosen);
    return {.experts = {indices, chosen},
            .weights = {weights, chosen},
            .slots = {indices + rows, chosen},
            .starts = {indices + 2 * rows, {options_.num_experts + 1}}};
  }

  /// Writes the scores (tokens, num_experts) and the routing of each token.
  void route(const TensorView3<const T>& x, const TensorView2<Acc>& scores,
             const detail::Routing<Acc>& routing, const Execution& execution) const {
    const index_t tokens = scores.extent(0), count = options_.num_experts;
    const TensorView3<Acc> logits(scores.data(), {x.extent(0), x.extent(1), count});
    router.forward(x, logits, Activation::none, {}, execution);
    Scratch<Acc> choice(execution.scratch(), count + options_.num_groups);
    Scratch<index_t> order(execution.scratch(), count);
    for (index_t t = 0; t < tokens; ++t) {
      const std::span<Acc> row(&scores(t, 0), static_cast<std::size_t>(count));
      detail::score_experts(options_.score, row);
      for (index_t e = 0; e < count; ++e) {
        choice.data()[e] =
            row[static_cast<std::size_t>(e)] + (correction_bias ? Acc{correction_bias(e)} : Acc{0});
      }
      index_t* chosen = &routing.experts(t, 0);
      detail::choose_experts<Acc>(
          options_, {choice.data(), row.size()}, {order.data(), row.size()},
          {choice.data() + count, static_cast<std::size_t>(options_.num_groups)}, chosen);
      detail::weigh_experts<Acc>(options_, row, chosen, &routing.weights(t, 0));
    }
    detail::order_by_expert(routing);
  }

  /// sorted (1, rows, d_model): x by expert.
  void sort(const TensorView3<const T>& x, const detail::Routing<Acc>& routing,
            const TensorView3<T>& sorted, const Execution& execution) const {
    const index_t seq = x.extent(1), dim = x.extent(2);
    detail::for_rows(execution.threads(), routing.experts.extent(0), dim, [&](index_t t) {
      const T* from = x.at_index({t / seq, t % seq, 0});
      for (index_t j = 0; j < routing.experts.extent(1); ++j) {
        T* to = &sorted(0, routing.slots(t, j), 0);
        for (index_t i = 0; i < dim; ++i) to[i] = from[i * x.stride(2)];
      }
    });
  }

  /// Calls f(expert, first row, end of rows) for experts that have rows.
  template <class F>
  static void for_experts(const detail::Routing<Acc>& routing, F f) {
    for (index_t e = 0; e + 1 < routing.starts.extent(0); ++e) {
      if (routing.starts(e) < routing.starts(e + 1)) {
        f(e, routing.starts(e), routing.starts(e + 1));
      }
    }
  }

  /// out = residual + each token's results by their weights + sigmoid(gate) shared.
  void combine(const detail::Routing<Acc>& routing, const TensorView3<const T>& results,
               const TensorView3<const T>& residual, const TensorView3<const T>& shared,
               const TensorView3<const T>& gate, const TensorView3<T>& out,
               const Execution& execution) const {
    const index_t seq = out.extent(1), dim = out.extent(2);
    detail::for_rows(execution.threads(), routing.experts.extent(0), dim, [&](index_t t) {
      const index_t b = t / seq, i = t % seq;
      const Acc factor = gate ? 1 / (1 + std::exp(-Acc{gate(b, i, 0)})) : Acc{1};
      T* to = out.at_index({b, i, 0});
      for (index_t n = 0; n < dim; ++n) {
        Acc sum = 0;
        for (index_t j = 0; j < routing.experts.extent(1); ++j) {
          sum += routing.weights(t, j) * results(0, routing.slots(t, j), n);
        }
        if (shared) sum += factor * shared(b, i, n);
        if (residual) sum += residual(b, i, n);
        to[n * out.stride(2)] = static_cast<T>(sum);
      }
    });
  }

  Linear<T> router;
  Tensor1<T> correction_bias;  ///< (num_experts), with RouterScore::sigmoid; has no gradient
  std::vector<FeedForward<T>> experts;
  FeedForward<T> shared_expert;  ///< without weights if there is none
  Linear<T> shared_expert_gate;

 private:
  template <class Self, class Visitor>
  static void visit(Self& self, const Visitor& f) {
    if (!self) return;
    // Not as weights of Linear: quantize() does not compress the router and the gate.
    f.under("router.").visit("weight", self.router.weight);
    f.under("router.").visit("bias", self.router.bias);
    f.visit("correction_bias", self.correction_bias);
    for (std::size_t e = 0; e < self.experts.size(); ++e) {
      self.experts[e].visit_parameters(f.under("experts." + std::to_string(e) + "."));
    }
    if (self.options_.dim_shared > 0) {
      self.shared_expert.visit_parameters(f.under("shared_expert."));
    }
    if (self.options_.shared_gate) {
      f.under("shared_expert_gate.").visit("weight", self.shared_expert_gate.weight);
    }
  }

  MixtureOfExpertsOptions options_;
};

ATTN_NAMESPACE_END
