// linear_backward_jvp: the tangents of the gradients of linear.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attn/core/dual/dual_view.hpp"
#include "attn/layers/linear_backward.hpp"

ATTN_NAMESPACE_BEGIN

/// Adds to the gradients what linear_backward(d_out, x, weight, ..) computes, and to their tangents
/// its derivative along the tangents of d_out, x and weight. Each view of a gradient, and the
/// tangents of x and weight, may be empty. Shapes: d_out (.., out), x and d_x (.., in), weight and
/// d_weight (out, in), d_bias (out). Throws ShapeError.
///
/// With t(x) the tangent of x: t(d_x) = t(d_out) weight + d_out t(weight), t(d_weight) = t(d_out)^T
/// x + d_out^T t(x).
template <std::floating_point T, int Rank>
void linear_backward_jvp(const std::type_identity_t<DualView<const T, Rank>>& d_out,
                         const std::type_identity_t<DualView<const T, Rank>>& x,
                         const std::type_identity_t<DualView<const T, 2>>& weight,
                         const DualView<T, Rank>& d_x,
                         const std::type_identity_t<DualView<T, 2>>& d_weight,
                         const std::type_identity_t<DualView<T, 1>>& d_bias = {},
                         const Execution& execution = {}) {
  using View = TensorView<T, Rank>;
  const auto run = [&](const auto& d, const auto& in, const auto& w, const View& to,
                       const TensorView2<T>& to_weight, const TensorView1<T>& to_bias) {
    linear_backward(d, in, w, to, to_weight, to_bias, to, execution);
  };
  run(d_out.value, x.value, weight.value, d_x.value, d_weight.value, d_bias.value);
  run(d_out.tangent, x.value, weight.value, d_x.tangent, d_weight.tangent, d_bias.tangent);
  const bool x_moves = static_cast<bool>(x.tangent), moves = static_cast<bool>(weight.tangent);
  run(d_out.value, x_moves ? x.tangent : x.value, moves ? weight.tangent : weight.value,
      moves ? d_x.tangent : View(), x_moves ? d_weight.tangent : TensorView2<T>(), {});
}

ATTN_NAMESPACE_END
