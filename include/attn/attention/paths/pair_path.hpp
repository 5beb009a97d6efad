// PairPath: the tiled path for bfloat16, or floats split into it, on targets that multiply pairs.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attn/attention/paths/pair_values.hpp"
#include "attn/attention/paths/tiled_path.hpp"

ATTN_NAMESPACE_BEGIN

namespace detail {

/// Multiplies elements as stored, or floats as one bfloat16 or the sum of two, and sums in T.
template <class T>
class PairPath final : public TiledPath<T, PairValues<T>> {
 public:
  explicit PairPath(const ForwardTask<T>& task)
      : TiledPath<T, PairValues<T>>(task),
        kernels_(*task.kernels.products.pairs),
        scratch_(task.scratch.pairs),
        is_float_(task.problem.q.element() == DType::F32),
        d_(scratch_.padded_row(task.problem.head_dim())) {
    const TaskRows<T>& rows = task.rows;
    for (index_t r = 0; r < rows.count(); ++r) {
      copy_row(task.problem.query(task.block.b, rows[r].h, rows[r].i), true,
               scratch_.queries + r * d_);
    }
    // Rows that pad the last tile.
    std::fill(scratch_.queries + rows.count() * d_,
              scratch_.queries + task.queries.count() * kPairRows * d_, bfloat16{});
  }

  void score(const ScoreTile<T>& tile) override {
    const index_t first_row = tile.rows - task_.rows.all().data();
    const index_t panels = (tile.num_columns() + kPairColumns - 1) / kPairColumns;
    kernels_.score_panels(panels, d_, scratch_.queries + first_row * d_,
                          scratch_.keys + tile.columns.begin * d_ / 2, task_.problem.scale,
                          tile.scores + tile.columns.begin, tile.stride);
  }

 private:
  index_t panel_bytes() const override { return kPairColumns * d_ * index_t{sizeof(bfloat16)}; }

  /// Copies a row of bfloat16 and pads it with zeros.
  void copy_stored(const void* from, void* to) const {
    const auto size = static_cast<std::size_t>(task_.problem.head_dim()) * sizeof(bfloat16);
    std::memcpy(to, from, size);
    std::memset(static_cast<std::byte*>(to) + size, 0,
                static_cast<std::size_t>(d_) * sizeof(bfloat16) - size);
  }

  /// Copies or splits one row and pads it with zeros. With two parts, the factors of the products
  /// follow one another: a query has head, head, tail, and a key tail, head, head.
  void copy_row(const void* from, bool is_query, bfloat16* to) const {
    const index_t d = task_.problem.head_dim();
    if (!is_float_) return copy_stored(from, to);
    if (scratch_.parts == 1) {
      kernels_.round_row(d, static_cast<const T*>(from), to, 0);
      std::fill(to + d, to + d_, bfloat16{});
      return;
    }
    const index_t padded = round_up(d, kPairStep);
    kernels_.round_row(d, static_cast<const T*>(from), to + padded, is_query ? padded : -padded);
    for (index_t part = 0; part < 3; ++part) {
      std::fill(to + part * padded + d, to + (part + 1) * padded, bfloat16{});
    }
    std::copy_n(to + padded, d, is_query ? to : to + 2 * padded);
  }

  void pack_keys(index_t first_key, KeyRange block) const override {
    const index_t pairs = d_ / 2;
    const index_t first_column = (block.begin - first_key) & -kPairColumns;
    T* panel = scratch_.keys + first_column * pairs;
    for (index_t j = first_key + first_column; j < block.end;
         j += kPairColumns, panel += kPairColumns * pairs) {
      const KeyRange keys{(std::max)(j, block.begin), (std::min)(j + kPairColumns, block.end)};
      if (keys.end - keys.begin < kPairColumns) std::fill_n(panel, kPairColumns * pairs, T{0});
      for (index_t x = keys.begin; x < keys.end; ++x) {
        const void* const from = task_.problem.key(task_.problem.k, task_.head, x);
        T* const line = scratch_.lines + (x - keys.begin) * pairs;
        if (is_float_) {
          copy_row(from, false, scratch_.key);
          std::memcpy(line, scratch_.key, static_cast<std::size_t>(d_) * sizeof(bfloat16));
        } else {
          copy_stored(from, line);
        }
      }
      task_.kernels.rows.pack_part(keys.end - keys.begin, j + kPairColumns - keys.begin, pairs,
                                   scratch_.lines, pairs, panel + (keys.begin - j));
    }
  }

  using TiledPath<T, PairValues<T>>::task_;
  const PairKernels<T>& kernels_;
  const PairScratch<T>& scratch_;
  bool is_float_;
  index_t d_;  ///< elements of a padded row
};

/// For `isa` with pair products.
template <class T>
TiledProducts<T> pair_products(Isa isa) {
  return {.tile_rows = kPairRows,
          .make_path = make_path<PairPath<T>, T>,
          .pairs = &table_of<PairKernels<T>>(isa)};
}

}  // namespace detail

ATTN_NAMESPACE_END
