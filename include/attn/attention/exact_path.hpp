// ExactPath: the tiled path with keys packed as floats, products summed in the type of the softmax.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attn/attention/tiled_path.hpp"

ATTN_NAMESPACE_BEGIN

namespace detail {

template <class T>
class ExactPath final : public TiledPath<T> {
 public:
  ExactPath(const AttentionProblem<T>& problem, const ForwardKernels<T>& kernels,
            const SequenceTiling& tiling, const ForwardScratch<T>& scratch, const TaskRows<T>& rows,
            const QueryTiles<T>& queries, const RowBlock& block, const RowBlock& next)
      : TiledPath<T>(problem, kernels, tiling, scratch, rows, queries, block, next),
        problem_(problem),
        kernels_(kernels.rows),
        of_keys_(kernels.of_keys),
        scratch_(scratch),
        at_(block) {}

  void score(const ScoreTile<T>& tile) override {
    const index_t d = problem_.score_dim();
    for (index_t j = tile.columns.begin; j < tile.columns.end; j += kernels_.panel_width) {
      const T* panel = scratch_.k + j * d;
      kernels_.score_panel(d, tile.queries, tile.query_stride, panel, problem_.scale,
                           tile.scores + j, tile.stride, this->next_panel(panel));
    }
  }

 private:
  index_t panel_bytes() const override {
    return kernels_.panel_width * problem_.score_dim() * index_t{sizeof(T)};
  }

  /// K, and V behind it where there is a qv, in panels of NR keys; keys that no row sees are not
  /// read but taken as 0.
  void pack_keys(index_t first_key, KeyRange block) const override {
    const index_t d = problem_.head_dim(), score_dim = problem_.score_dim(),
                  NR = kernels_.panel_width;
    const index_t first_column = (block.begin - first_key) & -NR;
    T* panel = scratch_.k + first_column * score_dim;
    for (index_t j = first_key + first_column; j < block.end; j += NR, panel += NR * score_dim) {
      const KeyRange keys{(std::max)(j, block.begin), (std::min)(j + NR, block.end)};
      if (keys.end - keys.begin < NR) std::fill_n(panel, NR * score_dim, T{0});
      for (index_t x = keys.begin; x < keys.end;) {
        const index_t end = problem_.run_end(x, keys.end);
        of_keys_.pack_rows(end - x, j + NR - x, d, problem_.keys_from(at_.b, at_.kv_head, x),
                           panel + (x - j));
        if (problem_.options.qv) {
          of_keys_.pack_rows(end - x, j + NR - x, score_dim - d,
                             problem_.values_from(at_.b, at_.kv_head, x), panel + d * NR + (x - j));
        }
        x = end;
      }
    }
  }

  const AttentionProblem<T>& problem_;
  const RowKernels<T>& kernels_;
  const ElementKernels<T>& of_keys_;
  const ForwardScratch<T>& scratch_;
  RowBlock at_;
};

}  // namespace detail

ATTN_NAMESPACE_END
