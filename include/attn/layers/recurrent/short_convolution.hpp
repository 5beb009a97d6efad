// ShortConvolution: a gated causal convolution over a few tokens, as in LFM2.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attn/layers/linear.hpp"
#include "attn/layers/recurrent/causal_convolution.hpp"
#include "attn/layers/recurrent/recurrent_layer.hpp"

ATTN_NAMESPACE_BEGIN

struct ShortConvolutionOptions {
  index_t d_model = 0;  ///< features of a token, each a channel
  index_t width = 3;    ///< tokens that a result depends on, at least 2
  bool bias = false;    ///< of the linear layers and the convolution
};

/// Maps x (batch, seq, d_model) to the same shape: in_proj(x) has three parts b, c and u of d_model
/// features each, and the result is out_proj(c convolution(b u)). Each channel of the convolution
/// is a weighted sum over a token and the width - 1 tokens before it. A cache holds these rows of b
/// u. Source: Liquid AI, "LFM2 technical report" (2025).
template <class T>
class ShortConvolution : public detail::RecurrentLayer<ShortConvolution<T>, T> {
 public:
  ShortConvolution() = default;
  /// Parameters are zero until loaded. Throws ValueError for an option out of range.
  explicit ShortConvolution(const ShortConvolutionOptions& options) : options_(options) {
    const auto check = [](std::string_view argument, index_t found, index_t lowest) {
      if (found >= lowest) return;
      throw ValueError(message("ShortConvolution", argument,
                               "be at least " + std::to_string(lowest), std::to_string(found)));
    };
    check("d_model", options.d_model, 1);
    check("width", options.width, 2);
    in_proj = Linear<T>(options.d_model, 3 * options.d_model, options.bias);
    convolution = {options.d_model, options.width, options.bias};
    out_proj = Linear<T>(options.d_model, options.d_model, options.bias);
  }

  const ShortConvolutionOptions& options() const { return options_; }
  /// Whether it has parameters.
  explicit operator bool() const { return options_.d_model > 0; }
  /// Numbers of the state of a row: width - 1 rows of the convolution.
  index_t state_size() const { return convolution.state_size(); }

  /// Writes the result + call.residual to `out`, which may be the residual, not x. With a cache, x
  /// holds the tokens after those in the cache; call.row_caches give the bits of one call per row.
  /// A call without tokens does nothing. Throws ShapeError or ValueError, and then leaves the
  /// caches unchanged.
  template <TensorLike X, TensorLike Out>
  void forward(const X& x, Out&& out, const MultiHeadAttentionCall<T>& call = {},
               const Execution& execution = {}) const {
    ATTN_ASSERT_INPUT(X, T, 3, "ShortConvolution: x", "(batch, seq, d_model)", "the layer");
    ATTN_ASSERT_OUTPUT(Out, T, 3, "ShortConvolution: out", "(batch, seq, d_model)", "the layer");
    const auto from = detail::view_as<const T, 3>(x);
    const auto to = detail::view_as<T, 3>(out);
    detail::check_recurrent_call("ShortConvolution", options_.d_model, state_size(), from.shape(),
                                 to.shape(), call);
    if (from.size() == 0) return;
    const index_t batch = from.extent(0), seq = from.extent(1), dim = options_.d_model;
    Workspace& workspace = execution.scratch();
    Scratch<T> memory(workspace, batch * seq * 3 * dim), gated_memory(workspace, batch * seq * dim);
    const TensorView3<T> projected(memory.data(), {batch, seq, 3 * dim}),
        gated(gated_memory.data(), from.shape());
    in_proj.forward(from, projected, Activation::none, {}, execution);
    detail::CallGuard guard(call);
    const detail::RowStates<T> states(call, seq);
    states.for_runs(seq, [&](index_t begin, index_t end, const detail::RowStates<T>& of_run) {
      run(projected.slice(1, begin, end), of_run, gated.slice(1, begin, end), execution,
          [](const auto&, const auto&) {});
    });
    out_proj.forward(gated, to, Activation::none, call.residual, execution);
    guard.commit();
  }

  /// See Linear::pack().
  void pack(MatmulPrecision precision = MatmulPrecision::highest) {
    in_proj.pack(precision);
    out_proj.pack(precision);
  }

  /// in_proj., conv.weight and conv.bias, out_proj.
  void visit_parameters(const ParameterVisitor<T>& f) { visit(*this, f); }
  void visit_parameters(const ParameterVisitor<const T>& f) const { visit(*this, f); }

  Linear<T> in_proj;  ///< rows of b, of c, then of u
  detail::CausalConvolution<T> convolution;
  Linear<T> out_proj;

  /// From projected (batch, seq, 3 d_model) computes the input of out_proj. Calls
  /// then(padded, convolved) with the convolution's input and result.
  template <class F>
  void run(const TensorView3<const T>& projected, const detail::RowStates<T>& states,
           const TensorView3<T>& gated, const Execution& execution, const F& then) const {
    using Acc = Accumulator<T>;
    const index_t batch = projected.extent(0), seq = projected.extent(1), dim = options_.d_model,
                  before = options_.width - 1;
    Workspace& workspace = execution.scratch();
    const Shape<3> padded_shape = convolution.padded_shape(batch, seq), shape{batch, seq, dim};
    Scratch<Acc> padded_memory(workspace, size_of(padded_shape));
    Scratch<Acc> convolved_memory(workspace, size_of(shape));
    const TensorView3<Acc> padded(padded_memory.data(), padded_shape),
        convolved(convolved_memory.data(), shape);
    convolution.read_state(states, padded);
    for_tokens(projected, execution, [&](index_t b, index_t t, const T* of_token) {
      Acc* to = padded.at_index({b, before + t, 0});
      for (index_t i = 0; i < dim; ++i) to[i] = Acc{of_token[i]} * Acc{of_token[2 * dim + i]};
    });
    convolution.write_state(padded, states);
    convolution.forward(padded, convolved, execution);
    for_tokens(projected, execution, [&](index_t b, index_t t, const T* of_token) {
      const Acc* sums = convolved.at_index({b, t, 0});
      T* to = gated.at_index({b, t, 0});
      for (index_t i = 0; i < dim; ++i) to[i] = static_cast<T>(Acc{of_token[dim + i]} * sums[i]);
    });
    then(padded, convolved);
  }

  /// Calls f(b, t, the token's b, c and u) for each token.
  template <class F>
  void for_tokens(const TensorView3<const T>& projected, const Execution& execution,
                  const F& f) const {
    const index_t seq = projected.extent(1);
    detail::for_rows(execution.threads(), projected.extent(0) * seq, options_.d_model,
                     [&](index_t row) {
                       f(row / seq, row % seq, projected.at_index({row / seq, row % seq, 0}));
                     });
  }

 private:
  template <class Self, class Visitor>
  static void visit(Self& self, const Visitor& f) {
    if (!self) return;
    self.in_proj.visit_parameters(f.under("in_proj."));
    detail::CausalConvolution<T>::visit(self.convolution, f.under("conv."));
    self.out_proj.visit_parameters(f.under("out_proj."));
  }

  ShortConvolutionOptions options_;
};

ATTN_NAMESPACE_END
