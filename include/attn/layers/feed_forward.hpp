// feed_forward: two linear maps with an activation between.
#pragma once

#include "attn/layers/linear.hpp"

ATTN_NAMESPACE_BEGIN

/// PyTorch's linear1, activation, linear2 of a Transformer layer: (.., d_model) to (.., dim_feedforward)
/// and back. Source: "Attention Is All You Need" (2017), equation 2.
template <class T>
class FeedForward {
 public:
  FeedForward() = default;
  FeedForward(index_t d_model, index_t dim_feedforward, Activation between = Activation::relu,
              bool with_bias = true)
      : linear1(d_model, dim_feedforward, with_bias),
        linear2(dim_feedforward, d_model, with_bias),
        activation(between) {}

  template <TensorLike X>
  Tensor<T, rank_v<X>> operator()(const X& x, const Execution& execution = {}) const {
    auto out = Tensor<T, rank_v<X>>::uninitialized(const_view(x).shape());
    forward(x, out, {}, execution);
    return out;
  }

  /// out = linear2(activation(linear1(x))) + residual. Throws ShapeError.
  template <TensorLike X, TensorLike Out>
  void forward(const X& x, Out&& out, TensorView<const T, rank_v<X>> residual = {},
               const Execution& execution = {}) const {
    auto shape = const_view(x).shape();
    shape.back() = linear1.weight.extent(0);
    Scratch<T> hidden(execution.scratch(), size_of(shape));
    const TensorView<T, rank_v<X>> hidden_view(hidden.data(), shape);
    linear1.forward(x, hidden_view, activation, {}, execution);
    linear2.forward(hidden_view, out, Activation::none, residual, execution);
  }

  /// See Linear::pack().
  void pack() {
    linear1.pack();
    linear2.pack();
  }

  template <class F>
  void visit_parameters(F&& f) {
    visit_part("linear1.", linear1, f);
    visit_part("linear2.", linear2, f);
  }
  template <class F>
  void visit_parameters(F&& f) const {
    visit_part("linear1.", linear1, f);
    visit_part("linear2.", linear2, f);
  }

  Linear<T> linear1, linear2;
  Activation activation = Activation::relu;
};

ATTN_NAMESPACE_END
