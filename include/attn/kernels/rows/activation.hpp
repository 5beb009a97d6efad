// Activations: relu, gelu, silu, swish and gated products.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <limits>

#include "attn/core/tensor.hpp"
#include "attn/exec/caches.hpp"
#include "attn/kernels/rows/in_floats.hpp"

ATTN_NAMESPACE_BEGIN

enum class Activation {
  none,
  relu,       ///< max(x, 0)
  gelu,       ///< x (1 + erf(x / sqrt 2)) / 2, PyTorch's default
  gelu_tanh,  ///< x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) / 2, PyTorch's approximate="tanh"
  silu,       ///< x / (1 + e^-x)
  relu_squared,  ///< max(x, 0)^2, as in Nemotron; Source: So et al., "Primer" (2021)
  quick_gelu,    ///< x / (1 + e^(-1.702 x)), as in CLIP
};

/// A gated linear unit: activation(min(a, limit)) (min(max(b, -limit), limit) + offset). Activation
/// silu, limit infinity and offset 0 is SwiGLU; gpt-oss has quick_gelu, 7 and 1.
struct GatedUnit {
  GatedUnit(Activation of_gate, double bound = std::numeric_limits<double>::infinity(),
            double added = 0)
      : activation(of_gate), limit(bound), offset(added) {}

  Activation activation;
  double limit;   ///< of a from above and of b on both sides
  double offset;  ///< added to b
};

namespace detail {

/// n elements; out may be x. Not for Activation::none.
template <class T>
struct ActivationProblem {
  Activation activation;
  index_t n;
  const T* x;
  T* out;
};

/// Rows with unit inner stride; out may be a or b.
template <class T>
struct GluProblem {
  GatedUnit unit;
  TensorView2<const T> a, b;
  TensorView2<T> out;
};

/// n elements; b may be nullptr, out may be a or b.
template <class T>
struct SwigluProblem {
  T alpha;
  index_t n;
  const T *a, *b;
  T* out;
};

template <class In, class Acc>
struct Backend<family::Elementwise, In, Acc> {
  Kernel<ActivationProblem<In>> activate;
  Kernel<GluProblem<In>> glu;
  Kernel<SwigluProblem<In>> swiglu;

  using Act = ActivationProblem<In>;
  using Glu = GluProblem<In>;
  using Swiglu = SwigluProblem<In>;
  static constexpr std::uint64_t kLayout = layout_hash({sizeof(Backend),
                                                        offsetof(Backend, activate),
                                                        offsetof(Backend, glu),
                                                        offsetof(Backend, swiglu),
                                                        sizeof(Act),
                                                        offsetof(Act, activation),
                                                        offsetof(Act, n),
                                                        offsetof(Act, x),
                                                        offsetof(Act, out),
                                                        sizeof(Glu),
                                                        offsetof(Glu, unit),
                                                        offsetof(Glu, a),
                                                        offsetof(Glu, b),
                                                        offsetof(Glu, out),
                                                        sizeof(Swiglu),
                                                        offsetof(Swiglu, alpha),
                                                        offsetof(Swiglu, n),
                                                        offsetof(Swiglu, a),
                                                        offsetof(Swiglu, b),
                                                        offsetof(Swiglu, out)});
};

}  // namespace detail

ATTN_NAMESPACE_END

#define ATTN_KERNEL_TEXT "attn/kernels/rows/activation.inc.hpp"
#include "attn/simd/foreach_isa.hpp"

ATTN_NAMESPACE_BEGIN

