// ExactPath: the tiled path with keys widened when packed.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attn/attention/paths/tile_values.hpp"
#include "attn/attention/paths/tiled_path.hpp"
#include "attn/attention/tasks/row_pointers.hpp"

ATTN_NAMESPACE_BEGIN

namespace detail {

template <class T>
class ExactPath final : public TiledPath<T, TileValues<T>> {
 public:
  using TiledPath<T, TileValues<T>>::TiledPath;

  void score(const ScoreTile<T>& tile) override {
    const AttentionProblem<T>& problem = task_.problem;
    const RowKernels<T>& kernels = task_.kernels.rows;
    const index_t d = problem.score_dim();
    for (index_t j = tile.columns.begin; j < tile.columns.end; j += kernels.panel_width) {
      const T* panel = task_.scratch.k + j * d;
      kernels.score_panel(d, tile.queries, tile.query_stride, panel, problem.scale, tile.scores + j,
                          tile.stride, this->next_panel(panel));
    }
  }

 private:
  index_t panel_bytes() const override {
    return task_.kernels.rows.panel_width * task_.problem.score_dim() * index_t{sizeof(T)};
  }

  /// Packs K, and with qv also V as further elements of each key, into panels of NR keys. Fully
  /// masked keys are not read; their columns are 0.
  void pack_keys(index_t first_key, KeyRange block) const override {
    const AttentionProblem<T>& problem = task_.problem;
    T* panels = task_.scratch.k;
    pack(problem.k, problem.k_scales, first_key, block, panels);
    if (!problem.options.qv) return;
    panels += problem.head_dim() * task_.kernels.rows.panel_width;
    pack(problem.v, problem.v_scales, first_key, block, panels);
  }

  /// Packs k or v as some of the elements of each key; `panels` points to the first of them.
  void pack(const StoredView<const void>& of, const TensorView3<const T>& scales, index_t first_key,
            KeyRange block, T* panels) const {
    const AttentionProblem<T>& problem = task_.problem;
    const RowKernels<T>& kernels = task_.kernels.rows;
    const index_t n = of.extent(3), score_dim = problem.score_dim(), NR = kernels.panel_width;
    const KeyRange none{block.begin, block.begin};
    const RowPointers<T> rows(task_, of, scales, problem.scattered() ? block : none);
    const index_t first_column = (block.begin - first_key) & -NR;
    T* panel = panels + first_column * score_dim;
    for (index_t j = first_key + first_column; j < block.end; j += NR, panel += NR * score_dim) {
      const KeyRange keys{(std::max)(j, block.begin), (std::min)(j + NR, block.end)};
      const index_t count = keys.end - keys.begin, room = j + NR - keys.begin;
      T* to = panel + (keys.begin - j);
      if (count < NR) std::fill_n(panel, NR * n, T{0});
      if (problem.run_end(keys.begin, keys.end) < keys.end) {
        // Copied side by side first: packing one column at a time writes whole vectors for each.
        rows.copy(keys, task_.scratch.lines, n);
        kernels.pack_part(count, room, n, task_.scratch.lines, n, to);
      } else {
        task_.kernels.of_keys.pack_rows(count, room, n,
                                        problem.rows_from(of, scales, task_.head, keys.begin), to);
      }
    }
  }

  using TiledPath<T, TileValues<T>>::task_;
};

}  // namespace detail

ATTN_NAMESPACE_END
