// Kernel text: products in tiles of bfloat16, and the tile block shared with int8.
// SPDX-License-Identifier: Apache-2.0
//
// Every element of C is the sum over tiles of 32 k, in the order of k, however few rows there are,
// so that a row has the same bits alone and together with others. docs/precision.md describes how a
// tile sums. k is padded with zeros to whole tiles. A and B are bfloat16, or floats in one or two
// parts of bfloat16 (Parts).

/// Rows and columns of one block of sums: two tiles of rows by two panels of weights, so that each
/// tile is loaded once for two products.
inline constexpr index_t kTileRows = 2 * Tiles::kRows, kTileColumns = 2 * Tiles::kRows;

/// Bytes of k that are multiplied at once: two tiles of rows and two panels of this depth fit in L1
/// twice, so that the panels stay there for all rows.
inline constexpr index_t kTileDepth = 512;

/// Loads tile registers 0 to 3 with the block of 32 x 32 sums at `sums`, whose rows lie `row`
/// elements apart, or with zero unless are_there.
template <class T>
inline void load_sums(const T* sums, index_t row, bool are_there) {
  if (are_there) {
    const index_t bytes = row * index_t{sizeof(T)};
    Tiles::load<0>(sums, bytes);
    Tiles::load<1>(sums + 16, bytes);
    Tiles::load<2>(sums + 16 * row, bytes);
    Tiles::load<3>(sums + 16 * row + 16, bytes);
  } else {
    Tiles::zero<0>();
    Tiles::zero<1>();
    Tiles::zero<2>();
    Tiles::zero<3>();
  }
}
template <class T>
inline void store_sums(T* sums, index_t row) {
  const index_t bytes = row * index_t{sizeof(T)};
  Tiles::store<0>(sums, bytes);
  Tiles::store<1>(sums + 16, bytes);
  Tiles::store<2>(sums + 16 * row, bytes);
  Tiles::store<3>(sums + 16 * row + 16, bytes);
}

/// Tile registers 0 to 3 += two rows of tiles of A by two panels of B, over `steps` tiles of k.
template <class Products>
inline void add_products(index_t steps, const void* a0, const void* a1, const void* b0,
                         const void* b1) {
  const auto at = [](const void* p, index_t step) {
    return static_cast<const char*>(p) + step * Tiles::kBytes;
  };
  for (index_t s = 0; s < steps; ++s) {
    Tiles::load<4>(at(a0, s), 64);
    Tiles::load<6>(at(b0, s), 64);
    Products::template add<0, 4, 6>();
    Tiles::load<7>(at(b1, s), 64);
    Products::template add<1, 4, 7>();
    Tiles::load<5>(at(a1, s), 64);
    Products::template add<2, 5, 6>();
    Products::template add<3, 5, 7>();
  }
}

/// Bytes to prefetch ahead. Emerald Rapids, one thread, one row: 0.6 of the time (attn_report
/// gemv_bf16).
inline constexpr index_t kTilePrefetch = 8 * Tiles::kBytes;
ATTN_INLINE void prefetch_tile(const char* at) {
  ATTN_UNROLL
  for (int line = 0; line < Tiles::kBytes; line += 64) __builtin_prefetch(at + line, 0, 2);
}

/// Tile registers 0 and 1 += one row of tiles of A by two panels of B, for up to 16 rows; the time
/// is that of reading the panels. Rows of A are a_row bytes apart, its tiles a_step.
template <class Products>
inline void add_products_of_few(index_t steps, const char* a, index_t a_row, index_t a_step,
                                const char* b0, const char* b1) {
  for (index_t s = 0; s < steps; ++s, a += a_step, b0 += Tiles::kBytes, b1 += Tiles::kBytes) {
    Tiles::load<4>(a, a_row);
    prefetch_tile(b0 + kTilePrefetch);
    Tiles::load<6>(b0, 64);
    Products::template add<0, 4, 6>();
    prefetch_tile(b1 + kTilePrefetch);
    Tiles::load<7>(b1, 64);
    Products::template add<1, 4, 7>();
  }
}

#include "attn/kernels/gemm/gemm_tile_parts.inc.hpp"

/// Packs weights: panels of 16 columns one after another, each with all its tiles of k.
template <class Parts>
inline void pack_weight_tiles(const detail::PackProblem<typename Parts::Element>& problem,
                              const Executor&, Workspace&) {
  const auto& b = problem.b;
  const ElementsMatrix<typename Parts::Element> matrix{.data = b.data(),
                                                       .k_stride = b.stride(0),
                                                       .column_stride = b.stride(1),
                                                       .k = b.extent(0),
                                                       .n = b.extent(1)};
  const index_t steps = (matrix.k + kTileK - 1) / kTileK;
  auto* const packed = reinterpret_cast<bfloat16*>(problem.packed);
  for (index_t j = 0; j < matrix.n; j += 16) {
    pack_tiles<Parts>(matrix, j, 0, steps, packed + j * steps * kTileK * Parts::kParts);
  }
}

