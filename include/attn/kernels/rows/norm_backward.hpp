// Backward of layer and root-mean-square normalisation over the last axis.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attn/kernels/rows/column_sums.hpp"
#include "attn/kernels/rows/norm.hpp"

ATTN_NAMESPACE_BEGIN

namespace detail {

/// Rows with unit inner stride. weight, d_weight and d_bias may be nullptr, residual empty; d_x may
/// be d_out, the residual or x.
template <class T>
struct NormBackwardProblem {
  TensorView2<const T> d_out, x, residual;
  const T* weight;
  T eps;
  bool centers;  ///< layer norm, which subtracts the mean
  TensorView2<T> d_x;
  T *d_weight, *d_bias;
};

template <class In, class Acc>
struct Backend<family::NormsBackward, In, Acc> {
  Kernel<NormBackwardProblem<In>> norm;

  static constexpr std::uint64_t kLayout = layout_hash(
      {sizeof(Backend), offsetof(Backend, norm), sizeof(NormBackwardProblem<In>),
       offsetof(NormBackwardProblem<In>, d_out), offsetof(NormBackwardProblem<In>, x),
       offsetof(NormBackwardProblem<In>, residual), offsetof(NormBackwardProblem<In>, weight),
       offsetof(NormBackwardProblem<In>, eps), offsetof(NormBackwardProblem<In>, centers),
       offsetof(NormBackwardProblem<In>, d_x), offsetof(NormBackwardProblem<In>, d_weight),
       offsetof(NormBackwardProblem<In>, d_bias)});
};

}  // namespace detail

ATTN_NAMESPACE_END

#define ATTN_KERNEL_TEXT "attn/kernels/rows/norm_backward.inc.hpp"
#include "attn/simd/foreach_isa.hpp"

ATTN_NAMESPACE_BEGIN

namespace detail {

template <class T, int Rank>
void norm_backward(std::string_view function, bool centers, TensorView<const T, Rank> d_out,
                   TensorView<const T, Rank> x, TensorView1<const T> weight, double eps,
                   TensorView<T, Rank> d_x, TensorView1<Accumulator<T>> d_weight,
                   TensorView1<Accumulator<T>> d_bias, TensorView<const T, Rank> residual,
                   const Execution& execution) {
  check_shape(function, "d_out", x.shape(), d_out.shape());
  check_shape(function, "d_x", x.shape(), d_x.shape());
  if (residual) check_shape(function, "residual", x.shape(), residual.shape());
  const auto check_vector = [&](std::string_view name, const auto& v) {
    if (v && (v.extent(0) != x.extent(Rank - 1) || !v.is_contiguous())) {
      throw_shape(function, name,
                  "be contiguous with shape (" + std::to_string(x.extent(Rank - 1)) + ")",
                  v.shape());
    }
  };
  check_vector("weight", weight);
  check_vector("d_weight", d_weight);
  check_vector("d_bias", d_bias);
  const auto check_stride = [&](std::string_view name, const auto& view) {
    if (view && view.extent(Rank - 1) > 1 && view.stride(Rank - 1) != 1) {
      throw_shape(function, name, "have innermost stride 1 (these are the strides)",
                  view.strides());
    }
  };
  check_stride("d_out", d_out);
  check_stride("x", x);
  check_stride("d_x", d_x);
  check_stride("residual", residual);
  if constexpr (Float16Element<T>) {
    using Wide = WidenedTensor<Rank>;
    const Wide dy(d_out, execution), from(x, execution), added(residual, execution),
        to(x.shape(), execution);
    const WidenedTensor<1> factors(weight, execution);
    norm_backward<float, Rank>(function, centers, dy.view(), from.view(), factors.view(), eps,
                               to.view(), d_weight, d_bias, added.view(), execution);
    convert(to.view(), d_x, execution);
  } else {
    each_joined(
        [&](const auto& dy, const auto& from, const auto& to, const auto& added) {
          backend<family::NormsBackward, T>(execution).norm(
              {.d_out = dy.rows(),
               .x = from.rows(),
               .residual = residual ? added.rows() : TensorView2<const T>(),
               .weight = weight.data(),
               .eps = static_cast<T>(eps),
               .centers = centers,
               .d_x = to.rows(),
               .d_weight = d_weight.data(),
               .d_bias = d_bias.data()},
              execution);
        },
        d_out, x, d_x, residual ? residual : TensorView<const T, Rank>(d_x));
  }
}

}  // namespace detail

/// The gradients of layer_norm(x, weight, bias, eps), from d_out. With g = d_out weight and n = (x
/// - mean) / sqrt(variance + eps): d_x = (g - mean of g - n mean of (g n)) / sqrt(variance + eps) +
/// residual; d_weight += sum over rows of d_out n and d_bias += sum over rows of d_out, if they are
/// given. d_x may be d_out, x or the residual. Sums over rows are taken in a fixed order. 16-bit
/// types are computed in float: d_x is rounded once, d_weight and d_bias are float. Throws
/// ShapeError. Source: Ba, Kiros, Hinton (2016), equation 4, differentiated.
template <TensorLike D, TensorLike X, TensorLike DX>
void layer_norm_backward(const D& d_out, const X& x,
                         TensorView1<const detail::floating_t<X>> weight, double eps, DX&& d_x,
                         TensorView1<Accumulator<detail::floating_t<X>>> d_weight = {},
                         TensorView1<Accumulator<detail::floating_t<X>>> d_bias = {},
                         TensorView<const detail::floating_t<X>, rank_v<X>> residual = {},
                         const Execution& execution = {}) {
  using T = detail::floating_t<X>;
  constexpr int kRank = rank_v<X>;
  ATTN_ASSERT_FLOATING(X, "layer_norm_backward: x");
  ATTN_ASSERT_INPUT_LIKE(D, X, "layer_norm_backward: d_out", "x");
  ATTN_ASSERT_OUTPUT_LIKE(DX, X, "layer_norm_backward: d_x", "x");
  detail::norm_backward<T, kRank>(
      "layer_norm_backward", true, detail::view_as<const T, kRank>(d_out),
      detail::view_as<const T, kRank>(x), weight, eps, detail::view_as<T, kRank>(d_x), d_weight,
      d_bias, residual, execution);
}

/// The gradients of rms_norm(x, weight, eps): as layer_norm_backward() without means, n = x /
/// sqrt(mean of x^2 + eps).
template <TensorLike D, TensorLike X, TensorLike DX>
void rms_norm_backward(const D& d_out, const X& x, TensorView1<const detail::floating_t<X>> weight,
                       double eps, DX&& d_x,
                       TensorView1<Accumulator<detail::floating_t<X>>> d_weight = {},
                       TensorView<const detail::floating_t<X>, rank_v<X>> residual = {},
                       const Execution& execution = {}) {
  using T = detail::floating_t<X>;
  constexpr int kRank = rank_v<X>;
  ATTN_ASSERT_FLOATING(X, "rms_norm_backward: x");
  ATTN_ASSERT_INPUT_LIKE(D, X, "rms_norm_backward: d_out", "x");
  ATTN_ASSERT_OUTPUT_LIKE(DX, X, "rms_norm_backward: d_x", "x");
  detail::norm_backward<T, kRank>(
      "rms_norm_backward", false, detail::view_as<const T, kRank>(d_out),
      detail::view_as<const T, kRank>(x), weight, eps, detail::view_as<T, kRank>(d_x), d_weight, {},
      residual, execution);
}

ATTN_NAMESPACE_END
