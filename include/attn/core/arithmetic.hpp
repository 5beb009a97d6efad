// add, multiply, scale: broadcast arithmetic on tensors.
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

/// Writes op(x, y) for all elements; asserts that the types fit.
template <class A, class B, class Out, class Op>
void combine_to(std::string_view function, const A& a, const B& b, Out&& out, const Op& op) {
  using T = scalar_t<Out>;
  constexpr int kRank = rank_v<Out>;
  constexpr bool has_rank = rank_v<A> <= kRank && rank_v<B> <= kRank;
  constexpr bool is_one_type = has_elements<A, T> && has_elements<B, T>;
  constexpr bool is_writable = !std::is_const_v<typename view_t<Out>::element_type>;
  static_assert(has_rank, "add, multiply, scale: out must have no fewer axes than the others");
  static_assert(is_one_type,
                "add, multiply, scale: the operands and out must have one element type");
  ATTN_ASSERT_WRITABLE(Out, "add, multiply, scale: out");
  if constexpr (has_rank && is_one_type && is_writable) {
    const TensorView<T, kRank> target = view_of(out);
    const auto widened = [&](const auto& x, std::string_view name) {
      Shape<kRank> strides{};
      expand_strides(function, name, x.shape(), x.strides(), target.shape(), strides);
      return TensorView<const T, kRank>(x.data(), target.shape(), strides);
    };
    const auto x = widened(const_view(a), "a"), y = widened(const_view(b), "b");
    if (target.size() > 0) combine<Op, T, kRank>(op, x, y, target);
  }
}

/// A tensor of the shape to which a and b broadcast.
template <class A, class B>
auto broadcast_tensor(const A& a, const B& b) {
  constexpr int kRank = (std::max)(rank_v<A>, rank_v<B>);
  const auto x = const_view(a);
  const auto y = const_view(b);
  Shape<kRank> shape{};
  shape.fill(1);
  std::copy_backward(x.shape().begin(), x.shape().end(), shape.end());
  for (int i = 1; i <= rank_v<B>; ++i) {
    index_t& extent = shape[static_cast<std::size_t>(kRank - i)];
    if (extent == 1) extent = y.extent(-i);
  }
  return Tensor<scalar_t<A>, kRank>::uninitialized(shape);
}

}  // namespace detail

/// out = a + alpha b, element by element. Axes of a and b are aligned at the last one; missing axes
/// and extents of 1 broadcast. 16-bit elements are added in float and rounded once. out may be a or
/// b, but must not overlap them otherwise. Throws ShapeError if one does not broadcast to out,
/// before anything is written.
template <TensorLike A, TensorLike B, TensorLike Out>
void add(const A& a, const B& b, Out&& out, Accumulator<scalar_t<Out>> alpha = 1) {
  using T = scalar_t<Out>;
  detail::combine_to("add", a, b, out, [alpha](T x, T y) { return static_cast<T>(x + alpha * y); });
}
/// Returns the result as a new tensor of the shape to which both broadcast.
template <TensorLike A, TensorLike B>
auto add(const A& a, const B& b, Accumulator<scalar_t<A>> alpha = 1) {
  auto out = detail::broadcast_tensor(a, b);
  add(a, b, out, alpha);
  return out;
}

/// out = a * b, with the rules of add().
template <TensorLike A, TensorLike B, TensorLike Out>
void multiply(const A& a, const B& b, Out&& out) {
  using T = scalar_t<Out>;
  detail::combine_to("multiply", a, b, out, [](T x, T y) { return static_cast<T>(x * y); });
}
/// Returns the result as a new tensor of the shape to which both broadcast.
template <TensorLike A, TensorLike B>
auto multiply(const A& a, const B& b) {
  auto out = detail::broadcast_tensor(a, b);
  multiply(a, b, out);
  return out;
}

/// out = factor * x, with the rules of add().
template <TensorLike X, TensorLike Out>
void scale(const X& x, Accumulator<scalar_t<Out>> factor, Out&& out) {
  using T = scalar_t<Out>;
  detail::combine_to("scale", x, x, out, [factor](T a, T) { return static_cast<T>(factor * a); });
}
/// Returns the result as a new tensor.
template <TensorLike X>
Tensor<scalar_t<X>, rank_v<X>> scale(const X& x, Accumulator<scalar_t<X>> factor) {
  auto out = Tensor<scalar_t<X>, rank_v<X>>::uninitialized(const_view(x).shape());
  scale(x, factor, out);
  return out;
}

ATTN_NAMESPACE_END