inline void unpack_weight_tiles(const detail::UnpackProblem<bfloat16>& problem, const Executor&,
                                Workspace&) {
  const index_t steps = (problem.k + kTileK - 1) / kTileK;
  for (index_t row = 0; row < problem.to.extent(0); ++row) {
    const index_t column = problem.first + row, j = column / 16 * 16;
    const bfloat16* const panel = problem.packed + j * steps * kTileK + 2 * (column - j);
    for (index_t p = 0; p < problem.k; ++p) problem.to(row, p) = panel[p / 2 * 32 + p % 2];
  }
}

/// One product of a batch: rows of A packed into tiles, and the epilogue's bias.
template <class Parts>
struct TileProduct {
  const detail::ElementsProblem<typename Parts::Element>& problem;
  const bfloat16* packed_b;
  ElementsMatrix<typename Parts::Element> b;  ///< where packed_b is not given
  index_t batch, first_row, rows;             ///< of C
  index_t steps;                              ///< tiles of k
  const bfloat16* a;  ///< (tile of rows, step, part, 16, 32); of one row (step, part, 32)
  const float* bias;

  /// Up to 16 rows by packed weights.
  bool is_few() const { return packed_b != nullptr && rows <= Tiles::kRows; }
};

/// Number of columns to which the epilogue is applied at once, and the floats between rows of their
/// sums: an odd number of cache lines, so that rows map to different sets.
inline constexpr index_t kFinishedColumns = 128, kSumsRow = kFinishedColumns + 16;

/// Rows [i0, i1) by columns [j0, j1), at most kFinishedColumns. `panels`: room for two panels of
/// kTileDepth bytes of k, if B is not packed.
template <class Parts>
inline void multiply_tiles(const TileProduct<Parts>& g, index_t i0, index_t i1, index_t j0,
                           index_t j1, float* sums, bfloat16* panels) {
  constexpr index_t kStepElements = Parts::kParts * kTileElements;
  constexpr index_t kSteps = kTileDepth / Tiles::kRowBytes / Parts::kParts;
  const index_t column_elements = g.steps * kTileK * Parts::kParts;
  for (index_t j = j0; j < j1; j += kTileColumns) {
    const index_t second = j + 16 < j1 ? j + 16 : j;
    if (g.is_few()) {
      const auto panel = [&](index_t column) {
        return reinterpret_cast<const char*>(g.packed_b + column * column_elements);
      };
      const bool is_one = g.rows == 1;
      Tiles::zero<0>();
      Tiles::zero<1>();
      Parts::add_few(g.steps, reinterpret_cast<const char*>(g.a), is_one ? 0 : 64,
                     is_one ? 64 : Tiles::kBytes, panel(j), panel(second));
      Tiles::store<0>(sums + j - j0, kSumsRow * index_t{sizeof(float)});
      Tiles::store<1>(sums + j - j0 + 16, kSumsRow * index_t{sizeof(float)});
      continue;
    }
    // One pass even for k = 0: the sums are 0.
    for (index_t step = 0; step == 0 || step < g.steps; step += kSteps) {
      const index_t count = std::min(g.steps - step, kSteps);
      const bfloat16 *b0, *b1;
      if (g.packed_b != nullptr) {
        b0 = g.packed_b + j * column_elements + step * kStepElements;
        b1 = g.packed_b + second * column_elements + step * kStepElements;
      } else {
        b0 = panels;
        b1 = second == j ? b0 : panels + kSteps * kStepElements;
        pack_tiles<Parts>(g.b, j, step, step + count, panels);
        if (second != j) {
          pack_tiles<Parts>(g.b, second, step, step + count, panels + kSteps * kStepElements);
        }
      }
      for (index_t i = i0; i < i1; i += kTileRows) {
        float* const to = sums + (i - i0) * kSumsRow + j - j0;
        const bfloat16* const a = g.a + i * column_elements + step * kStepElements;
        load_sums(to, kSumsRow, step > 0);
        Parts::add(count, a, a + g.steps * kStepElements, b0, b1);
        store_sums(to, kSumsRow);
      }
    }
  }
  detail::GemmProblem<float> product{};
  product.c = sums;
  product.c_row = kSumsRow;
  product.alpha = g.problem.alpha;
  product.bias = g.bias == nullptr ? nullptr : g.bias + j0;
  product.activation = g.problem.activation;
  apply_epilogue(product, 0, i1 - i0, 0, j1 - j0, false);
  for (index_t i = i0; i < i1; ++i) {
    close_row(g.problem, g.batch, g.first_row + i, j0, j1, sums + (i - i0) * kSumsRow);
  }
}

