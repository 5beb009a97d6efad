// Backward of activations and gated products.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attn/kernels/rows/activation.hpp"

ATTN_NAMESPACE_BEGIN

namespace detail {

/// Rows with unit inner stride; d_x may be d_out or x. With b: d_x and d_b of the gated unit;
/// otherwise only its activation is used.
template <class T>
struct ActivationBackwardProblem {
  GatedUnit unit;
  TensorView2<const T> d_out, x, b;
  TensorView2<T> d_x, d_b;
};

template <class In, class Acc>
struct Backend<family::ElementwiseBackward, In, Acc> {
  Kernel<ActivationBackwardProblem<In>> activate;

  static constexpr std::uint64_t kLayout = layout_hash(
      {sizeof(Backend), offsetof(Backend, activate), sizeof(ActivationBackwardProblem<In>),
       offsetof(ActivationBackwardProblem<In>, unit),
       offsetof(ActivationBackwardProblem<In>, d_out), offsetof(ActivationBackwardProblem<In>, x),
       offsetof(ActivationBackwardProblem<In>, b), offsetof(ActivationBackwardProblem<In>, d_x),
       offsetof(ActivationBackwardProblem<In>, d_b)});
};

}  // namespace detail

ATTN_NAMESPACE_END

#define ATTN_KERNEL_TEXT "attn/kernels/rows/activation_backward.inc.hpp"
#include "attn/simd/foreach_isa.hpp"

ATTN_NAMESPACE_BEGIN

namespace detail {

/// Checks shapes and strides of `function`, then runs the kernel on rows.
template <class T, int Rank>
void activation_backward(std::string_view function, const GatedUnit& unit,
                         TensorView<const T, Rank> d_out, TensorView<const T, Rank> x,
                         TensorView<const T, Rank> b, TensorView<T, Rank> d_x,
                         TensorView<T, Rank> d_b, const Execution& execution) {
  const auto check = [&](std::string_view name, const auto& view) {
    check_shape(function, name, x.shape(), view.shape());
    if (view.extent(Rank - 1) > 1 && view.stride(Rank - 1) != 1) {
      throw_shape(function, name, "have innermost stride 1 (these are the strides)",
                  view.strides());
    }
  };
  check("x", x);
  check("d_out", d_out);
  check("d_x", d_x);
  if (b) check("b", b), check("d_b", d_b);
  if constexpr (Float16Element<T>) {
    using Wide = WidenedTensor<Rank>;
    const Wide dy(d_out, execution), from(x, execution), other(b, execution);
    // The gradients overwrite their inputs.
    activation_backward<float, Rank>(function, unit, dy.view(), from.view(), other.view(),
                                     dy.view(), other.view(), execution);
    convert(dy.view(), d_x, execution);
    if (b) convert(other.view(), d_b, execution);
    return;
  } else {
    const auto run = [&](const auto& dy, const auto& from, const auto& other, const auto& to,
                         const auto& to_other) {
      backend<family::ElementwiseBackward, T>(execution).activate(
          {.unit = unit,
           .d_out = dy.rows(),
           .x = from.rows(),
           .b = b ? other.rows() : TensorView2<const T>(),
           .d_x = to.rows(),
           .d_b = b ? to_other.rows() : TensorView2<T>()},
          execution);
    };
    if constexpr (Rank == 1) {
      run(d_out.unsqueeze(0), x.unsqueeze(0), (b ? b : x).unsqueeze(0), d_x.unsqueeze(0),
          (b ? d_b : d_x).unsqueeze(0));
    } else {
      each_joined(run, d_out, x, b ? b : x, d_x, b ? d_b : d_x);
    }
  }
}

}  // namespace detail

/// The gradient of activate(activation, x): d_x = d_out f'(x), element by element, with relu'(0) =
/// 0. Innermost strides are 1; d_x may be d_out or x. 16-bit elements are widened, and the result
/// is rounded once. Throws ShapeError.
template <TensorLike D, TensorLike X, TensorLike DX>
void activate_backward(Activation activation, const D& d_out, const X& x, DX&& d_x,
                       const Execution& execution = {}) {
  using T = detail::floating_t<X>;
  constexpr int kRank = rank_v<X>;
  ATTN_ASSERT_FLOATING(X, "activate_backward: x");
  ATTN_ASSERT_INPUT_LIKE(D, X, "activate_backward: d_out", "x");
  ATTN_ASSERT_OUTPUT_LIKE(DX, X, "activate_backward: d_x", "x");
  detail::activation_backward<T, kRank>(
      "activate_backward", activation, detail::view_as<const T, kRank>(d_out),
      detail::view_as<const T, kRank>(x), {}, detail::view_as<T, kRank>(d_x), {}, execution);
}

/// The gradients of glu(unit, a, b) = f(a) b: d_a = d_out b f'(a), d_b = d_out f(a), and 0 where
/// the limit replaces a or b. d_a and d_b may be a and b, or one of them d_out. Throws ShapeError.
/// Source: Shazeer, "GLU Variants Improve Transformer" (2020), equation 5, differentiated.
template <TensorLike D, TensorLike A, TensorLike B, TensorLike DA, TensorLike DB>
void glu_backward(const GatedUnit& unit, const D& d_out, const A& a, const B& b, DA&& d_a, DB&& d_b,
                  const Execution& execution = {}) {
  using T = detail::floating_t<A>;
  constexpr int kRank = rank_v<A>;
  ATTN_ASSERT_FLOATING(A, "glu_backward: a");
  ATTN_ASSERT_INPUT_LIKE(B, A, "glu_backward: b", "a");
  ATTN_ASSERT_INPUT_LIKE(D, A, "glu_backward: d_out", "a");
  ATTN_ASSERT_OUTPUT_LIKE(DA, A, "glu_backward: d_a", "a");
  ATTN_ASSERT_OUTPUT_LIKE(DB, A, "glu_backward: d_b", "a");
  detail::activation_backward<T, kRank>(
      "glu_backward", unit, detail::view_as<const T, kRank>(d_out),
      detail::view_as<const T, kRank>(a), detail::view_as<const T, kRank>(b),
      detail::view_as<T, kRank>(d_a), detail::view_as<T, kRank>(d_b), execution);
}

ATTN_NAMESPACE_END
