// Tangents of gradients: the JVP of the backward of norms, activations and gated products.
// SPDX-License-Identifier: Apache-2.0
//
// x_backward_jvp() has the arguments of x_backward(), each a DualView: a tensor (batch, seq, dim)
// or a parameter with its tangent. It adds to the gradients what x_backward() computes, and to
// their tangents the derivative of that along the tangents of the inputs. Innermost strides are 1;
// gradients overlap no other tensor. Rows are computed in dual numbers, one element at a time.
#pragma once

#include "attn/core/dual/dual_view.hpp"
#include "attn/kernels/rows/activation.hpp"
#include "attn/kernels/rows/column_sums.hpp"

ATTN_NAMESPACE_BEGIN

namespace detail {

/// Throws ShapeError unless value and tangent have this shape and innermost stride 1.
template <class T>
void check_dual(std::string_view function, std::string_view name, const Shape<3>& shape,
                const DualView<T>& x) {
  for (const TensorView3<T>& view : {x.value, x.tangent}) {
    check_shape(function, name, shape, view.shape());
    if (view.extent(2) > 1 && view.stride(2) != 1) {
      throw_shape(function, name, "have innermost stride 1 (these are the strides)",
                  view.strides());
    }
  }
}

/// Calls f(columns, DualRow..) for each row of tensors (batch, seq, dim) of one shape.
template <class F, class First, class... Others>
void for_dual_rows(const Execution& execution, const F& f, const DualView<First>& first,
                   const DualView<Others>&... others) {
  const index_t seq = first.value.extent(1), columns = first.value.extent(2);
  for_rows(execution.threads(), first.value.extent(0) * seq, columns, [&](index_t row) {
    const auto row_of = [&]<class T>(const DualView<T>& x) {
      return DualRow<T>{x.value.at_index({row / seq, row % seq, 0}),
                        x.tangent.at_index({row / seq, row % seq, 0})};
    };
    f(columns, row_of(first), row_of(others)...);
  });
}

/// A parameter (dim) and its tangent as rows; without a value 1, without a tangent constant.
template <class T>
struct DualFactors {
  DualFactors(std::string_view function, std::string_view name, index_t dim,
              const DualView<const T, 1>& of)
      : x(of) {
    for (const TensorView1<const T>& view : {of.value, of.tangent}) {
      if (view && (view.extent(0) != dim || !view.is_contiguous())) {
        throw_shape(function, name, "be contiguous with shape (" + std::to_string(dim) + ")",
                    view.shape());
      }
    }
  }
  Dual<T> operator[](index_t i) const {
    return {x.value ? x.value.data()[i] : T{1}, x.tangent ? x.tangent.data()[i] : T{0}};
  }

  DualView<const T, 1> x;
};

template <class T>
void norm_backward_jvp(std::string_view function, bool centers, const DualView<const T>& d_out,
                       const DualView<const T>& x, const DualView<const T, 1>& weight, double eps,
                       const DualView<T>& d_x, const DualView<T, 1>& d_weight,
                       const DualView<T, 1>& d_bias, const Execution& execution) {
  const Shape<3> shape = x.value.shape();
  check_dual(function, "x", shape, x);
  check_dual(function, "d_out", shape, d_out);
  check_dual(function, "d_x", shape, d_x);
  const DualFactors<T> factors(function, "weight", shape[2], weight);
  const bool wants_weight = d_weight.value || d_weight.tangent;
  const index_t size = wants_weight ? size_of(shape) : 0;
  const Scratch<T> memory(execution.scratch(), 2 * size);
  const DualView<T> of_weight{{memory.data(), shape}, {memory.data() + size, shape}};
  for_dual_rows(
      execution,
      [&](index_t n, const auto& dy, const auto& from, const auto& to, const auto& products) {
        const auto count = static_cast<T>(n);
        Dual<T> mean, variance, mean_g, mean_gn;
        for (index_t i = 0; centers && i < n; ++i) mean += from[i];
        mean /= count;
        for (index_t i = 0; i < n; ++i) variance += (from[i] - mean) * (from[i] - mean);
        const Dual<T> scale = 1 / sqrt(variance / count + static_cast<T>(eps));
        const auto normed = [&](index_t i) { return (from[i] - mean) * scale; };
        for (index_t i = 0; i < n; ++i) {
          const Dual<T> g = dy[i] * factors[i];
          if (centers) mean_g += g;
          mean_gn += g * normed(i);
        }
        mean_g /= count, mean_gn /= count;
        for (index_t i = 0; i < n; ++i) {
          to.add(i, (dy[i] * factors[i] - mean_g - normed(i) * mean_gn) * scale);
          if (wants_weight) products.set(i, dy[i] * normed(i));
        }
      },
      d_out, x, d_x, wants_weight ? of_weight : d_x);
  if (d_weight.value) add_column_sums(of_weight.value, d_weight.value, execution);
  if (d_weight.tangent) add_column_sums(of_weight.tangent, d_weight.tangent, execution);
  if (d_bias.value) add_column_sums(d_out.value, d_bias.value, execution);
  if (d_bias.tangent) add_column_sums(d_out.tangent, d_bias.tangent, execution);
}

/// 1 / (1 + e^-x); the derivative also where e^-x overflows.
template <class T>
Dual<T> dual_sigmoid(const Dual<T>& x) {
  const T s = T{1} / (T{1} + std::exp(-x.value));
  return {s, x.derivative * s * (1 - s)};
}

/// An activation at x, and its derivative there.
template <class T>
struct DualActivation {
  Dual<T> value, derivative;
};

template <class T>
DualActivation<T> activation_at(Activation activation, const Dual<T>& x) {
  switch (activation) {
    case Activation::none:
      return {x, 1};
    case Activation::relu:
      return x > 0 ? DualActivation<T>{x, 1} : DualActivation<T>{0, 0};
    case Activation::relu_squared:
      return x > 0 ? DualActivation<T>{x * x, 2 * x} : DualActivation<T>{0, 0};
    case Activation::silu: {
      const Dual<T> s = dual_sigmoid(x);
      return {x * s, s + x * s * (1 - s)};
    }
    case Activation::quick_gelu: {
      const Dual<T> s = dual_sigmoid(1.702 * x);
      return {x * s, s + 1.702 * x * s * (1 - s)};
    }
    case Activation::gelu_tanh: {
      // (1 + tanh u) / 2 is the sigmoid of 2 u.
      constexpr double kFactor = 1.5957691216057307;  // 2 sqrt(2 / pi)
      const Dual<T> s = dual_sigmoid(kFactor * (x + 0.044715 * x * x * x));
      return {x * s, s + x * s * (1 - s) * (kFactor * (1 + 3 * 0.044715 * x * x))};
    }
    case Activation::gelu: {
      constexpr double kDensity = 0.39894228040143267794;  // 1 / sqrt(2 pi)
      const Dual<T> density = kDensity * exp(-0.5 * x * x);
      const T whole = std::erfc(-x.value * static_cast<T>(0.70710678118654752440)) / 2;
      const Dual<T> cdf{whole, x.derivative * density.value};
      return {x * cdf, cdf + x * density};
    }
  }
  return {x, 1};
}

}  // namespace detail

