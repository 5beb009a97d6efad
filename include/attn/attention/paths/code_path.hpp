// CodePath: the tiled path with 8-bit queries and keys.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attn/attention/paths/code_kernels.hpp"
#include "attn/attention/paths/pair_values.hpp"
#include "attn/attention/paths/tile_values.hpp"
#include "attn/attention/paths/tiled_path.hpp"

ATTN_NAMESPACE_BEGIN

namespace detail {

/// scale q . k = scale (q . mean + q . (k - mean)); the second product uses int8 values. Each block
/// of kKeysOfMean positions has its own mean, whatever keys the task's rows see, so that a row has
/// the same bits in every task.
template <class T, class Values>
class CodePath final : public TiledPath<T, Values> {
 public:
  explicit CodePath(const ForwardTask<T>& task)
      : TiledPath<T, Values>(task),
        kernels_(*task.kernels.products.codes),
        scratch_(task.scratch.codes),
        panel_width_(task.kernels.rows.panel_width),
        kept_(task.problem.keys_seen(task.block.b)),
        first_position_(task.problem.lengths(task.block.b).first_key),
        row_bytes_(round_up(task.problem.score_dim(), kernels_.step)) {
    const QueryTiles<T>& queries = task.queries;
    const index_t d = task.problem.score_dim(), tile_rows = queries.tile_rows();
    for (index_t r = 0; r < queries.count() * tile_rows; ++r) {
      const T* query = queries.tile(r / tile_rows) + r % tile_rows * queries.stride();
      scratch_.query_scales[r] =
          task.problem.scale * kernels_.quantize_query(d, query, scratch_.queries + r * row_bytes_,
                                                       row_bytes_, scratch_.starts + r);
    }
  }

  void score(const ScoreTile<T>& tile) override {
    const index_t first_row = tile.rows - task_.rows.all().data(), NR = panel_width_;
    alignas(64) T means[(std::max)(kMaxTileRows, kPairRows) * kMaxMeans];
    kernels_.score_means(task_.queries.tile_rows(), task_.problem.score_dim(), tile.queries,
                         tile.query_stride, scratch_.means, task_.problem.scale, means);
    const CodeQueries<T> queries{.codes = scratch_.queries + first_row * row_bytes_,
                                 .row_bytes = row_bytes_,
                                 .scales = scratch_.query_scales + first_row,
                                 .starts = scratch_.starts + first_row,
                                 .means = means};
    const index_t first_mean = mean_of(tile.first_key);
    for (index_t j = tile.columns.begin; j < tile.columns.end; j += NR) {
      const index_t key = tile.first_key + j, mean = mean_of(key);
      const CodePanel<T> panel{.codes = scratch_.keys + j * row_bytes_,
                               .scales = scratch_.key_scales + j,
                               .mean = mean - first_mean,
                               .shared = (std::min)(first_key_of(mean + 1) - key, NR)};
      kernels_.score_panel(queries, panel, tile.scores + j, tile.stride,
                           this->next_panel(panel.codes));
    }
  }

 private:
  index_t panel_bytes() const override { return panel_width_ * row_bytes_; }

  /// Index of the mean that belongs to a key.
  index_t mean_of(index_t key) const { return (first_position_ + key) / kKeysOfMean; }
  index_t first_key_of(index_t mean) const { return mean * kKeysOfMean - first_position_; }

  /// Columns without a key have a scale of 0 and arbitrary int8 values.
  void pack_keys(index_t first_key, KeyRange block) const override {
    const index_t d = task_.problem.score_dim(), NR = panel_width_;
    const index_t first_mean = mean_of(first_key);
    std::fill(scratch_.key_scales + ((block.begin - first_key) & -NR),
              scratch_.key_scales + round_up(block.end - first_key, NR), T{0});
    std::fill_n(scratch_.means, d * kMaxMeans, T{0});
    for (index_t mean = mean_of(block.begin); first_key_of(mean) < block.end; ++mean) {
      // Scores before the masks are also requested for fully masked keys, which are not part of the
      // mean.
      const index_t first = first_key_of(mean), end = first + kKeysOfMean;
      const KeyRange packed{(std::max)(first, block.begin), (std::min)(end, block.end)};
      const KeyRange kept{std::clamp(kept_.begin, first, end), std::clamp(kept_.end, first, end)};
      KeyRange keys = packed;
      if (kept.begin < kept.end) {
        keys = {(std::min)(packed.begin, kept.begin), (std::max)(packed.end, kept.end)};
      }
      widen_keys(keys);
      kernels_.center_rows(keys.end - keys.begin, kept.begin - keys.begin, kept.end - keys.begin, d,
                           scratch_.centered, scratch_.means + mean - first_mean);
      for (index_t j = packed.begin; j < packed.end;) {
        const index_t column = j - first_key, in_panel = column & (NR - 1);
        const index_t count = (std::min)(NR - in_panel, packed.end - j);
        kernels_.pack_codes(count, d, scratch_.centered + (j - keys.begin) * d, row_bytes_,
                            scratch_.line,
                            scratch_.keys + (column - in_panel) * row_bytes_ + 4 * in_panel,
                            scratch_.key_scales + column);
        j += count;
      }
    }
  }

  /// K, and with qv also V, side by side.
  void widen_keys(KeyRange keys) const {
    const index_t d = task_.problem.head_dim(), score_dim = task_.problem.score_dim();
    T* to = scratch_.centered;
    for (index_t j = keys.begin; j < keys.end;) {
      const index_t end = task_.problem.run_end(j, keys.end);
      task_.kernels.of_keys.widen_rows(end - j, d, task_.problem.keys_from(task_.head, j), to,
                                       score_dim);
      if (task_.problem.options.qv) {
        task_.kernels.of_keys.widen_rows(
            end - j, score_dim - d, task_.problem.values_from(task_.head, j), to + d, score_dim);
      }
      to += (end - j) * score_dim;
      j = end;
    }
  }

  using TiledPath<T, Values>::task_;
  const CodeKernels<T>& kernels_;
  const CodeScratch<T>& scratch_;
  index_t panel_width_;
  KeyRange kept_;  ///< keys that intervals keep for at least one query
  index_t first_position_, row_bytes_;
};

template <class T>
struct CodeProducts {
  /// Targets with pair products use pairs for weights and values.
  static TiledProducts<T> on(Isa isa) {
    const CodeKernels<T>& codes = table_of<CodeKernels<T>>(isa);
    if (multiplies_pairs(isa)) {
      return {.tile_rows = kPairRows,
              .make_path = make_path<CodePath<T, PairValues<T>>, T>,
              .codes = &codes,
              .pairs = &table_of<PairKernels<T>>(isa)};
    }
    return {.tile_rows = table_of<RowKernels<T>>(isa).tile_rows,
            .make_path = make_path<CodePath<T, TileValues<T>>, T>,
            .codes = &codes};
  }
};

}  // namespace detail

ATTN_NAMESPACE_END
