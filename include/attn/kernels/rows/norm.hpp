// Layer and root-mean-square normalisation over the last axis.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <type_traits>

#include "attn/core/tensor.hpp"
#include "attn/exec/caches.hpp"
#include "attn/kernels/rows/in_floats.hpp"

ATTN_NAMESPACE_BEGIN

namespace detail {

/// Rows with unit inner stride; weight and bias may be nullptr, out may be x.
template <class T>
struct NormProblem {
  TensorView2<const T> x;
  const T *weight, *bias;
  T eps;
  TensorView2<T> out;
};

template <class In, class Acc>
struct Backend<family::Norms, In, Acc> {
  Kernel<NormProblem<In>> layer_norm, rms_norm;

  using Norm = NormProblem<In>;
  static constexpr std::uint64_t kLayout =
      layout_hash({sizeof(Backend), offsetof(Backend, layer_norm), offsetof(Backend, rms_norm),
                   sizeof(Norm), offsetof(Norm, x), offsetof(Norm, weight), offsetof(Norm, bias),
                   offsetof(Norm, eps), offsetof(Norm, out)});
};

/// Whether shrink_row() must scale a row before it is normalised: its sum of squares overflowed, or
/// its standard deviation is so small relative to its mean that the rounding error of the mean
/// would matter. `scale` is 1 / sqrt(variance + eps).
template <class T>
bool needs_shrinking(T mean, T scale) {
  constexpr T kLargest = 1 / (128 * std::numeric_limits<T>::epsilon());
  return !(scale > T{0}) || std::abs(mean) * scale > kLargest;
}

/// For a finite row: to = s from, with s the power of two that puts the largest magnitude into
/// [0.5, 1). Returns s, or 0 for a row that is not finite or is 0, and then writes nothing. to may
/// be from. centers: also subtracts s from[0], so that the mean of equal numbers is exact.
template <class T>
ATTN_COLD T shrink_row(index_t n, const T* from, T* to, bool centers) {
  T largest = 0;
  for (index_t k = 0; k < n; ++k) {
    if (!std::isfinite(from[k])) return 0;
    largest = (std::max)(largest, std::abs(from[k]));
  }
  if (largest == 0) return 0;
  int exponent = 0;
  std::frexp(largest, &exponent);
  const T s = std::ldexp(T{1}, -exponent), shift = centers ? from[0] * s : T{0};
  for (index_t k = 0; k < n; ++k) to[k] = from[k] * s - shift;
  return s;
}

/// The scales of a row shrunk by s whose variance is then `variance`.
template <class T>
struct ShrunkScale {
  T of_shrunk;  ///< from the shrunk row without its mean to the normalised row
  T of_row;     ///< 1 / sqrt(variance + eps) of the row itself

  ShrunkScale(T variance, T eps, T s) {
    // Wider numbers, since s^2 eps would underflow.
    using Wide = std::conditional_t<std::is_same_v<T, float>, double, long double>;
    const Wide scale = 1 / std::sqrt(Wide{variance} + Wide{eps} * s * s);
    of_shrunk = static_cast<T>((std::min)(scale, Wide{(std::numeric_limits<T>::max)()}));
    of_row = static_cast<T>(scale * s);
  }
};

}  // namespace detail

ATTN_NAMESPACE_END

#define ATTN_KERNEL_TEXT "attn/kernels/rows/norm.inc.hpp"
#include "attn/simd/foreach_isa.hpp"

ATTN_NAMESPACE_BEGIN

namespace detail {

/// Checks every argument of `function` and calls `normalize` for the rows.
template <class T, int Rank>
void norm_rows(std::string_view function,
               Kernel<NormProblem<Accumulator<T>>>
                   Backend<family::Norms, Accumulator<T>, Accumulator<T>>::*normalize,
               TensorView<const T, Rank> x, TensorView1<const T> weight, TensorView1<const T> bias,
               double eps, TensorView<T, Rank> out, const Execution& execution) {
  const index_t dim = x.extent(Rank - 1);
  check_shape(function, "out", x.shape(), out.shape());
  for (auto [name, v] : {std::pair{"weight", weight}, std::pair{"bias", bias}}) {
    if (v && (v.extent(0) != dim || !v.is_contiguous())) {
      throw ShapeError(message(function, name,
                               "be contiguous with shape (" + std::to_string(dim) + ")",
                               to_string(v.shape())));
    }
  }
  if (dim > 1 && (x.stride(Rank - 1) != 1 || out.stride(Rank - 1) != 1)) {
    throw ShapeError(message(function, "the innermost strides", "be 1",
                             to_string(x.strides()) + " and " + to_string(out.strides())));
  }
  if (out.size() == 0) return;  // which may have no address
  using Acc = Accumulator<T>;
  const Kernel<NormProblem<Acc>>& kernel = backend<family::Norms, Acc>(execution).*normalize;
  const Acc epsilon = static_cast<Acc>(eps);
  if constexpr (Float16Element<T>) {
    const WidenedVector factors(weight, execution), summands(bias, execution);
    each_joined(
        [&](const auto& from, const auto& to) {
          in_floats(
              [&](index_t, const auto& result, const auto& floats, const Execution& alone) {
                kernel({.x = floats,
                        .weight = factors.data(),
                        .bias = summands.data(),
                        .eps = epsilon,
                        .out = result},
                       alone);
              },
              execution, to.rows(), from.rows());
        },
        x, out);
  } else {
    each_joined(
        [&](const auto& from, const auto& to) {
          kernel({.x = from.rows(),
                  .weight = weight.data(),
                  .bias = bias.data(),
                  .eps = epsilon,
                  .out = to.rows()},
                 execution);
        },
        x, out);
  }
}

}  // namespace detail

