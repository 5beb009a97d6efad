// TileValues: weights times values, in place or copied.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attn/attention/tasks/row_pointers.hpp"
#include "attn/attention/tasks/task.hpp"

ATTN_NAMESPACE_BEGIN

namespace detail {

template <class T>
class TileValues {
 public:
  explicit TileValues(const ForwardTask<T>& task)
      : task_(task),
        has_copies_(task.problem.scattered() || task.problem.widens_keys() ||
                    task.problem.v.stride(2) != task.problem.head_dim_v()) {}

  /// Copies the values of `keys`, if needed, of the block that begins at first_key.
  void load(index_t first_key, KeyRange keys) const {
    if (!has_copies_) return;
    if (!task_.problem.scattered()) return copy(first_key, keys.begin, keys.end);
    const RowPointers<T> rows(task_, task_.problem.v, task_.problem.v_scales, keys);
    rows.copy(keys, copy_of(keys.begin - first_key), task_.scratch.out_stride);
  }

  /// tile.sums = rescale tile.sums + weights v; the weights are stored in tile.scores.
  void add(const ScoreTile<T>& tile, const T* rescale) const {
    if (has_copies_) return add_copied(tile, rescale);
    const auto& v = task_.problem.v;
    const void* values = task_.problem.key(v, task_.head, tile.keys.begin);
    add(tile, static_cast<const T*>(values), v.stride(2), rescale);
  }

  /// Copies values like load(), but writes 0 for keys whose `kept` is -inf.
  void copy_kept(index_t first_key, KeyRange keys, const T* kept) const {
    for (index_t j = keys.begin; j < keys.end; ++j) {
      if (kept[j - keys.begin] == kMinusInf<T>) {
        std::fill_n(copy_of(j - first_key), task_.problem.head_dim_v(), T{0});
      } else {
        copy(first_key, j, j + 1);
      }
    }
  }

  /// tile.sums = rescale tile.sums + weights v for the values that copy_kept() copied.
  void add_copied(const ScoreTile<T>& tile, const T* rescale) const {
    add(tile, copy_of(tile.first_column()), task_.scratch.out_stride, rescale);
  }

 private:
  T* copy_of(index_t column) const { return task_.scratch.v + column * task_.scratch.out_stride; }

  /// Copies the values of keys [begin, end), which lie one stride apart.
  void copy(index_t first_key, index_t begin, index_t end) const {
    const AttentionProblem<T>& problem = task_.problem;
    task_.kernels.of_keys.widen_rows(end - begin, problem.head_dim_v(),
                                     problem.values_from(task_.head, begin),
                                     copy_of(begin - first_key), task_.scratch.out_stride);
  }

  void add(const ScoreTile<T>& tile, const T* values, index_t value_stride,
           const T* rescale) const {
    task_.kernels.rows.add_values_tile(task_.problem.head_dim_v(), tile.num_keys(),
                                       tile.key_scores(0), tile.stride, values, value_stride,
                                       tile.sums, task_.scratch.out_stride, rescale);
  }

  const ForwardTask<T>& task_;
  /// Values of a block are copied to contiguous rows, once for all tiles, unless they are
  /// contiguous floats: rows a power of two apart, as in (batch, seq, 16 heads, 64), map to few
  /// cache sets, which took up to 1.2 times as long (attention_bench attention_1024_seq_major).
  bool has_copies_;
};

}  // namespace detail

ATTN_NAMESPACE_END
