// Activations, element by element: relu, gelu (erf and tanh), silu.
#pragma once

#include "attn/core/tensor.hpp"
#include "attn/kernels/execution.hpp"
#include "attn/simd/vec.hpp"

ATTN_NAMESPACE_BEGIN

enum class Activation {
  none,
  relu,       ///< max(x, 0)
  gelu,       ///< x (1 + erf(x / sqrt 2)) / 2, PyTorch's default
  gelu_tanh,  ///< x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) / 2, PyTorch's approximate="tanh"
  silu,       ///< x / (1 + e^-x)
};

namespace detail {

/// n elements, in place.
template <class T>
struct ActivationProblem {
  Activation activation;
  index_t n;
  T* x;
};

}  // namespace detail

ATTN_NAMESPACE_END

#define ATTN_KERNEL_TEXT "attn/kernels/activation.inc.hpp"
#include "attn/simd/foreach_isa.hpp"
ATTN_KERNEL_DOOR(activate_elements, ActivationProblem)

ATTN_NAMESPACE_BEGIN

namespace detail {

template <class T, int Rank>
void activate(Activation activation, TensorView<T, Rank> x, const Execution& execution) {
  if (x.is_contiguous()) return activate_elements<T>({activation, x.size(), x.data()}, execution);
  if constexpr (Rank > 1) {
    for (index_t i = 0; i < x.extent(0); ++i) activate(activation, x.select(0, i), execution);
  } else {
    for (index_t i = 0; i < x.extent(0); ++i) {
      activate_elements<T>({activation, 1, &x(i)}, execution);
    }
  }
}

}  // namespace detail

/// out = activation(x), element by element; out may be x. Throws ShapeError unless shapes agree.
template <TensorLike X, TensorLike Out>
void activate(Activation activation, const X& x, Out&& out, const Execution& execution = {}) {
  const auto from = const_view(x);
  const auto to = view_of(out);
  check_shape("activate", "out", from.shape(), to.shape());
  if (from.data() != to.data() || from.strides() != to.strides()) copy(from, to);
  detail::activate(activation, to, execution);
}

template <TensorLike X>
auto activate(Activation activation, const X& x, const Execution& execution = {}) {
  Tensor<scalar_t<X>, rank_v<X>> out(const_view(x));
  detail::activate(activation, out.view(), execution);
  return out;
}

template <TensorLike X>
auto relu(const X& x) {
  return activate(Activation::relu, x);
}
template <TensorLike X, TensorLike Out>
void relu(const X& x, Out&& out) {
  activate(Activation::relu, x, out);
}

/// PyTorch's gelu; `Activation::gelu_tanh` selects the tanh approximation.
template <TensorLike X>
auto gelu(const X& x, Activation form = Activation::gelu) {
  return activate(form, x);
}
template <TensorLike X, TensorLike Out>
void gelu(const X& x, Out&& out, Activation form = Activation::gelu) {
  activate(form, x, out);
}

ATTN_NAMESPACE_END
