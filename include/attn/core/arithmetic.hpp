// Arithmetic on whole tensors: sums, products and multiples, with broadcasting, into an output of the caller's.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attn/core/element.hpp"
#include "attn/core/tensor.hpp"

ATTN_NAMESPACE_BEGIN

namespace detail {

template <class Op, class T, int Rank>
void combine(const Op& op, const TensorView<const T, Rank>& a, const TensorView<const T, Rank>& b,
             const TensorView<T, Rank>& out) {
  if constexpr (Rank > 1) {
    for (index_t i = 0; i < out.extent(0); ++i) {
      combine<Op, T, Rank - 1>(op, a.select(0, i), b.select(0, i), out.select(0, i));
    }
  } else {
    const index_t n = out.extent(0), step_a = a.stride(0), step_b = b.stride(0);
    const T *p = a.data(), *q = b.data();
    T* to = out.data();
    if (step_a == 1 && step_b == 1 && out.stride(0) == 1) {
      for (index_t i = 0; i < n; ++i) to[i] = op(p[i], q[i]);
    } else {
      for (index_t i = 0; i < n; ++i) to[i * out.stride(0)] = op(p[i * step_a], q[i * step_b]);
    }
  }
}

template <class A, class B, class Out>
constexpr void assert_arithmetic() {
  static_assert(rank_v<A> <= rank_v<Out> && rank_v<B> <= rank_v<Out>,
                "add, multiply, scale: out must have no fewer axes than the others");
  ATTN_ASSERT_ELEMENTS(A, scalar_t<Out>, "add, multiply, scale: each operand", "out");
  ATTN_ASSERT_ELEMENTS(B, scalar_t<Out>, "add, multiply, scale: each operand", "out");
  ATTN_ASSERT_WRITABLE(Out, "add, multiply, scale: out");
}

template <class Op, class A, class B, class Out>
void combine_to(std::string_view function, const Op& op, const A& a, const B& b, Out&& out) {
  using T = scalar_t<Out>;
  constexpr int kRank = rank_v<Out>;
  const TensorView<T, kRank> target = view_of(out);
  const auto widened = [&](const auto& x, std::string_view name) {
    Shape<kRank> strides{};
    expand_strides(function, name, x.shape(), x.strides(), target.shape(), strides);
    return TensorView<const T, kRank>(x.data(), target.shape(), strides);
  };
  const auto x = widened(const_view(a), "a"), y = widened(const_view(b), "b");
  if (target.size() > 0) combine<Op, T, kRank>(op, x, y, target);
}

}  // namespace detail

/// out = a + b, element by element: axes of a and b are aligned at the last, and what is missing or
/// of extent 1 repeats. 16-bit elements are summed in float and rounded once. out may be a or b,
/// but must not overlap them otherwise. Throws ShapeError where one does not broadcast to out;
/// nothing is written then.
template <TensorLike A, TensorLike B, TensorLike Out>
void add(const A& a, const B& b, Out&& out) {
  detail::assert_arithmetic<A, B, Out>();
  using T = scalar_t<Out>;
  detail::combine_to(
      "add", [](T x, T y) { return static_cast<T>(x + y); }, detail::view_as<const T, rank_v<A>>(a),
      detail::view_as<const T, rank_v<B>>(b), out);
}

/// out = a * b, as add().
template <TensorLike A, TensorLike B, TensorLike Out>
void multiply(const A& a, const B& b, Out&& out) {
  detail::assert_arithmetic<A, B, Out>();
  using T = scalar_t<Out>;
  detail::combine_to(
      "multiply", [](T x, T y) { return static_cast<T>(x * y); },
      detail::view_as<const T, rank_v<A>>(a), detail::view_as<const T, rank_v<B>>(b), out);
}

/// out = factor * x, as add().
template <TensorLike X, TensorLike Out>
void scale(const X& x, Accumulator<scalar_t<Out>> factor, Out&& out) {
  detail::assert_arithmetic<X, X, Out>();
  using T = scalar_t<Out>;
  const auto from = detail::view_as<const T, rank_v<X>>(x);
  detail::combine_to(
      "scale", [factor](T a, T) { return static_cast<T>(factor * a); }, from, from, out);
}

ATTN_NAMESPACE_END
