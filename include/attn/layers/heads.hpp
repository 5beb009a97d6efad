// split_heads and combine_heads: between (batch, seq, num_heads * head_dim) and (batch, heads, seq, dim).
#pragma once

#include "attn/core/tensor.hpp"

ATTN_NAMESPACE_BEGIN

/// (batch, seq, num_heads * head_dim) as (batch, num_heads, seq, head_dim): a view, nothing is copied.
/// Throws ShapeError unless num_heads divides the last extent.
template <class T>
TensorView4<T> split_heads(TensorView3<T> x, index_t num_heads) {
  if (num_heads <= 0 || x.extent(2) % num_heads != 0) {
    throw ShapeError(message("split_heads", "the last extent " + std::to_string(x.extent(2)),
                             "be divisible by num_heads", std::to_string(num_heads)));
  }
  return x.split(2, num_heads).transpose(1, 2);
}
template <class T>
TensorView4<T> split_heads(Tensor3<T>& x, index_t num_heads) {
  return split_heads(x.view(), num_heads);
}
template <class T>
TensorView4<const T> split_heads(const Tensor3<T>& x, index_t num_heads) {
  return split_heads(x.view(), num_heads);
}
template <class T>
TensorView4<T> split_heads(Tensor3<T>&& x, index_t num_heads) = delete;  // the view would dangle

/// (batch, num_heads, seq, head_dim) into (batch, seq, num_heads * head_dim). Throws ShapeError.
template <TensorLike X, TensorLike Out>
void combine_heads(const X& x, Out&& out) {
  const TensorView4<const scalar_t<X>> from = const_view(x);
  const TensorView3<scalar_t<X>> to = view_of(out);
  const Shape<3> expected{from.extent(0), from.extent(2), from.extent(1) * from.extent(3)};
  check_shape("combine_heads", "out", expected, to.shape());
  copy(from, split_heads(to, from.extent(1)));
}

template <TensorLike X>
Tensor3<scalar_t<X>> combine_heads(const X& x) {
  const auto from = const_view(x);
  auto out = Tensor3<scalar_t<X>>::uninitialized(
      {from.extent(0), from.extent(2), from.extent(1) * from.extent(3)});
  combine_heads(x, out);
  return out;
}

ATTN_NAMESPACE_END