namespace detail {

template <class T, int Rank>
void activate_view(Activation activation, const TensorView<const T, Rank>& x,
                   const TensorView<T, Rank>& out, const Execution& execution) {
  if (out.size() == 0) return;  // which may have no address
  const auto& kernel = backend<family::Elementwise, Accumulator<T>>(execution).activate;
  if constexpr (Float16Element<T>) {
    each_joined(
        [&](const auto& from, const auto& to) {
          in_floats(
              [&](index_t, const auto& result, const auto& floats, const Execution& alone) {
                kernel({.activation = activation,
                        .n = result.size(),
                        .x = floats.data(),
                        .out = result.data()},
                       alone);
              },
              execution, to.rows(), from.rows());
        },
        x, out);
    return;
  } else {
    if (x.is_contiguous() && out.is_contiguous()) {
      return kernel({.activation = activation, .n = x.size(), .x = x.data(), .out = out.data()},
                    execution);
    }
    for (index_t i = 0; i < x.extent(0); ++i) {
      if constexpr (Rank > 1) {
        activate_view<T, Rank - 1>(activation, x.select(0, i), out.select(0, i), execution);
      } else {
        kernel({.activation = activation, .n = 1, .x = &x(i), .out = &out(i)}, execution);
      }
    }
  }
}

/// An empty b means no b.
template <class T, int Rank>
void swiglu(Accumulator<T> alpha, TensorView<const T, Rank> a, TensorView<const T, Rank> b,
            TensorView<T, Rank> out, const Execution& execution) {
  if (out.size() == 0) return;  // which may have no address
  const auto& kernel = backend<family::Elementwise, Accumulator<T>>(execution).swiglu;
  if constexpr (Float16Element<T>) {
    each_joined(
        [&](const auto& from, const auto& by, const auto& to) {
          const auto multiply = [&](const TensorView2<float>& result,
                                    const TensorView2<const float>& x, const float* y,
                                    const Execution& alone) {
            kernel(
                {.alpha = alpha, .n = result.size(), .a = x.data(), .b = y, .out = result.data()},
                alone);
          };
          if (b) {
            in_floats([&](index_t, const auto& result, const auto& x, const auto& y,
                          const Execution& alone) { multiply(result, x, y.data(), alone); },
                      execution, to.rows(), from.rows(), by.rows());
          } else {
            in_floats([&](index_t, const auto& result, const auto& x,
                          const Execution& alone) { multiply(result, x, nullptr, alone); },
                      execution, to.rows(), from.rows());
          }
        },
        a, b ? b : a, out);
    return;
  } else {
    const bool flat = a.is_contiguous() && out.is_contiguous() && (!b || b.is_contiguous());
    if (flat) {
      return kernel(
          {.alpha = alpha, .n = out.size(), .a = a.data(), .b = b.data(), .out = out.data()},
          execution);
    }
    for (index_t i = 0; i < out.extent(0); ++i) {
      if constexpr (Rank > 1) {
        swiglu<T, Rank - 1>(alpha, a.select(0, i),
                            b ? b.select(0, i) : TensorView<const T, Rank - 1>(), out.select(0, i),
                            execution);
      } else {
        kernel({.alpha = alpha, .n = 1, .a = &a(i), .b = b ? &b(i) : nullptr, .out = &out(i)},
               execution);
      }
    }
  }
}

}  // namespace detail

namespace detail {

template <TensorLike X, TensorLike Out>
void activate_to(std::string_view function, Activation activation, const X& x, Out&& out,
                 const Execution& execution) {
  using T = floating_t<X>;
  constexpr int kRank = rank_v<X>;
  ATTN_ASSERT_FLOATING(X, "activate, relu, gelu: x");
  ATTN_ASSERT_OUTPUT_LIKE(Out, X, "activate, relu, gelu: out", "x");
  const auto from = view_as<const T, kRank>(x);
  const auto to = view_as<T, kRank>(out);
  check_shape(function, "out", from.shape(), to.shape());
  if (activation != Activation::none) {
    activate_view<T, kRank>(activation, from, to, execution);
  } else if (from.data() != to.data() || from.strides() != to.strides()) {
    copy(from, to);
  }
}

}  // namespace detail

/// out = activation(x), element by element; out may be x. Throws ShapeError unless shapes agree.
template <TensorLike X, TensorLike Out>
void activate(Activation activation, const X& x, Out&& out, const Execution& execution = {}) {
  detail::activate_to("activate", activation, x, out, execution);
}

/// Returns the result as a new tensor.
template <TensorLike X>
auto activate(Activation activation, const X& x, const Execution& execution = {}) {
  auto out = Tensor<scalar_t<X>, rank_v<X>>::uninitialized(const_view(x).shape());
  activate(activation, x, out, execution);
  return out;
}

/// Calls activate(Activation::relu, x).
template <TensorLike X>
auto relu(const X& x, const Execution& execution = {}) {
  return activate(Activation::relu, x, execution);
}
template <TensorLike X, TensorLike Out>
void relu(const X& x, Out&& out, const Execution& execution = {}) {
  detail::activate_to("relu", Activation::relu, x, out, execution);
}

/// PyTorch's gelu; `Activation::gelu_tanh` selects the tanh approximation.
template <TensorLike X>
auto gelu(const X& x, Activation form = Activation::gelu, const Execution& execution = {}) {
  return activate(form, x, execution);
}
template <TensorLike X, TensorLike Out>
void gelu(const X& x, Out&& out, Activation form = Activation::gelu,
          const Execution& execution = {}) {
  detail::activate_to("gelu", form, x, out, execution);
}