template <class Parts>
inline void gemm_tiles(const detail::ElementsProblem<typename Parts::Element>& g,
                       const Executor& executor, Workspace& workspace) {
  using Element = typename Parts::Element;
  constexpr index_t kParts = Parts::kParts;
  const Shape<3>& shape = g.shape();
  const index_t batch = shape[0], m = shape[1], n = shape[2], k = g.a.extent(2);
  if (batch == 0 || m == 0 || n == 0) return;
  const index_t steps = (k + kTileK - 1) / kTileK;
  // A block of rows stays in L2 for all panels of B.
  const index_t row_bytes = std::max(steps, index_t{1}) * Tiles::kRowBytes * kParts;
  const index_t wanted_rows = second_level_cache() * 3 / 8 / row_bytes / kTileRows * kTileRows;
  const index_t max_rows =
      std::min(detail::round_up(m, kTileRows), std::clamp(wanted_rows, kTileRows, index_t{512}));
  const Executor& threads = detail::threads_for(executor, std::min(max_rows, m) * n * k);
  const index_t workers = detail::worker_count(threads);
  const index_t groups = (n + kFinishedColumns - 1) / kFinishedColumns;
  // Tasks are groups of columns; blocks of rows, too, if that would be too few tasks.
  const index_t wanted = workers == 1 ? 1 : (4 * workers + groups - 1) / groups;
  const index_t task_rows = detail::round_up((max_rows + wanted - 1) / wanted, kTileRows);
  Scratch<bfloat16> a(workspace, max_rows * steps * kTileK * kParts);
  Scratch<float> bias(workspace, g.bias != nullptr ? n : 0);
  Scratch<float> sums(workspace, workers * task_rows * kSumsRow);
  constexpr index_t kPanels = 2 * kTileDepth * 16 / index_t{sizeof(bfloat16)};
  Scratch<bfloat16> panels(workspace, g.packed_b == nullptr ? workers * kPanels : 0);
  if (g.bias != nullptr) {
    each_vector<float>(
        n, [&](index_t j, auto lanes) { store(load(g.bias + j, lanes), bias.data() + j, lanes); });
  }
  for (index_t at = 0; at < batch; ++at) {
    ElementsMatrix<Element> b{
        .data = nullptr, .k_stride = g.b.stride(1), .column_stride = g.b.stride(2), .k = k, .n = n};
    if (g.packed_b == nullptr) b.data = g.b.at_index({at, 0, 0});
    for (index_t i = 0; i < m; i += max_rows) {
      const index_t rows = std::min(m - i, max_rows);
      // A single row is stored once: a tile load with stride 0 repeats it.
      const bool is_few = g.packed_b != nullptr && rows <= Tiles::kRows;
      const index_t tiles = is_few ? 1 : detail::round_up(rows, kTileRows) / 16;
      const index_t tile_rows = is_few && rows == 1 ? 1 : 16;
      // k = 0: there may be no A to step through.
      threads.run(k == 0 ? 0 : tiles, [&](index_t tile, int) {
        const index_t part_elements = tile_rows * kTileK;
        for (index_t step = 0; step < steps; ++step) {
          bfloat16* to = a.data() + (tile * steps + step) * kParts * part_elements;
          for (index_t r = 0; r < tile_rows; ++r, to += kTileK) {
            // Rows past the last repeat it; their sums are not used.
            const index_t row = i + std::min(tile * 16 + r, rows - 1);
            Parts::fetch(g.a.at_index({at, row, 0}) + step * kTileK * g.a.stride(2), g.a.stride(2),
                         std::min(k - step * kTileK, kTileK), kTileK, to, part_elements);
          }
        }
      });
      const TileProduct<Parts> product{.problem = g,
                                       .packed_b = reinterpret_cast<const bfloat16*>(g.packed_b),
                                       .b = b,
                                       .batch = at,
                                       .first_row = i,
                                       .rows = rows,
                                       .steps = steps,
                                       .a = a.data(),
                                       .bias = g.sums_bias != nullptr ? g.sums_bias : bias.data()};
      const index_t row_parts = (rows + task_rows - 1) / task_rows;
      threads.run(row_parts * groups, [&](index_t task, int worker) {
        const TileScope scope;
        const index_t i0 = task / groups * task_rows, j0 = task % groups * kFinishedColumns;
        multiply_tiles(product, i0, std::min(i0 + task_rows, rows), j0,
                       std::min(j0 + kFinishedColumns, n),
                       sums.data() + worker * task_rows * kSumsRow,
                       panels.data() + worker * (g.packed_b == nullptr ? kPanels : 0));
      });
    }
  }
}

template <>
struct TargetTable<detail::Backend<family::Products, bfloat16, float>> {
  static constexpr detail::Backend<family::Products, bfloat16, float> kTable{
      .panel_width = 16,
      .k_step = kTileK,
      .gemm = detail::kKernel<gemm_tiles<StoredElements>>,
      .pack_weights = detail::kKernel<pack_weight_tiles<StoredElements>>,
      .unpack_weights = detail::kKernel<unpack_weight_tiles>};
};
