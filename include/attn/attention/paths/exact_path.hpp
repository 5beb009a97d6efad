// ExactPath: the tiled path with keys widened when packed.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attn/attention/paths/tile_values.hpp"
#include "attn/attention/paths/tiled_path.hpp"

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
    const ElementKernels<T>& of_keys = task_.kernels.of_keys;
    const index_t b = task_.block.b, kv_head = task_.block.kv_head;
    const index_t d = problem.head_dim(), score_dim = problem.score_dim(),
                  NR = task_.kernels.rows.panel_width;
    const index_t first_column = (block.begin - first_key) & -NR;
    T* panel = task_.scratch.k + first_column * score_dim;
    for (index_t j = first_key + first_column; j < block.end; j += NR, panel += NR * score_dim) {
      const KeyRange keys{(std::max)(j, block.begin), (std::min)(j + NR, block.end)};
      if (keys.end - keys.begin < NR) std::fill_n(panel, NR * score_dim, T{0});
      for (index_t x = keys.begin; x < keys.end;) {
        const index_t end = problem.run_end(x, keys.end);
        of_keys.pack_rows(end - x, j + NR - x, d, problem.keys_from(b, kv_head, x),
                          panel + (x - j));
        if (problem.options.qv) {
          of_keys.pack_rows(end - x, j + NR - x, score_dim - d, problem.values_from(b, kv_head, x),
                            panel + d * NR + (x - j));
        }
        x = end;
      }
    }
  }

  using TiledPath<T, TileValues<T>>::task_;
};

}  // namespace detail

ATTN_NAMESPACE_END
