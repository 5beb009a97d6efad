// BackwardKeys: a block of keys and values, laid out for the products of backward attention.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attn/attention/tiling_backward.hpp"

ATTN_NAMESPACE_BEGIN

namespace detail {

/// Keys and values in panels, and keys in rows. Where options have a qv, a key's value stands
/// behind it, as it does in the products of scores.
template <class T>
class BackwardKeys {
 public:
  BackwardKeys(const AttentionProblem<T>& forward, const RowKernels<T>& kernels,
               const GradientKernels<T>& gradients, const BackwardScratch<T>& scratch, index_t b,
               index_t kv_head)
      : forward_(forward),
        kernels_(kernels),
        gradients_(gradients),
        scratch_(scratch),
        b_(b),
        kv_head_(kv_head) {}

  /// Those of a block from key `first` on that some row sees; what no row sees is not read but
  /// taken as 0.
  void pack(index_t first, KeyRange seen) {
    first_ = first;
    const index_t d = forward_.head_dim(), dv = forward_.head_dim_v(), dim = forward_.score_dim();
    pack_panels(forward_.k, d, seen, scratch_.k_panels, 0, dim);
    if (dim > d) pack_panels(forward_.v, dv, seen, scratch_.k_panels, d, dim);
    pack_panels(forward_.v, dv, seen, scratch_.v_panels, 0, dv);
    const T *k = rows(forward_.k, seen.begin), *v = rows(forward_.v, seen.begin);
    for (index_t j = seen.begin; j < seen.end; ++j) {
      T* to = scratch_.k + (j - first) * scratch_.d_stride;
      std::copy_n(k, d, to);
      if (dim > d) std::copy_n(v, dv, to + d);
      k += forward_.k.stride(2);
      v += forward_.v.stride(2);
    }
    const index_t n = seen.end - seen.begin;
    is_finite_ = gradients_.all_finite(n, d, scratch_.k + (seen.begin - first) * scratch_.d_stride,
                                       scratch_.d_stride) &&
                 gradients_.all_finite(n, dv, rows(forward_.v, seen.begin), forward_.v.stride(2));
  }

  /// The first key of the block.
  index_t first() const { return first_; }
  bool is_finite() const { return is_finite_; }

 private:
  const T* rows(const StoredView<const void>& of, index_t j) const {
    return static_cast<const T*>(forward_.key(of, b_, kv_head_, j));
  }

  /// `dim` elements of each key of `keys` into panels of `all`, from element `from` on.
  void pack_panels(const StoredView<const void>& of, index_t dim, KeyRange keys, T* panels,
                   index_t from, index_t all) const {
    const index_t NR = kernels_.panel_width, end = keys.end - first_;
    for (index_t j = (keys.begin - first_) & -NR; j < end; j += NR) {
      const index_t begin = (std::max)(j, keys.begin - first_), stop = (std::min)(j + NR, end);
      T* panel = panels + j * all + from * NR;
      if (stop - begin < NR) std::fill_n(panel, NR * dim, T{0});
      kernels_.pack_part(stop - begin, j + NR - begin, dim, rows(of, first_ + begin), of.stride(2),
                         panel + (begin - j));
    }
  }

  const AttentionProblem<T>& forward_;
  const RowKernels<T>& kernels_;
  const GradientKernels<T>& gradients_;
  const BackwardScratch<T>& scratch_;
  index_t b_, kv_head_;
  index_t first_ = 0;
  bool is_finite_ = true;
};

}  // namespace detail

ATTN_NAMESPACE_END
