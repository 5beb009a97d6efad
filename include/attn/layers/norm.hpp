// LayerNorm, RMSNorm, and Norm, which is either.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attn/kernels/rows/norm.hpp"
#include "attn/layers/module/parameter_visitor.hpp"

ATTN_NAMESPACE_BEGIN

enum class NormKind { layer, rms };

/// A normalisation over the last axis, whose kind is chosen at construction: weight one and bias
/// zero until loaded.
template <class T>
class Norm {
 public:
  Norm() = default;
  /// `bias` applies to layer norm; RMS norm has none.
  Norm(NormKind norm_kind, index_t dim, double epsilon, bool with_bias = true)
      : weight({dim}), eps(epsilon), kind(norm_kind) {
    weight.fill(T{1});
    if (with_bias && kind == NormKind::layer) bias = Tensor1<T>({dim});
  }

  template <TensorLike X>
  Tensor<T, rank_v<X>> operator()(const X& x, const Execution& execution = {}) const {
    ATTN_ASSERT_ELEMENTS(X, T, "LayerNorm, RMSNorm: x", "the layer");
    const auto from = detail::view_as<const T, rank_v<X>>(x);
    auto out = Tensor<T, rank_v<X>>::uninitialized(from.shape());
    forward(from, out, execution);
    return out;
  }

  /// Writes to `out`, which may be x. Throws ShapeError.
  template <TensorLike X, TensorLike Out>
  void forward(const X& x, Out&& out, const Execution& execution = {}) const {
    ATTN_ASSERT_ELEMENTS(X, T, "LayerNorm, RMSNorm: x", "the layer");
    ATTN_ASSERT_OUTPUT_LIKE(Out, X, "LayerNorm, RMSNorm: out", "x");
    const auto from = detail::view_as<const T, rank_v<X>>(x);
    const auto to = detail::view_as<T, rank_v<X>>(out);
    check_features(kind == NormKind::rms ? "RMSNorm" : "LayerNorm", from.shape(), weight.extent(0));
    if (kind == NormKind::rms) {
      rms_norm(from, weight.view(), eps, to, execution);
    } else {
      layer_norm(from, weight.view(), bias.view(), eps, to, execution);
    }
  }

  void visit_parameters(const ParameterVisitor<T>& f) { visit(*this, f); }
  void visit_parameters(const ParameterVisitor<const T>& f) const { visit(*this, f); }

  Tensor1<T> weight, bias;
  double eps = 1e-5;
  NormKind kind = NormKind::layer;

 private:
  template <class Self, class Visitor>
  static void visit(Self& self, const Visitor& f) {
    f.visit("weight", self.weight);
    f.visit("bias", self.bias);
  }
};

/// PyTorch's nn.LayerNorm over the last axis.
template <class T>
class LayerNorm : public Norm<T> {
 public:
  LayerNorm() = default;
  explicit LayerNorm(index_t dim, double epsilon = 1e-5, bool with_bias = true)
      : Norm<T>(NormKind::layer, dim, epsilon, with_bias) {}
};

/// PyTorch's nn.RMSNorm over the last axis.
template <class T>
class RMSNorm : public Norm<T> {
 public:
  RMSNorm() = default;
  explicit RMSNorm(index_t dim, double epsilon = std::numeric_limits<T>::epsilon())
      : Norm<T>(NormKind::rms, dim, epsilon) {}
};

ATTN_NAMESPACE_END
