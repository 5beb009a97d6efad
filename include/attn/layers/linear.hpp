// linear: x W^T + b, as a function and as a layer that holds its weight.
#pragma once

#include "attn/kernels/gemm.hpp"

ATTN_NAMESPACE_BEGIN

/// out = activation(x weight^T + bias) + residual.
/// Shapes: x (.., in), weight (out, in) as PyTorch stores it, bias (out) or empty, out (.., out). A weight
/// (in, out) is given as weight.transpose(0, 1). Throws ShapeError.
template <TensorLike X, TensorLike W, TensorLike Out>
void linear(const X& x, const W& weight, TensorView1<const scalar_t<X>> bias, Out&& out,
            Activation activation = Activation::none,
            TensorView<const scalar_t<X>, rank_v<X>> residual = {},
            const Execution& execution = {}) {
  using T = scalar_t<X>;
  constexpr int kLast = rank_v<X> - 1;
  const auto xv = const_view(x);
  const TensorView2<const T> w = const_view(weight);
  const TensorView<T, rank_v<X>> ov = view_of(out);
  auto expected = xv.shape();
  if (w.extent(1) != xv.extent(kLast)) {
    throw ShapeError(message(
        "linear", "weight", "have shape (out, in) = (.., " + std::to_string(xv.extent(kLast)) + ")",
        to_string(w.shape())));
  }
  expected[std::size_t{kLast}] = w.extent(0);
  check_shape("linear", "out", expected, ov.shape());
  Epilogue<T> epilogue{.bias = bias, .activation = activation};
  if (residual) {
    epilogue.beta = T{1};
    epilogue.residual = residual.rows();
  }
  gemm(xv.rows(), w.transpose(0, 1), ov.rows(), epilogue, execution);
}

template <TensorLike X, TensorLike W>
auto linear(const X& x, const W& weight, TensorView1<const scalar_t<X>> bias = {},
            Activation activation = Activation::none, const Execution& execution = {}) {
  auto shape = const_view(x).shape();
  shape.back() = const_view(weight).extent(0);
  auto out = Tensor<scalar_t<X>, rank_v<X>>::uninitialized(shape);
  linear(x, weight, bias, out, activation, {}, execution);
  return out;
}

/// PyTorch's nn.Linear: parameters weight (out, in) and bias (out), zero until loaded.
template <class T>
class Linear {
 public:
  Linear() = default;
  Linear(index_t in_features, index_t out_features, bool with_bias = true)
      : weight({out_features, in_features}) {
    if (with_bias) bias = Tensor1<T>({out_features});
  }

  template <TensorLike X>
  Tensor<T, rank_v<X>> operator()(const X& x, Activation activation = Activation::none,
                                  const Execution& execution = {}) const {
    return linear(x, weight, bias.view(), activation, execution);
  }

  template <TensorLike X, TensorLike Out>
  void forward(const X& x, Out&& out, Activation activation = Activation::none,
               TensorView<const T, rank_v<X>> residual = {},
               const Execution& execution = {}) const {
    linear(x, weight, bias.view(), out, activation, residual, execution);
  }

  template <class F>
  void visit_parameters(F&& f) {
    f("weight", weight.view());
    if (bias) f("bias", bias.view());
  }
  template <class F>
  void visit_parameters(F&& f) const {
    f("weight", weight.view());
    if (bias) f("bias", bias.view());
  }

  Tensor2<T> weight;
  Tensor1<T> bias;
};

/// Visits the parameters of a part under its name: "self_attn." + "in_proj_weight".
template <class Module, class F>
void visit_part(std::string_view prefix, Module& part, F&& f) {
  part.visit_parameters(
      [&](std::string_view name, auto view) { f(std::string(prefix).append(name), view); });
}

ATTN_NAMESPACE_END
