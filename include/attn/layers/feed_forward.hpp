// feed_forward, FeedForward: two linear maps with an activation, plain or gated.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attn/layers/linear.hpp"

ATTN_NAMESPACE_BEGIN

/// out = activation(x weight1^T + bias1) weight2^T + bias2 + residual. For gated forms use
/// linear(), glu(), linear(), or FeedForward. Shapes: x (.., d_model), weight1 (dim_feedforward,
/// d_model), weight2 (d_out, dim_feedforward), bias1 (dim_feedforward) and bias2 (d_out) or empty,
/// out and residual (.., d_out); out may be the residual, not x. Throws ShapeError. Source:
/// "Attention Is All You Need" (2017), equation 2.
template <TensorLike X, TensorLike W1, TensorLike W2, TensorLike Out,
          TensorLike B1 = TensorView1<const detail::real_t<X>>,
          TensorLike B2 = TensorView1<const detail::real_t<X>>>
void feed_forward(const X& x, const W1& weight1, const B1& bias1, const W2& weight2,
                  const B2& bias2, Out&& out, Activation activation = Activation::relu,
                  TensorView<const detail::real_t<X>, rank_v<X>> residual = {},
                  const Execution& execution = {}) {
  using T = detail::real_t<X>;
  ATTN_ASSERT_REAL(X, "feed_forward: x");
  ATTN_ASSERT_INPUT(W1, scalar_t<X>, 2, "feed_forward: weight1", "(dim_feedforward, d_model)", "x");
  ATTN_ASSERT_INPUT(W2, scalar_t<X>, 2, "feed_forward: weight2", "(d_out, dim_feedforward)", "x");
  ATTN_ASSERT_INPUT(B1, T, 1, "feed_forward: bias1", "(dim_feedforward)", "x");
  ATTN_ASSERT_INPUT(B2, T, 1, "feed_forward: bias2", "(d_out)", "x");
  ATTN_ASSERT_OUTPUT_LIKE(Out, X, "feed_forward: out", "x");
  const auto from = detail::view_as<const T, rank_v<X>>(x);
  const auto to = detail::view_as<T, rank_v<X>>(out);
  auto shape = from.shape();
  const auto w1 = detail::view_as<const T, 2>(weight1), w2 = detail::view_as<const T, 2>(weight2);
  const Shape<2> hidden_in{w1.extent(0), shape.back()}, out_hidden{w2.extent(0), w1.extent(0)};
  check_shape("feed_forward", "weight1", "(dim_feedforward, d_model)", hidden_in, w1.shape());
  check_shape("feed_forward", "weight2", "(d_out, dim_feedforward)", out_hidden, w2.shape());
  shape.back() = w1.extent(0);
  Scratch<T> memory(execution.scratch(), size_of(shape));
  const TensorView<T, rank_v<X>> hidden(memory.data(), shape);
  linear(from, w1, detail::view_as<const T, 1>(bias1), hidden, activation, {}, execution);
  linear(hidden, w2, detail::view_as<const T, 1>(bias2), to, Activation::none, residual, execution);
}

/// Returns the result as a new tensor.
template <TensorLike X, TensorLike W1, TensorLike W2,
          TensorLike B1 = TensorView1<const detail::real_t<X>>,
          TensorLike B2 = TensorView1<const detail::real_t<X>>>
auto feed_forward(const X& x, const W1& weight1, const B1& bias1, const W2& weight2,
                  const B2& bias2, Activation activation = Activation::relu,
                  const Execution& execution = {}) {
  using T = detail::real_t<X>;
  ATTN_ASSERT_REAL(X, "feed_forward: x");
  ATTN_ASSERT_INPUT(W1, scalar_t<X>, 2, "feed_forward: weight1", "(dim_feedforward, d_model)", "x");
  ATTN_ASSERT_INPUT(W2, scalar_t<X>, 2, "feed_forward: weight2", "(d_out, dim_feedforward)", "x");
  ATTN_ASSERT_INPUT(B1, T, 1, "feed_forward: bias1", "(dim_feedforward)", "x");
  ATTN_ASSERT_INPUT(B2, T, 1, "feed_forward: bias2", "(d_out)", "x");
  const auto from = detail::view_as<const T, rank_v<X>>(x);
  const auto w1 = detail::view_as<const T, 2>(weight1), w2 = detail::view_as<const T, 2>(weight2);
  auto shape = from.shape();
  shape.back() = w2.extent(0);
  auto out = Tensor<T, rank_v<X>>::uninitialized(shape);
  feed_forward(from, w1, detail::view_as<const T, 1>(bias1), w2, detail::view_as<const T, 1>(bias2),
               out, activation, {}, execution);
  return out;
}

