// point_to_rows(), copy_scales(): where rows of keys or values lie, one by one.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attn/attention/call/problem.hpp"

ATTN_NAMESPACE_BEGIN

namespace detail {

/// Sets to[0 .. n) to the rows of n `keys` of a head in k or v.
template <class T>
void point_to_rows(const AttentionProblem<T>& problem, const StoredView<const void>& of,
                   const KeyHead& head, KeyRange keys, const void** to) {
  if (head.list != nullptr && problem.has_one_stride()) {
    const void* const first = problem.key(of, {head.b, head.kv_head}, 0);
    const KeyHead list = head;  // a copy, which the writes below cannot change
    const StoredView<const void> rows = of;
    for (index_t j = keys.begin; j < keys.end; ++j) *to++ = rows_after(first, list.key(j), rows);
    return;
  }
  for (index_t j = keys.begin; j < keys.end;) {
    const index_t end = problem.run_end(j, keys.end);
    const void* row = problem.key(of, head, j);
    for (; j < end; ++j, row = rows_after(row, 1, of)) *to++ = row;
  }
}

/// Copies the scales of `keys` of a head from k_scales or v_scales.
template <class T>
void copy_scales(const AttentionProblem<T>& problem, const TensorView3<const T>& scales,
                 const KeyHead& head, KeyRange keys, T* to) {
  if (head.list != nullptr && problem.has_one_stride()) {
    const T* const first = problem.scales_from(scales, {head.b, head.kv_head}, 0);
    const KeyHead list = head;
    const index_t stride = scales.stride(2);
    for (index_t j = keys.begin; j < keys.end; ++j) *to++ = first[list.key(j) * stride];
    return;
  }
  for (index_t j = keys.begin; j < keys.end;) {
    const index_t end = problem.run_end(j, keys.end);
    to = std::copy_n(problem.scales_from(scales, head, j), end - j, to);
    j = end;
  }
}

}  // namespace detail

ATTN_NAMESPACE_END
