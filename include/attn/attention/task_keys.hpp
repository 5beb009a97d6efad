// TaskKeys: the keys and values of one task, as the kernels take them: packed, copied or pointed to.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attn/attention/task_rows.hpp"

ATTN_NAMESPACE_BEGIN

namespace detail {

template <class T>
class TaskKeys {
 public:
  /// Those of `block`, into the arrays of `scratch`; where nothing else is said, of its first key/value head.
  TaskKeys(const AttentionProblem<T>& problem, const RowKernels<T>& kernels,
           const ForwardScratch<T>& scratch, const RowBlock& block)
      : problem_(problem),
        kernels_(kernels),
        scratch_(scratch),
        b_(block.b),
        head_(block.kv_head) {}

  const T* value(index_t j) const { return problem_.key(problem_.v, b_, head_, j); }

  /// The scores that `keys` take, counted from first_key, from the beginning of a panel on: lanes add up the same keys
  /// whatever other rows a tile holds.
  KeyRange scores_of(index_t first_key, KeyRange keys) const {
    // Rounded down, without a division: panels are as wide as a power of two (row_kernels.inc.hpp).
    return {(keys.begin - first_key) & -kernels_.panel_width, keys.end - first_key};
  }

  /// K of one block, and V behind it where there is a qv, in panels of NR keys; keys that no row sees are not read but taken as 0.
  void pack(index_t first_key, KeyRange block) const {
    const index_t d = problem_.head_dim(), score_dim = problem_.score_dim();
    const index_t stride = problem_.k.stride(2), NR = kernels_.panel_width;
    const KeyRange columns = scores_of(first_key, block);
    T* panel = scratch_.k + columns.begin * score_dim;
    for (index_t j = first_key + columns.begin; j < block.end; j += NR, panel += NR * score_dim) {
      const KeyRange keys{std::max(j, block.begin), std::min(j + NR, block.end)};
      if (keys.end - keys.begin < NR) std::fill_n(panel, NR * score_dim, T{0});
      for (index_t x = keys.begin; x < keys.end;) {
        const index_t end = problem_.run_end(x, keys.end);
        kernels_.pack_part(end - x, j + NR - x, d, problem_.key(problem_.k, b_, head_, x), stride,
                           panel + (x - j));
        if (problem_.options.qv) {
          kernels_.pack_part(end - x, j + NR - x, score_dim - d,
                             problem_.key(problem_.v, b_, head_, x), problem_.v.stride(2),
                             panel + d * NR + (x - j));
        }
        x = end;
      }
    }
  }

  /// scratch.pointers to the rows of `keys` of k or v.
  const T* const* point_to(const TensorView4<const T>& of, index_t kv_head, KeyRange keys) const {
    const T** to = scratch_.pointers;
    const index_t stride = of.stride(2);
    for (index_t j = keys.begin; j < keys.end;) {
      const index_t end = problem_.run_end(j, keys.end);
      const T* row = problem_.key(of, b_, kv_head, j);
      for (; j < end; ++j, row += stride) *to++ = row;
    }
    return scratch_.pointers;
  }

  /// scratch.v = values of `keys`, counted from first_key; 0 where `shown`, if given, is -inf for one of `keys`.
  void copy_values(index_t first_key, KeyRange keys, const T* shown) const {
    const index_t dv = problem_.head_dim_v();
    for (index_t j = keys.begin; j < keys.end; ++j) {
      T* to = scratch_.v + (j - first_key) * scratch_.out_stride;
      if (shown != nullptr && shown[j - keys.begin] == kMinusInf<T>) {
        std::fill_n(to, dv, T{0});
      } else {
        std::copy_n(value(j), dv, to);
      }
    }
  }

  void mean_of_values(index_t kv_head, T* out) const {
    const index_t dv = problem_.head_dim_v();
    const KeyRange keys = problem_.unpadded_keys(b_);
    std::fill_n(out, dv, T{0});
    for (index_t j = keys.begin; j < keys.end; ++j) {
      const T* v = problem_.key(problem_.v, b_, kv_head, j);
      for (index_t x = 0; x < dv; ++x) out[x] += v[x] / static_cast<T>(keys.end - keys.begin);
    }
  }

 private:
  const AttentionProblem<T>& problem_;
  const RowKernels<T>& kernels_;
  const ForwardScratch<T>& scratch_;
  index_t b_, head_;
};

}  // namespace detail

ATTN_NAMESPACE_END