/// out = activation(a) b, element by element: the gated linear unit with any activation (GeGLU with
/// gelu, SwiGLU with silu), with the limit and offset of a GatedUnit. Leading axes lie one stride
/// apart and the innermost stride is 1, as in the halves of one product. out may be a or b. Throws
/// ShapeError. Source: Shazeer, "GLU Variants Improve Transformer" (2020), equation 5.
template <TensorLike A, TensorLike B, TensorLike Out>
void glu(const GatedUnit& unit, const A& a, const B& b, Out&& out,
         const Execution& execution = {}) {
  using T = detail::floating_t<A>;
  constexpr int kRank = rank_v<A>;
  ATTN_ASSERT_FLOATING(A, "glu: a");
  ATTN_ASSERT_INPUT_LIKE(B, A, "glu: b", "a");
  ATTN_ASSERT_OUTPUT_LIKE(Out, A, "glu: out", "a");
  const auto gate = detail::view_as<const T, kRank>(a), by = detail::view_as<const T, kRank>(b);
  const auto to = detail::view_as<T, kRank>(out);
  const auto& shape = gate.shape();
  check_shape("glu", "b", shape, by.shape());
  check_shape("glu", "out", shape, to.shape());
  const detail::GluProblem<T> problem{
      .unit = unit, .a = gate.rows(), .b = by.rows(), .out = to.rows()};
  const auto check_stride = [&](std::string_view argument, const Shape<2>& strides) {
    if (shape.back() <= 1 || strides.back() == 1) return;
    throw ShapeError(
        message("glu", argument, "have innermost stride 1", std::to_string(strides.back())));
  };
  check_stride("a", problem.a.strides());
  check_stride("b", problem.b.strides());
  check_stride("out", problem.out.strides());
  if (problem.out.size() == 0) return;  // which may have no address
  const auto& kernel = detail::backend<family::Elementwise, Accumulator<T>>(execution).glu;
  if constexpr (Float16Element<T>) {
    detail::in_floats(
        [&](index_t, const auto& result, const auto& x, const auto& y, const Execution& alone) {
          kernel({.unit = unit, .a = x, .b = y, .out = result}, alone);
        },
        execution, problem.out, problem.a, problem.b);
  } else {
    kernel(problem, execution);
  }
}

/// Returns the result as a new tensor.
template <TensorLike A, TensorLike B>
auto glu(const GatedUnit& unit, const A& a, const B& b, const Execution& execution = {}) {
  auto out = Tensor<scalar_t<A>, rank_v<A>>::uninitialized(const_view(a).shape());
  glu(unit, a, b, out, execution);
  return out;
}

/// out = x / (1 + e^(-alpha x)), element by element; alpha = 1 is silu. out may be x. Throws
/// ShapeError unless shapes agree. Source: Ramachandran, Zoph, Le, "Searching for Activation
/// Functions" (2017).
template <TensorLike X, TensorLike Out>
void swish(const X& x, Out&& out, double alpha = 1, const Execution& execution = {}) {
  using T = detail::floating_t<X>;
  constexpr int kRank = rank_v<X>;
  ATTN_ASSERT_FLOATING(X, "swish: x");
  ATTN_ASSERT_OUTPUT_LIKE(Out, X, "swish: out", "x");
  const auto from = detail::view_as<const T, kRank>(x);
  const auto to = detail::view_as<T, kRank>(out);
  check_shape("swish", "out", from.shape(), to.shape());
  detail::swiglu<T, kRank>(static_cast<Accumulator<T>>(alpha), from, {}, to, execution);
}

/// Returns the result as a new tensor.
template <TensorLike X>
auto swish(const X& x, double alpha = 1, const Execution& execution = {}) {
  auto out = Tensor<scalar_t<X>, rank_v<X>>::uninitialized(const_view(x).shape());
  swish(x, out, alpha, execution);
  return out;
}

/// out = a / (1 + e^(-alpha a)) b, element by element: a and b are the results of the two linear
/// layers of a gated feed-forward layer. out may be a or b. Throws ShapeError unless shapes agree.
/// Source: Shazeer, "GLU Variants Improve Transformer" (2020), equation 5.
template <TensorLike A, TensorLike B, TensorLike Out>
void swiglu(const A& a, const B& b, Out&& out, double alpha = 1, const Execution& execution = {}) {
  using T = detail::floating_t<A>;
  constexpr int kRank = rank_v<A>;
  ATTN_ASSERT_FLOATING(A, "swiglu: a");
  ATTN_ASSERT_INPUT_LIKE(B, A, "swiglu: b", "a");
  ATTN_ASSERT_OUTPUT_LIKE(Out, A, "swiglu: out", "a");
  const auto gate = detail::view_as<const T, kRank>(a), by = detail::view_as<const T, kRank>(b);
  const auto to = detail::view_as<T, kRank>(out);
  check_shape("swiglu", "b", gate.shape(), by.shape());
  check_shape("swiglu", "out", gate.shape(), to.shape());
  detail::swiglu<T, kRank>(static_cast<Accumulator<T>>(alpha), gate, by, to, execution);
}

/// Returns the result as a new tensor.
template <TensorLike A, TensorLike B>
auto swiglu(const A& a, const B& b, double alpha = 1, const Execution& execution = {}) {
  auto out = Tensor<scalar_t<A>, rank_v<A>>::uninitialized(const_view(a).shape());
  swiglu(a, b, out, alpha, execution);
  return out;
}

ATTN_NAMESPACE_END