struct FeedForwardOptions {
  index_t d_model = 0;                       ///< features of input and output
  index_t dim_feedforward = 2048;            ///< hidden features
  Activation activation = Activation::relu;  ///< between the linear layers; silu is swish
  bool gated = false;  ///< hidden = activation(gate(x)) up(x): SwiGLU with silu, GeGLU with gelu
  bool bias = true;    ///< of the linear layers
  /// Gated: names gate and up as one parameter, gate_up_proj, as in Phi-3.
  bool joint_gate = false;
  double glu_limit = std::numeric_limits<double>::infinity();  ///< gated: see GatedUnit
  double glu_offset = 0;                                       ///< gated: see GatedUnit
};

/// (.., d_model) to (.., dim_feedforward) and back. Sources: "Attention Is All You Need" (2017),
/// equation 2; Shazeer, "GLU Variants Improve Transformer" (2020), equation 6.
template <class T>
class FeedForward {
 public:
  FeedForward() = default;
  explicit FeedForward(const FeedForwardOptions& o)
      : linear1(o.d_model, o.gated ? 2 * o.dim_feedforward : o.dim_feedforward, o.bias),
        linear2(o.dim_feedforward, o.d_model, o.bias),
        activation(o.activation),
        gated(o.gated),
        joint_gate(o.joint_gate),
        glu_limit(o.glu_limit),
        glu_offset(o.glu_offset) {}

  template <TensorLike X>
  Tensor<T, rank_v<X>> operator()(const X& x, const Execution& execution = {}) const {
    ATTN_ASSERT_ELEMENTS(X, T, "FeedForward: x", "the layer");
    const auto from = detail::view_as<const T, rank_v<X>>(x);
    auto out = Tensor<T, rank_v<X>>::uninitialized(from.shape());
    forward(from, out, {}, execution);
    return out;
  }

  /// out = linear2(hidden) + residual, where hidden is activation(linear1(x)), or the gated unit of
  /// linear1(x). out may be the residual, not x. Throws ShapeError.
  template <TensorLike X, TensorLike Out>
  void forward(const X& x, Out&& out, TensorView<const T, rank_v<X>> residual = {},
               const Execution& execution = {}) const {
    constexpr int kLast = rank_v<X> - 1;
    ATTN_ASSERT_ELEMENTS(X, T, "FeedForward: x", "the layer");
    ATTN_ASSERT_OUTPUT_LIKE(Out, X, "FeedForward: out", "x");
    const auto from = detail::view_as<const T, rank_v<X>>(x);
    const auto to = detail::view_as<T, rank_v<X>>(out);
    auto shape = from.shape();
    shape.back() = linear1.out_features();
    Scratch<T> memory(execution.scratch(), size_of(shape));
    TensorView<T, rank_v<X>> hidden(memory.data(), shape);
    if (gated) {
      linear1.forward(from, hidden, Activation::none, {}, execution);
      const index_t half = shape.back() / 2;
      const auto gate = hidden.slice(kLast, 0, half), up = hidden.slice(kLast, half, 2 * half);
      glu(gated_unit(), gate, up, gate, execution);
      hidden = gate;
    } else {
      linear1.forward(from, hidden, activation, {}, execution);
    }
    linear2.forward(hidden, to, Activation::none, residual, execution);
  }

  /// See Linear::pack().
  void pack(MatmulPrecision precision = MatmulPrecision::highest) {
    linear1.pack(precision);
    linear2.pack(precision);
  }

  /// Plain: linear1 and linear2 as in PyTorch. Gated: gate_proj, up_proj and down_proj as in Llama
  /// checkpoints, or gate_up_proj and down_proj.
  void visit_parameters(const ParameterVisitor<T>& f) { visit(*this, f); }
  void visit_parameters(const ParameterVisitor<const T>& f) const { visit(*this, f); }

  Linear<T> linear1;  ///< gated: the rows of the gate's weight, then those of up's
  Linear<T> linear2;
  Activation activation = Activation::relu;
  bool gated = false;
  bool joint_gate = false;
  double glu_limit = std::numeric_limits<double>::infinity(), glu_offset = 0;

  GatedUnit gated_unit() const { return {activation, glu_limit, glu_offset}; }

 private:
  template <class Self, class Visitor>
  static void visit(Self& self, const Visitor& f) {
    if (!self.gated) {
      self.linear1.visit_parameters(f.under("linear1."));
      self.linear2.visit_parameters(f.under("linear2."));
      return;
    }
    if (self.joint_gate) {
      self.linear1.visit_parameters(f.under("gate_up_proj."));
    } else {
      self.linear1.visit_parts(f, {"gate_proj.", "up_proj."});
    }
    self.linear2.visit_parameters(f.under("down_proj."));
  }
};

ATTN_NAMESPACE_END
