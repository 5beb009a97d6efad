// RowPointers: scattered keys or values of a block, copied row by row.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attn/attention/call/key_rows.hpp"
#include "attn/attention/tasks/task.hpp"

ATTN_NAMESPACE_BEGIN

namespace detail {

/// Rows of some keys of a block in k or v, with their scales. Uses scratch.pointers and
/// scratch.scales.
template <class T>
class RowPointers {
 public:
  RowPointers(const ForwardTask<T>& task, const StoredView<const void>& of,
              const TensorView3<const T>& scales, KeyRange keys)
      : task_(task), keys_(keys), dim_(of.extent(3)), has_scales_(scales) {
    point_to_rows(task.problem, of, task.head, keys, task.scratch.pointers);
    if (has_scales_) copy_scales(task.problem, scales, task.head, keys, task.scratch.scales);
  }

  /// to = rows of `keys`, times their scales; also prefetches those that follow.
  void copy(KeyRange keys, T* to, index_t to_stride) const {
    const index_t at = keys.begin - keys_.begin;
    task_.kernels.of_keys.copy_rows(
        keys.end - keys.begin, keys_.end - keys.begin, dim_, task_.scratch.pointers + at,
        has_scales_ ? task_.scratch.scales + at : nullptr, to, to_stride);
  }

 private:
  const ForwardTask<T>& task_;
  KeyRange keys_;
  index_t dim_;
  bool has_scales_;
};

}  // namespace detail

ATTN_NAMESPACE_END
