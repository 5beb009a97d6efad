// BackwardKeys: a block of keys and values, packed for the products of backward attention.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attn/attention/backward/task.hpp"

ATTN_NAMESPACE_BEGIN

namespace detail {

/// Keys and values packed into panels, and keys also in rows. With options.qv, each key is followed
/// by its value, as in the products q . k + qv . v.
template <class T>
class BackwardKeys {
 public:
  explicit BackwardKeys(const BackwardTask<T>& task)
      : task_(task),
        forward_(task.problem.forward),
        head_(forward_.key_head(task.b, task.kv_head)) {}

  /// Packs the keys `seen`, each visible to at least one row, of the block that begins at key
  /// `first`. Other keys are not read; their columns are 0.
  void pack(index_t first, KeyRange seen) {
    first_ = first;
    const index_t d = forward_.head_dim(), dv = forward_.head_dim_v(), dim = forward_.score_dim();
    pack_panels(forward_.k, d, seen, task_.scratch.k_panels, 0, dim);
    if (dim > d) pack_panels(forward_.v, dv, seen, task_.scratch.k_panels, d, dim);
    pack_panels(forward_.v, dv, seen, task_.scratch.v_panels, 0, dv);
    is_finite_ = true;
    for (index_t j = seen.begin; j < seen.end;) {
      const index_t end = forward_.run_end(j, seen.end), n = end - j;
      const T *k = rows(forward_.k, j), *v = rows(forward_.v, j);
      is_finite_ = is_finite_ && task_.gradients.all_finite(n, d, k, forward_.k.stride(2)) &&
                   task_.gradients.all_finite(n, dv, v, forward_.v.stride(2));
      for (; j < end; ++j, k += forward_.k.stride(2), v += forward_.v.stride(2)) {
        T* to = task_.scratch.k + (j - first) * task_.scratch.d_stride;
        std::copy_n(k, d, to);
        if (dim > d) std::copy_n(v, dv, to + d);
      }
    }
  }

  const KeyHead& head() const { return head_; }
  /// The first key of the block.
  index_t first() const { return first_; }
  bool is_finite() const { return is_finite_; }

 private:
  const T* rows(const StoredView<const void>& of, index_t j) const {
    return static_cast<const T*>(forward_.key(of, head_, j));
  }

  /// Packs `dim` elements of each of `keys` as elements [from, from + dim) of `all` in each panel.
  void pack_panels(const StoredView<const void>& of, index_t dim, KeyRange keys, T* panels,
                   index_t from, index_t all) const {
    const index_t NR = task_.kernels.panel_width, end = keys.end - first_;
    for (index_t j = (keys.begin - first_) & -NR; j < end; j += NR) {
      const index_t begin = (std::max)(j, keys.begin - first_), stop = (std::min)(j + NR, end);
      T* panel = panels + j * all + from * NR;
      if (stop - begin < NR) std::fill_n(panel, NR * dim, T{0});
      for (index_t x = begin; x < stop;) {
        const index_t last = forward_.run_end(first_ + x, first_ + stop) - first_;
        task_.kernels.pack_part(last - x, j + NR - x, dim, rows(of, first_ + x), of.stride(2),
                                panel + (x - j));
        x = last;
      }
    }
  }

  BackwardTask<T> task_;
  const AttentionProblem<T>& forward_;
  KeyHead head_;
  index_t first_ = 0;
  bool is_finite_ = true;
};

}  // namespace detail

ATTN_NAMESPACE_END
