// Tangents (JVP) of linear, Linear and Norm.
// SPDX-License-Identifier: Apache-2.0
//
// jvp(layer, tangents, x, d_x, .., out, d_out, ..) computes a layer's output and its tangent. The
// tangents of its parameters are those of a module of the same type and shapes, for example
// gradients_of(layer), which is zero; empty ones are 0. Layers have elements of float or double;
// their dropout is not applied.
#pragma once

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "attn/core/dual/dual_view.hpp"
#include "attn/kernels/rows/row_jvp.hpp"
#include "attn/layers/linear.hpp"
#include "attn/layers/module/saved.hpp"
#include "attn/layers/norm.hpp"

ATTN_NAMESPACE_BEGIN

/// The tangent of linear(x, weight, bias), without an activation: d_out = d_x weight^T + x
/// d_weight^T + d_bias + residual. d_weight, d_bias and the residual may be empty. Shapes: x and
/// d_x (.., in), weight and d_weight (out, in), d_bias (out), d_out and the residual (.., out).
/// d_out may be the residual, not another tensor. Throws ShapeError.
template <TensorLike X, TensorLike W>
void linear_jvp(const X& x, decltype(const_view(std::declval<const X&>())) d_x, const W& weight,
                TensorView2<const scalar_t<X>> d_weight, TensorView1<const scalar_t<X>> d_bias,
                TensorView<scalar_t<X>, rank_v<X>> d_out,
                decltype(const_view(std::declval<const X&>())) residual = {},
                const Execution& execution = {}) {
  using T = scalar_t<X>;
  ATTN_ASSERT_REAL(X, "linear_jvp: x");
  const auto from = const_view(x);
  const TensorView2<const T> w = const_view(weight);
  check_shape("linear_jvp", "d_x", from.shape(), d_x.shape());
  if (d_weight) check_shape("linear_jvp", "d_weight", w.shape(), d_weight.shape());
  linear(d_x, w, d_bias, d_out, Activation::none, residual, execution);
  if (d_weight) {
    linear(from, d_weight, TensorView1<const T>(), d_out, Activation::none, d_out, execution);
  }
}

namespace detail {

/// Throws ShapeError unless each parameter of `other`, such as the tangents of a module, has the
/// shape of the module's parameter with the same name. To be called before results, which may be
/// inputs, are written.
template <class Module>
void check_tangents(std::string_view function, std::string_view argument, const Module& module,
                    const Module& other) {
  std::map<std::string, std::vector<index_t>, std::less<>> shapes;
  module.visit_parameters([&](std::string_view name, const auto& x) {
    const auto& shape = x.shape();
    shapes.emplace(name, std::vector<index_t>(shape.begin(), shape.end()));
  });
  other.visit_parameters([&](std::string_view name, const auto& x) {
    const auto found = shapes.find(name);
    if (found != shapes.end() && std::ranges::equal(found->second, x.shape())) return;
    throw_shape(function, std::string(argument).append(".").append(name),
                found == shapes.end() ? "be empty, as in the module"
                                      : "have shape " + to_string(found->second),
                x.shape());
  });
}

/// Uninitialised memory for a DualView until the end of the scope.
template <class T>
class DualScratch {
 public:
  DualScratch(const Shape<3>& shape, const Execution& execution)
      : memory_(execution.scratch(), 2 * size_of(shape)), shape_(shape) {}
  DualView<T> view() const {
    return {{memory_.data(), shape_}, {memory_.data() + size_of(shape_), shape_}};
  }

 private:
  Scratch<T> memory_;
  Shape<3> shape_;
};

template <class T>
DualView<const T> dual_input(std::string_view function, const TensorView3<const T>& x,
                             const TensorView3<const T>& d_x) {
  static_assert(std::same_as<T, Accumulator<T>>, "jvp: a layer must be of float or double");
  check_shape(function, "d_x", x.shape(), d_x.shape());
  return {x, d_x};
}

template <class T>
DualView<T> dual_output(std::string_view function, const TensorView3<T>& out,
                        const TensorView3<T>& d_out) {
  check_shape(function, "d_out", out.shape(), d_out.shape());
  return {out, d_out};
}

template <class T>
void linear_jvp(const Linear<T>& layer, const Linear<T>& tangents,
                const std::type_identity_t<DualView<const T>>& x,
                const std::type_identity_t<DualView<T>>& out,
                const std::type_identity_t<DualView<const T>>& residual,
                const Execution& execution) {
  if (!layer.weight && layer.in_features() > 0) throw_compressed("Linear");
  layer.forward(x.value, out.value, Activation::none, residual.value, execution);
  attn::linear_jvp(x.value, x.tangent, layer.weight, tangents.weight, tangents.bias, out.tangent,
                   residual.tangent, execution);
}

/// out may be x.
template <class T>
void norm_jvp(const Norm<T>& layer, const Norm<T>& tangents,
              const std::type_identity_t<DualView<const T>>& x,
              const std::type_identity_t<DualView<T>>& out, const Execution& execution) {
  check_tangent_rows("Norm", "out", x.value.shape(), out.value);
  if (layer.kind == NormKind::rms) {
    rms_norm_jvp(x.value, x.tangent, layer.weight, tangents.weight, layer.eps, out.tangent,
                 execution);
  } else {
    layer_norm_jvp(x.value, x.tangent, layer.weight, tangents.weight, tangents.bias, layer.eps,
                   out.tangent, execution);
  }
  layer.forward(x.value, out.value, execution);
}

}  // namespace detail

/// x and d_x (batch, seq, in), out and d_out (batch, seq, out). Throws ShapeError.
template <class T>
void jvp(const Linear<T>& layer, const std::type_identity_t<Linear<T>>& tangents, Input3<T> x,
         Input3<T> d_x, Output3<T> out, Output3<T> d_out, const Execution& execution = {}) {
  detail::linear_jvp(layer, tangents, detail::dual_input<T>("Linear", x, d_x),
                     detail::dual_output<T>("Linear", out, d_out), {}, execution);
}

/// x, d_x, out and d_out (batch, seq, dim); out may be x, with d_out d_x. Throws ShapeError.
template <class T>
void jvp(const Norm<T>& layer, const std::type_identity_t<Norm<T>>& tangents, Input3<T> x,
         Input3<T> d_x, Output3<T> out, Output3<T> d_out, const Execution& execution = {}) {
  detail::norm_jvp(layer, tangents, detail::dual_input<T>("Norm", x, d_x),
                   detail::dual_output<T>("Norm", out, d_out), execution);
}

ATTN_NAMESPACE_END
