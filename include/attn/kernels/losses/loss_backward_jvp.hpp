// Tangents of the gradients of losses: cross_entropy and mse_loss.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attn/core/dual/dual_view.hpp"
#include "attn/kernels/losses/loss_jvp.hpp"
#include "attn/kernels/rows/row_jvp.hpp"

ATTN_NAMESPACE_BEGIN

/// Returns cross_entropy(logits, targets, options) and its tangent, and writes the gradient of the
/// logits and the tangent of that: for a row with sum of weights w, w p (t - sum of p t) / divisor,
/// where p is softmax(logits) and t the tangent of the logits; 0 for ignored rows. Shapes: logits
/// and d_logits (rows, classes), targets (rows) of any integer type. d_logits must not overlap
/// logits. Throws ShapeError, and ValueError for a target out of range and options.gradient_scale
/// other than 1.
template <std::floating_point T, TensorLike Targets>
LossTangent cross_entropy_backward_jvp(
    const std::type_identity_t<DualView<const T, 2>>& logits, const Targets& targets,
    const DualView<T, 2>& d_logits,
    const std::type_identity_t<CrossEntropyOptions<T>>& options = {}) {
  constexpr std::string_view kFunction = "cross_entropy_backward_jvp";
  if (options.gradient_scale != 1) {
    throw ValueError(
        message(kFunction, "gradient_scale", "be 1", to_string(options.gradient_scale)));
  }
  const Shape<2> shape = logits.value.shape();
  check_shape(kFunction, "tangent of logits", shape, logits.tangent.shape());
  check_shape(kFunction, "tangent of d_logits", shape, d_logits.tangent.shape());
  const double loss = cross_entropy_backward(logits.value, targets, d_logits.value, options);
  softmax(logits.value, d_logits.tangent, options.execution);
  softmax_jvp(d_logits.tangent, logits.tangent, d_logits.tangent, options.execution);
  const auto ids = const_view(targets);
  const auto is_ignored = [&](index_t i) {
    return options.ignore_index && static_cast<index_t>(ids(i)) == *options.ignore_index;
  };
  const TensorView1<const T>& weights = options.class_weights;
  const auto weight = [&](index_t c) { return weights ? static_cast<double>(weights(c)) : 1.0; };
  double divisor = 0, mean_weight = 0;
  for (index_t c = 0; c < shape[1]; ++c) mean_weight += weight(c) / static_cast<double>(shape[1]);
  for (index_t i = 0; i < shape[0]; ++i) {
    if (!is_ignored(i)) divisor += weight(static_cast<index_t>(ids(i)));
  }
  divisor = options.divisor.value_or(divisor);
  const double smoothing = options.label_smoothing;
  for (index_t i = 0; i < shape[0]; ++i) {
    double factor = 0;
    if (!is_ignored(i)) {
      factor = (1 - smoothing) * weight(static_cast<index_t>(ids(i))) + smoothing * mean_weight;
    }
    T* row = d_logits.tangent.at_index({i, 0});
    for (index_t c = 0; c < shape[1]; ++c) {
      row[c] = factor == 0 ? T{0} : row[c] * static_cast<T>(factor / divisor);
    }
  }
  return {loss, detail::dot_tangent<T, 2>(d_logits.value, logits.tangent)};
}

/// Returns mse_loss(x, target) and its tangent, and writes the gradient of x and the tangent of
/// that, 2 t / elements, where t is the tangent of x. Throws ShapeError.
template <std::floating_point T, int Rank>
LossTangent mse_loss_backward_jvp(const std::type_identity_t<DualView<const T, Rank>>& x,
                                  const std::type_identity_t<TensorView<const T, Rank>>& target,
                                  const DualView<T, Rank>& d_x) {
  check_shape("mse_loss_backward_jvp", "tangent of x", x.value.shape(), x.tangent.shape());
  const double loss = mse_loss_backward(x.value, target, d_x.value);
  const Tensor<T, Rank> zero(x.value.shape());
  (void)mse_loss_backward(x.tangent, zero, d_x.tangent);
  return {loss, detail::dot_tangent<T, Rank>(d_x.value, x.tangent)};
}

ATTN_NAMESPACE_END
