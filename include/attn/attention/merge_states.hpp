// merge_states: combines attention over two sets of keys.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>

#include "attn/core/tensor.hpp"
#include "attn/exec/execution.hpp"
#include "attn/exec/row_ranges.hpp"

ATTN_NAMESPACE_BEGIN

/// Merges attention over the keys of a and of b into attention over both. With m = max(lse_a,
/// lse_b),
///   out = (out_a e^(lse_a - m) + out_b e^(lse_b - m)) / (e^(lse_a - m) + e^(lse_b - m)),
///   lse = m + log(the divisor).
/// A fully masked side (lse -inf) leaves the result of the other side; if both are, 0 and -inf.
///
/// Shapes: out_a, out_b, out (batch, num_heads, q_len, head_dim_v); lse_a, lse_b, lse (batch,
/// num_heads, q_len), of any strides; out and lse may be those of a or b. Pass attention sinks to
/// one of the two calls only. Throws ShapeError.
/// Source: Dao, "Flash-Decoding for long-context inference" (2023).
template <TensorLike OutA, TensorLike LseA, TensorLike OutB, TensorLike LseB, TensorLike Out,
          TensorLike Lse>
void merge_states(const OutA& out_a, const LseA& lse_a, const OutB& out_b, const LseB& lse_b,
                  Out&& out, Lse&& lse, const Execution& execution = {}) {
  using T = scalar_t<OutA>;
  ATTN_ASSERT_AXES(OutA, 4, "merge_states: out_a", "(batch, num_heads, q_len, head_dim_v)");
  ATTN_ASSERT_INPUT_LIKE(OutB, OutA, "merge_states: out_b", "out_a");
  ATTN_ASSERT_OUTPUT_LIKE(Out, OutA, "merge_states: out", "out_a");
  ATTN_ASSERT_INPUT(LseA, T, 3, "merge_states: lse_a", "(batch, num_heads, q_len)", "out_a");
  ATTN_ASSERT_INPUT(LseB, T, 3, "merge_states: lse_b", "(batch, num_heads, q_len)", "out_a");
  ATTN_ASSERT_OUTPUT(Lse, T, 3, "merge_states: lse", "(batch, num_heads, q_len)", "out_a");
  const auto a = detail::view_as<const T, 4>(out_a), b = detail::view_as<const T, 4>(out_b);
  const auto log_a = detail::view_as<const T, 3>(lse_a), log_b = detail::view_as<const T, 3>(lse_b);
  const auto to = detail::view_as<T, 4>(out);
  const auto log_to = detail::view_as<T, 3>(lse);
  const Shape<3> per_query{a.extent(0), a.extent(1), a.extent(2)};
  constexpr std::string_view kOut = "(batch, num_heads, q_len, head_dim_v)";
  constexpr std::string_view kLse = "(batch, num_heads, q_len)";
  check_shape("merge_states", "out_b", kOut, a.shape(), b.shape());
  check_shape("merge_states", "out", kOut, a.shape(), to.shape());
  check_shape("merge_states", "lse_a", kLse, per_query, log_a.shape());
  check_shape("merge_states", "lse_b", kLse, per_query, log_b.shape());
  check_shape("merge_states", "lse", kLse, per_query, log_to.shape());

  const index_t dim = a.extent(3);
  const auto merge_row = [&](index_t row) {
    const Shape<3> at_log{row / per_query[2] / per_query[1], row / per_query[2] % per_query[1],
                          row % per_query[2]};
    const Shape<4> at{at_log[0], at_log[1], at_log[2], 0};
    const T la = *log_a.at_index(at_log), lb = *log_b.at_index(at_log);
    constexpr T kNothing = -std::numeric_limits<T>::infinity();
    // The output of a fully masked side is not read: it may hold anything.
    const bool has_a = la != kNothing, has_b = lb != kNothing;
    const T largest = (std::max)(la, lb);
    const T part_a = has_a ? std::exp(la - largest) : T{0},
            part_b = has_b ? std::exp(lb - largest) : T{0};
    const T total = has_a || has_b ? part_a + part_b : T{1};
    const T *from_a = a.at_index(at), *from_b = b.at_index(at);
    T* into = to.at_index(at);
    for (index_t x = 0; x < dim; ++x) {
      const T term_a = has_a ? from_a[x * a.stride(3)] * part_a : T{0};
      const T term_b = has_b ? from_b[x * b.stride(3)] * part_b : T{0};
      into[x * to.stride(3)] = (term_a + term_b) / total;
    }
    *log_to.at_index(at_log) = largest + std::log(total);
  };
  detail::for_rows(execution.threads(), size_of(per_query), dim, merge_row);
}

/// What merge_states() returns.
template <class T>
struct MergedStates {
  Tensor4<T> out;  ///< (batch, num_heads, q_len, head_dim_v)
  Tensor3<T> lse;  ///< (batch, num_heads, q_len)
};

/// Returns the result as new tensors.
template <TensorLike OutA, TensorLike LseA, TensorLike OutB, TensorLike LseB>
MergedStates<scalar_t<OutA>> merge_states(const OutA& out_a, const LseA& lse_a, const OutB& out_b,
                                          const LseB& lse_b, const Execution& execution = {}) {
  using T = scalar_t<OutA>;
  MergedStates<T> merged{Tensor4<T>::uninitialized(const_view(out_a).shape()),
                         Tensor3<T>::uninitialized(const_view(lse_a).shape())};
  merge_states(out_a, lse_a, out_b, lse_b, merged.out, merged.lse, execution);
  return merged;
}

ATTN_NAMESPACE_END
