// LayerNorm: layer normalisation as a layer that holds its weight and bias.
#pragma once

#include "attn/kernels/norm.hpp"

ATTN_NAMESPACE_BEGIN

/// PyTorch's nn.LayerNorm over the last axis: weight one and bias zero until loaded.
template <class T>
class LayerNorm {
 public:
  LayerNorm() = default;
  explicit LayerNorm(index_t dim, double epsilon = 1e-5)
      : weight({dim}), bias({dim}), eps(epsilon) {
    weight.fill(T{1});
  }

  template <TensorLike X>
  Tensor<T, rank_v<X>> operator()(const X& x, const Execution& execution = {}) const {
    return layer_norm(x, weight.view(), bias.view(), eps, execution);
  }

  template <TensorLike X, TensorLike Out>
  void forward(const X& x, Out&& out, const Execution& execution = {}) const {
    layer_norm(x, weight.view(), bias.view(), eps, out, execution);
  }

  template <class F>
  void visit_parameters(F&& f) {
    f("weight", weight.view());
    f("bias", bias.view());
  }
  template <class F>
  void visit_parameters(F&& f) const {
    f("weight", weight.view());
    f("bias", bias.view());
  }

  Tensor1<T> weight, bias;
  double eps = 1e-5;
};

ATTN_NAMESPACE_END
