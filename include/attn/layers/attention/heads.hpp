// split_heads, split_qkv, combine_heads: (batch, seq, heads * dim) as (batch, heads, seq, dim).
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <limits>

#include "attn/core/tensor.hpp"

ATTN_NAMESPACE_BEGIN

/// Returns (batch, seq, num_heads * head_dim) as (batch, num_heads, seq, head_dim): a view, nothing
/// is copied. A matrix (seq, num_heads * head_dim), for example an Eigen matrix, has batch 1: (1,
/// num_heads, seq, head_dim). Throws ShapeError unless num_heads divides the last extent.
template <TensorLike X>
auto split_heads(X&& x, index_t num_heads) {
  using T = typename view_t<X>::element_type;
  if constexpr (rank_v<X> == 2) {
    return split_heads(view_of(x).unsqueeze(0), num_heads);
  } else {
    ATTN_ASSERT_AXES(X, 3, "split_heads: x", "(batch, seq, heads * dim)");
    const auto view = detail::view_as<T, 3>(x);
    if (num_heads <= 0 || view.extent(2) % num_heads != 0) {
      throw ShapeError(message("split_heads", "the last extent " + std::to_string(view.extent(2)),
                               "be divisible by num_heads", std::to_string(num_heads)));
    }
    const index_t dim = view.extent(2) / num_heads;
    // In one step instead of by split() and transpose(): attn_report mha_tutorial splits four
    // times.
    return TensorView4<T>(view.data(), {view.extent(0), num_heads, view.extent(1), dim},
                          {view.stride(0), dim * view.stride(2), view.stride(1), view.stride(2)});
  }
}
template <TemporaryTensor X>
void split_heads(X&& x, index_t num_heads) = delete;  // it would view a temporary tensor

/// Query, key and value heads of one tensor.
template <class T>
struct QkvHeads {
  TensorView4<T> q, k, v;
};

/// Splits packed (batch, seq, (num_heads + 2 num_kv_heads) * head_dim): all query heads, then all
/// key heads, then all value heads, the layout of one joint projection; num_kv_heads = 0:
/// num_heads. Returns views, nothing is copied. Throws ShapeError unless the heads divide the last
/// extent.
template <TensorLike X>
auto split_qkv(X&& x, index_t num_heads, index_t num_kv_heads = 0) {
  ATTN_ASSERT_AXES(X, 3, "split_qkv: x", "(batch, seq, (num_heads + 2 num_kv_heads) head_dim)");
  const auto view = detail::view_as<typename view_t<X>::element_type, 3>(x);
  if (num_kv_heads == 0) num_kv_heads = num_heads;
  constexpr index_t kMax = (std::numeric_limits<index_t>::max)() / 4;  // the sum does not overflow
  const bool possible =
      num_heads > 0 && num_kv_heads > 0 && num_heads <= kMax && num_kv_heads <= kMax;
  const index_t all = possible ? num_heads + 2 * num_kv_heads : 1;
  if (!possible || view.extent(2) % all != 0) {
    throw ShapeError(message("split_qkv", "the last extent " + std::to_string(view.extent(2)),
                             "be divisible by num_heads + 2 num_kv_heads",
                             std::to_string(num_heads) + " + 2 x " + std::to_string(num_kv_heads)));
  }
  const auto heads = view.split(2, all).transpose(1, 2);
  using T = std::remove_pointer_t<decltype(heads.data())>;
  return QkvHeads<T>{.q = heads.slice(1, 0, num_heads),
                     .k = heads.slice(1, num_heads, num_heads + num_kv_heads),
                     .v = heads.slice(1, num_heads + num_kv_heads, all)};
}

template <TemporaryTensor X>
// they would view a temporary tensor
void split_qkv(X&& x, index_t num_heads, index_t num_kv_heads = 0) = delete;

/// Copies (batch, num_heads, seq, head_dim) into (batch, seq, num_heads * head_dim). Throws
/// ShapeError.
template <TensorLike X, TensorLike Out>
void combine_heads(const X& x, Out&& out) {
  using T = scalar_t<X>;
  ATTN_ASSERT_AXES(X, 4, "combine_heads: x", "(batch, heads, seq, dim)");
  ATTN_ASSERT_OUTPUT(Out, T, 3, "combine_heads: out", "(batch, seq, heads * dim)", "x");
  const auto from = detail::view_as<const T, 4>(x);
  const auto to = detail::view_as<T, 3>(out);
  const Shape<3> expected{from.extent(0), from.extent(2), from.extent(1) * from.extent(3)};
  check_shape("combine_heads", "out", expected, to.shape());
  copy(from, split_heads(to, from.extent(1)));
}

/// Returns the result as a new tensor.
template <TensorLike X>
Tensor3<scalar_t<X>> combine_heads(const X& x) {
  ATTN_ASSERT_AXES(X, 4, "combine_heads: x", "(batch, heads, seq, dim)");
  const auto from = detail::view_as<const scalar_t<X>, 4>(x);
  auto out = Tensor3<scalar_t<X>>::uninitialized(
      {from.extent(0), from.extent(2), from.extent(1) * from.extent(3)});
  combine_heads(from, out);
  return out;
}

ATTN_NAMESPACE_END
