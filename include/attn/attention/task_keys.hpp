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
  TaskKeys(const AttentionProblem<T>& problem, const ForwardKernels<T>& kernels,
           const ForwardScratch<T>& scratch, const RowBlock& block)
      : problem_(problem),
        elements_(kernels.of_keys),
        panel_width_(kernels.rows.panel_width),
        scratch_(scratch),
        b_(block.b),
        head_(block.kv_head) {}

  /// Of values that are of T.
  const T* value(index_t j) const {
    return static_cast<const T*>(problem_.key(problem_.v, b_, head_, j));
  }

  /// The scores that `keys` take, counted from first_key, from the beginning of a panel on: lanes add up the same keys
  /// whatever other rows a tile holds.
  KeyRange scores_of(index_t first_key, KeyRange keys) const {
    // Rounded down, without a division: panels are as wide as a power of two (row_kernels.inc.hpp).
    return {(keys.begin - first_key) & -panel_width_, keys.end - first_key};
  }

  /// K of one block, and V behind it where there is a qv, in panels of NR keys; keys that no row sees are not read but taken
  /// as 0.
  void pack(index_t first_key, KeyRange block) const {
    const index_t d = problem_.head_dim(), score_dim = problem_.score_dim(), NR = panel_width_;
    const KeyRange columns = scores_of(first_key, block);
    T* panel = scratch_.k + columns.begin * score_dim;
    for (index_t j = first_key + columns.begin; j < block.end; j += NR, panel += NR * score_dim) {
      const KeyRange keys{(std::max)(j, block.begin), (std::min)(j + NR, block.end)};
      if (keys.end - keys.begin < NR) std::fill_n(panel, NR * score_dim, T{0});
      for (index_t x = keys.begin; x < keys.end;) {
        const index_t end = problem_.run_end(x, keys.end);
        elements_.pack_rows(end - x, j + NR - x, d, problem_.keys_from(b_, head_, x),
                            panel + (x - j));
        if (problem_.options.qv) {
          elements_.pack_rows(end - x, j + NR - x, score_dim - d,
                              problem_.values_from(b_, head_, x), panel + d * NR + (x - j));
        }
        x = end;
      }
    }
  }

  /// scratch.pointers to the rows of `keys` of k or v.
  const void* const* point_to(const StoredView<const void>& of, index_t kv_head,
                              KeyRange keys) const {
    const void** to = scratch_.pointers;
    for (index_t j = keys.begin; j < keys.end;) {
      const index_t end = problem_.run_end(j, keys.end);
      const void* row = problem_.key(of, b_, kv_head, j);
      for (; j < end; ++j, row = rows_after(row, 1, of)) *to++ = row;
    }
    return scratch_.pointers;
  }

  /// scratch.factors = the scales of `keys` of k or v, counted from first_key.
  void load_factors(const TensorView3<const T>& scales, index_t kv_head, index_t first_key,
                    KeyRange keys) const {
    for (index_t j = keys.begin; j < keys.end;) {
      const index_t end = problem_.run_end(j, keys.end);
      std::copy_n(problem_.scales_from(scales, b_, kv_head, j), end - j,
                  scratch_.factors + (j - first_key));
      j = end;
    }
  }

  /// scratch.v = values of `keys`, counted from first_key.
  void copy_values(index_t first_key, KeyRange keys) const {
    const index_t dv = problem_.head_dim_v(), stride = scratch_.out_stride;
    for (index_t j = keys.begin; j < keys.end;) {
      const index_t end = problem_.run_end(j, keys.end);
      elements_.widen_rows(end - j, dv, problem_.values_from(b_, head_, j),
                           scratch_.v + (j - first_key) * stride, stride);
      j = end;
    }
  }

  /// The same, but 0 where `shown` is -inf for one of `keys`. `few`: values as they are stored, and their scales, or 0, in
  /// scratch.factors, since on the path for few rows scales multiply weights.
  void copy_shown_values(index_t first_key, KeyRange keys, const T* shown, bool few) const {
    const index_t dv = problem_.head_dim_v(), stride = scratch_.out_stride;
    for (index_t j = keys.begin; j < keys.end; ++j) {
      T* to = scratch_.v + (j - first_key) * stride;
      const bool is_hidden = shown[j - keys.begin] == kMinusInf<T>;
      StoredRows<T> value = problem_.values_from(b_, head_, j);
      if (few && value.scales != nullptr) {
        scratch_.factors[j - first_key] = is_hidden ? T{0} : *value.scales;
        value.scales = nullptr;
      }
      if (is_hidden) {
        std::fill_n(to, dv, T{0});
      } else {
        elements_.widen_rows(1, dv, value, to, stride);
      }
    }
  }

  /// Takes two rows of scratch.v, of which the mean is the second.
  const T* mean_of_values(index_t kv_head) const {
    const index_t dv = problem_.head_dim_v();
    const KeyRange keys = problem_.unpadded_keys(b_);
    T *value = scratch_.v, *mean = value + scratch_.out_stride;
    std::fill_n(mean, dv, T{0});
    for (index_t j = keys.begin; j < keys.end; ++j) {
      elements_.widen_rows(1, dv, problem_.values_from(b_, kv_head, j), value, 0);
      for (index_t x = 0; x < dv; ++x) mean[x] += value[x] / static_cast<T>(keys.end - keys.begin);
    }
    return mean;
  }

 private:
  const AttentionProblem<T>& problem_;
  const ElementKernels<T>& elements_;
  index_t panel_width_;
  const ForwardScratch<T>& scratch_;
  index_t b_, head_;
};

}  // namespace detail

ATTN_NAMESPACE_END