/// The tangent of layer_norm_backward(): see the head of this file. weight, d_weight, d_bias (dim)
/// and their tangents may be empty. Throws ShapeError.
template <std::floating_point T>
void layer_norm_backward_jvp(const std::type_identity_t<DualView<const T>>& d_out,
                             const std::type_identity_t<DualView<const T>>& x,
                             const std::type_identity_t<DualView<const T, 1>>& weight, double eps,
                             const DualView<T>& d_x,
                             const std::type_identity_t<DualView<T, 1>>& d_weight = {},
                             const std::type_identity_t<DualView<T, 1>>& d_bias = {},
                             const Execution& execution = {}) {
  detail::norm_backward_jvp<T>("layer_norm_backward_jvp", true, d_out, x, weight, eps, d_x,
                               d_weight, d_bias, execution);
}

/// The tangent of rms_norm_backward(), as layer_norm_backward_jvp().
template <std::floating_point T>
void rms_norm_backward_jvp(const std::type_identity_t<DualView<const T>>& d_out,
                           const std::type_identity_t<DualView<const T>>& x,
                           const std::type_identity_t<DualView<const T, 1>>& weight, double eps,
                           const DualView<T>& d_x,
                           const std::type_identity_t<DualView<T, 1>>& d_weight = {},
                           const Execution& execution = {}) {
  detail::norm_backward_jvp<T>("rms_norm_backward_jvp", false, d_out, x, weight, eps, d_x, d_weight,
                               {}, execution);
}

/// The tangent of activate_backward(): see the head of this file. relu'' is 0 everywhere. Throws
/// ShapeError.
template <std::floating_point T>
void activate_backward_jvp(Activation activation,
                           const std::type_identity_t<DualView<const T>>& d_out,
                           const std::type_identity_t<DualView<const T>>& x, const DualView<T>& d_x,
                           const Execution& execution = {}) {
  constexpr std::string_view kFunction = "activate_backward_jvp";
  const Shape<3> shape = x.value.shape();
  detail::check_dual(kFunction, "x", shape, x);
  detail::check_dual(kFunction, "d_out", shape, d_out);
  detail::check_dual(kFunction, "d_x", shape, d_x);
  detail::for_dual_rows(
      execution,
      [&](index_t n, const auto& dy, const auto& from, const auto& to) {
        for (index_t i = 0; i < n; ++i) {
          to.add(i, dy[i] * detail::activation_at(activation, from[i]).derivative);
        }
      },
      d_out, x, d_x);
}

/// The tangent of glu_backward(): see the head of this file. Throws ShapeError.
template <std::floating_point T>
void glu_backward_jvp(const GatedUnit& unit, const std::type_identity_t<DualView<const T>>& d_out,
                      const std::type_identity_t<DualView<const T>>& a,
                      const std::type_identity_t<DualView<const T>>& b, const DualView<T>& d_a,
                      const std::type_identity_t<DualView<T>>& d_b,
                      const Execution& execution = {}) {
  constexpr std::string_view kFunction = "glu_backward_jvp";
  const Shape<3> shape = a.value.shape();
  detail::check_dual(kFunction, "a", shape, a);
  detail::check_dual(kFunction, "b", shape, b);
  detail::check_dual(kFunction, "d_out", shape, d_out);
  detail::check_dual(kFunction, "d_a", shape, d_a);
  detail::check_dual(kFunction, "d_b", shape, d_b);
  const Dual<T> limit = unit.limit;
  detail::for_dual_rows(
      execution,
      [&](index_t n, const auto& dy, const auto& gate, const auto& up, const auto& to_gate,
          const auto& to_up) {
        for (index_t i = 0; i < n; ++i) {
          const Dual<T> a_i = gate[i], b_i = up[i];
          const Dual<T> clamped = b_i > limit ? limit : b_i < -limit ? -limit : b_i;
          const auto f = detail::activation_at(unit.activation, a_i > limit ? limit : a_i);
          const Dual<T> factor = (clamped + unit.offset) * f.derivative;
          if (!(a_i > limit)) to_gate.add(i, dy[i] * factor);
          if (!(abs(b_i) > limit)) to_up.add(i, dy[i] * f.value);
        }
      },
      d_out, a, b, d_a, d_b);
}

ATTN_NAMESPACE_END
