// Layer normalisation over the last axis.
#pragma once

#include "attn/core/tensor.hpp"
#include "attn/kernels/execution.hpp"
#include "attn/simd/vec.hpp"

ATTN_NAMESPACE_BEGIN

namespace detail {

/// Rows with a unit stride inside; weight and bias may be nullptr, out may be x.
template <class T>
struct NormProblem {
  TensorView2<const T> x;
  const T *weight, *bias;
  T eps;
  TensorView2<T> out;
};

}  // namespace detail

ATTN_NAMESPACE_END

#define ATTN_KERNEL_TEXT "attn/kernels/norm.inc.hpp"
#include "attn/simd/foreach_isa.hpp"
ATTN_KERNEL_DOOR(layer_norm_rows, NormProblem)

ATTN_NAMESPACE_BEGIN

/// out = (x - mean) / sqrt(variance + eps) * weight + bias over the last axis, the variance that of all
/// n elements (biased). weight and bias have shape (dim); either may be empty. out may be x.
/// Throws ShapeError. Source: Ba, Kiros, Hinton, "Layer Normalization" (2016), equation 4.
template <TensorLike X, TensorLike Out>
void layer_norm(const X& x, TensorView1<const scalar_t<X>> weight,
                TensorView1<const scalar_t<X>> bias, double eps, Out&& out,
                const Execution& execution = {}) {
  using T = scalar_t<X>;
  const auto from = const_view(x);
  const auto to = view_of(out);
  const index_t dim = from.extent(rank_v<X> - 1);
  check_shape("layer_norm", "out", from.shape(), to.shape());
  for (auto [name, v] : {std::pair{"weight", weight}, std::pair{"bias", bias}}) {
    if (v && (v.extent(0) != dim || !v.is_contiguous())) {
      throw ShapeError(message("layer_norm", name,
                               "be contiguous with shape (" + std::to_string(dim) + ")",
                               to_string(v.shape())));
    }
  }
  const TensorView2<const T> rows = from.rows();
  const TensorView2<T> out_rows = to.rows();
  if (dim > 1 && (rows.stride(1) != 1 || out_rows.stride(1) != 1)) {
    throw ShapeError(message("layer_norm", "the innermost strides", "be 1",
                             to_string(from.strides()) + " and " + to_string(to.strides())));
  }
  detail::layer_norm_rows<T>({rows, weight.data(), bias.data(), static_cast<T>(eps), out_rows},
                             execution);
}

template <TensorLike X>
auto layer_norm(const X& x, TensorView1<const scalar_t<X>> weight = {},
                TensorView1<const scalar_t<X>> bias = {}, double eps = 1e-5,
                const Execution& execution = {}) {
  auto out = Tensor<scalar_t<X>, rank_v<X>>::uninitialized(const_view(x).shape());
  layer_norm(x, weight, bias, eps, out, execution);
  return out;
}

ATTN_NAMESPACE_END