/// out = (x - mean) / sqrt(variance + eps) * weight + bias over the last axis, with the biased
/// variance (over n). A row whose squares overflow is scaled down first. weight and bias have shape
/// (dim); either may be empty. Leading axes may have any strides; out may be x. Throws ShapeError.
/// Source: Ba, Kiros, Hinton, "Layer Normalization" (2016), equation 4.
template <TensorLike X, TensorLike Out, TensorLike W = TensorView1<const detail::floating_t<X>>,
          TensorLike B = TensorView1<const detail::floating_t<X>>>
void layer_norm(const X& x, const W& weight, const B& bias, double eps, Out&& out,
                const Execution& execution = {}) {
  using T = detail::floating_t<X>;
  constexpr int kRank = rank_v<X>;
  ATTN_ASSERT_FLOATING(X, "layer_norm: x");
  ATTN_ASSERT_INPUT(W, T, 1, "layer_norm: weight", "(dim)", "x");
  ATTN_ASSERT_INPUT(B, T, 1, "layer_norm: bias", "(dim)", "x");
  ATTN_ASSERT_OUTPUT_LIKE(Out, X, "layer_norm: out", "x");
  detail::norm_rows<T, kRank>(
      "layer_norm", &detail::Backend<family::Norms, Accumulator<T>, Accumulator<T>>::layer_norm,
      detail::view_as<const T, kRank>(x), detail::view_as<const T, 1>(weight),
      detail::view_as<const T, 1>(bias), eps, detail::view_as<T, kRank>(out), execution);
}

/// Returns the result as a new tensor.
template <TensorLike X, TensorLike W = TensorView1<const detail::floating_t<X>>,
          TensorLike B = TensorView1<const detail::floating_t<X>>>
auto layer_norm(const X& x, const W& weight = {}, const B& bias = {}, double eps = 1e-5,
                const Execution& execution = {}) {
  auto out = Tensor<scalar_t<X>, rank_v<X>>::uninitialized(const_view(x).shape());
  layer_norm(x, weight, bias, eps, out, execution);
  return out;
}

/// out = x / sqrt(mean of x^2 + eps) * weight over the last axis: layer_norm without mean and bias.
/// weight has shape (dim) and may be empty; strides as in layer_norm, out may be x. Squares are
/// summed in the type of x, in float for 16-bit types. Throws ShapeError. Source: Zhang, Sennrich,
/// "Root Mean Square Layer Normalization" (2019), equation 4; eps as in Llama and ONNX.
template <TensorLike X, TensorLike Out, TensorLike W = TensorView1<const detail::floating_t<X>>>
void rms_norm(const X& x, const W& weight, double eps, Out&& out, const Execution& execution = {}) {
  using T = detail::floating_t<X>;
  constexpr int kRank = rank_v<X>;
  ATTN_ASSERT_FLOATING(X, "rms_norm: x");
  ATTN_ASSERT_INPUT(W, T, 1, "rms_norm: weight", "(dim)", "x");
  ATTN_ASSERT_OUTPUT_LIKE(Out, X, "rms_norm: out", "x");
  detail::norm_rows<T, kRank>(
      "rms_norm", &detail::Backend<family::Norms, Accumulator<T>, Accumulator<T>>::rms_norm,
      detail::view_as<const T, kRank>(x), detail::view_as<const T, 1>(weight), {}, eps,
      detail::view_as<T, kRank>(out), execution);
}

/// Returns the result as a new tensor.
template <TensorLike X, TensorLike W = TensorView1<const detail::floating_t<X>>>
auto rms_norm(const X& x, const W& weight = {}, double eps = 1e-5,
              const Execution& execution = {}) {
  auto out = Tensor<scalar_t<X>, rank_v<X>>::uninitialized(const_view(x).shape());
  rms_norm(x, weight, eps, out, execution);
  return out;
}

ATTN_NAMESPACE_END
