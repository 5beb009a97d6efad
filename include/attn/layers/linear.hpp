// linear: x W^T + b, as a function and as a layer that holds its weight.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attn/kernels/gemm.hpp"
#include "attn/layers/parameter_version.hpp"
#include "attn/layers/parameter_visitor.hpp"

ATTN_NAMESPACE_BEGIN

namespace detail {

/// linear() by `weight` (out, in), or by `packed` if that is not nullptr.
template <class T, int Rank>
void linear_rows(const TensorView<const T, Rank>& x, const TensorView2<const T>& weight,
                 const PackedWeights<T>* packed, TensorView1<const T> bias,
                 const TensorView<T, Rank>& out, Activation activation,
                 const TensorView<const T, Rank>& residual, const Execution& execution) {
  const Shape<2> out_in = packed != nullptr ? Shape<2>{packed->n(), packed->k()} : weight.shape();
  auto expected = x.shape();
  check_shape("linear", "weight", "(out, in)", Shape<2>{out_in[0], expected.back()}, out_in);
  expected.back() = out_in[0];
  check_shape("linear", "out", expected, out.shape());
  if (bias && (bias.extent(0) != out_in[0] || !bias.is_contiguous())) {
    throw_shape("linear", "bias",
                "be contiguous with shape (out) = (" + std::to_string(out_in[0]) + ")",
                bias.shape());
  }
  if (residual) check_shape("linear", "residual", expected, residual.shape());
  each_joined(
      [&](const auto& in, const auto& to, const auto& added) {
        Epilogue<T> epilogue{.bias = bias, .activation = activation};
        if (residual) {
          epilogue.beta = T{1};
          epilogue.residual = added.rows();
        }
        if (packed != nullptr) {
          gemm(in.rows(), *packed, to.rows(), epilogue, execution);
        } else {
          gemm(in.rows(), weight.transpose(0, 1), to.rows(), epilogue, execution);
        }
      },
      x, out, residual ? residual : TensorView<const T, Rank>(out));
}

}  // namespace detail

/// out = activation(x weight^T + bias) + residual.
/// Shapes: x (.., in), weight (out, in) as PyTorch stores it, bias (out) or empty, out and residual (.., out), of which
/// leading axes may have any strides. A weight (in, out) is given as weight.transpose(0, 1). Throws ShapeError.
template <TensorLike X, TensorLike W, TensorLike Out>
void linear(const X& x, const W& weight, TensorView1<const scalar_t<X>> bias, Out&& out,
            Activation activation = Activation::none, decltype(const_view(x)) residual = {},
            const Execution& execution = {}) {
  using T = scalar_t<X>;
  detail::linear_rows<T, rank_v<X>>(const_view(x), const_view(weight), nullptr, bias, view_of(out),
                                    activation, residual, execution);
}

/// The same with a weight packed before: PackedWeights(weight.transpose(0, 1)).
template <TensorLike X, TensorLike Out>
void linear(const X& x, const PackedWeights<scalar_t<X>>& weight,
            TensorView1<const scalar_t<X>> bias, Out&& out,
            Activation activation = Activation::none, decltype(const_view(x)) residual = {},
            const Execution& execution = {}) {
  using T = scalar_t<X>;
  detail::linear_rows<T, rank_v<X>>(const_view(x), {}, &weight, bias, view_of(out), activation,
                                    residual, execution);
}

/// The same into a new tensor.
template <TensorLike X, TensorLike W>
auto linear(const X& x, const W& weight, TensorView1<const scalar_t<X>> bias = {},
            Activation activation = Activation::none, const Execution& execution = {}) {
  auto shape = const_view(x).shape();
  shape.back() = const_view(weight).extent(0);
  auto out = Tensor<scalar_t<X>, rank_v<X>>::uninitialized(shape);
  linear(x, weight, bias, out, activation, {}, execution);
  return out;
}

/// PyTorch's nn.Linear: parameters weight (out, in) and bias (out), zero until loaded. After pack() calls use
/// a copy of the weight laid out for the kernels, instead of laying it out in each. Showing writable parameters, as
/// load_state_dict() does, makes the copy stale: it is not used until pack() makes a new one. Whoever writes `weight`
/// directly calls touch() or pack() afterwards.
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
    auto shape = const_view(x).shape();
    shape.back() = weight.extent(0);
    auto out = Tensor<T, rank_v<X>>::uninitialized(shape);
    forward(x, out, activation, {}, execution);
    return out;
  }

  template <TensorLike X, TensorLike Out>
  void forward(const X& x, Out&& out, Activation activation = Activation::none,
               decltype(const_view(x)) residual = {}, const Execution& execution = {}) const {
    check_features("Linear", const_view(x).shape(), weight.extent(1));
    if (const PackedWeights<T>* packed = packed_.find(version_, execution)) {
      linear(x, *packed, bias.view(), out, activation, residual, execution);
    } else {
      linear(x, weight, bias.view(), out, activation, residual, execution);
    }
  }

  void pack() { packed_ = {weight, version_}; }

  /// `weight` was written, or is about to be: the packed copy is stale.
  void touch() { version_.touch(); }

  void visit_parameters(const ParameterVisitor<T>& f) {
    touch();
    f("weight", weight.view());
    if (bias) f("bias", bias.view());
  }
  void visit_parameters(const ParameterVisitor<const T>& f) const {
    f("weight", weight.view());
    if (bias) f("bias", bias.view());
  }

  Tensor2<T> weight;
  Tensor1<T> bias;

 private:
  detail::ParameterVersion version_;
  detail::PackedCopy<T> packed_;
};

ATTN_NAMESPACE_END
