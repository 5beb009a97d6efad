// Kernel text: bfloat16 products in tiles, and the tile block shared with int8.
// SPDX-License-Identifier: Apache-2.0
//
// Every element of C is the sum over tiles of 32 k, in the order of k, however few rows there are,
// so that a row has the same bits alone and together with others. docs/precision.md describes how a
// tile sums. k is padded with zeros to whole tiles.

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

/// Tile registers 0 and 1 += one row of tiles of A by two panels of B, for up to 16 rows; the time
/// is that of reading the panels. Rows of A are a_row bytes apart, its tiles a_step.
template <class Products>
inline void add_products_of_few(index_t steps, const char* a, index_t a_row, index_t a_step,
                                const char* b0, const char* b1) {
  // Emerald Rapids, one thread, one row: 0.6 of the time (attn_report gemv_bf16).
  constexpr index_t kPrefetchDistance = 8 * Tiles::kBytes;
  const auto prefetch = [](const char* at) {
    ATTN_UNROLL
    for (int line = 0; line < Tiles::kBytes; line += 64) __builtin_prefetch(at + line, 0, 2);
  };
  for (index_t s = 0; s < steps; ++s, a += a_step, b0 += Tiles::kBytes, b1 += Tiles::kBytes) {
    Tiles::load<4>(a, a_row);
    prefetch(b0 + kPrefetchDistance);
    Tiles::load<6>(b0, 64);
    Products::template add<0, 4, 6>();
    prefetch(b1 + kPrefetchDistance);
    Tiles::load<7>(b1, 64);
    Products::template add<1, 4, 7>();
  }
}

struct PairProducts {
  template <int C, int A, int B>
  static ATTN_INLINE void add() {
    Tiles::add_pairs<C, A, B>();
  }
};

/// k of one tile of bfloat16.
inline constexpr index_t kTileK = 32;

/// Copies up to 32 elements, `step` apart, and pads with 0.
inline void fetch_line(const bfloat16* from, index_t step, index_t count, bfloat16* to) {
  if (step == 1) {
    std::memcpy(to, from, static_cast<std::size_t>(count) * sizeof(bfloat16));
  } else {
    for (index_t p = 0; p < count; ++p) to[p] = from[p * step];
  }
  std::fill(to + count, to + kTileK, bfloat16::from_bits(0));
}

/// Packs tiles [first, last) of k of the panel of 16 columns from `column` on. A tile is 1 KB: 16
/// pairs of k by 16 columns.
inline void pack_tiles(const ElementsMatrix<bfloat16>& b, index_t column, index_t first,
                       index_t last, bfloat16* to) {
  const index_t width = std::min(b.n - column, index_t{16});
  for (index_t step = first; step < last; ++step, to += 16 * kTileK) {
    const index_t k = step * kTileK, count = std::min(b.k - k, kTileK);
    const bfloat16* const from = b.data + k * b.k_stride + column * b.column_stride;
    if (b.column_stride == 1) {
      for (index_t pair = 0; pair < kTileK / 2; ++pair) {
        std::uint16_t lines[2][16] = {};
        for (index_t half = 0; half < 2 && 2 * pair + half < count; ++half) {
          std::memcpy(lines[half], from + (2 * pair + half) * b.k_stride,
                      static_cast<std::size_t>(width) * sizeof(bfloat16));
        }
        std::uint32_t pairs[16];
        for (int x = 0; x < 16; ++x) pairs[x] = lines[0][x] | std::uint32_t{lines[1][x]} << 16;
        std::memcpy(to + pair * 32, pairs, sizeof pairs);
      }
      continue;
    }
    float pairs[16 * 16] = {};  // (column, pair), as bits
    for (index_t x = 0; x < width; ++x) {
      bfloat16 line[kTileK];
      fetch_line(from + x * b.column_stride, b.k_stride, count, line);
      std::memcpy(pairs + x * 16, line, sizeof line);
    }
    float transposed[16 * 16];
    constexpr index_t kSize = Block<float>::kSize;
    for (index_t x = 0; x < 16; x += kSize) {
      for (index_t p = 0; p < 16; p += kSize) {
        const Block<float> block(pairs + x * 16 + p, 16, kSize);
        ATTN_UNROLL
        for (int y = 0; y < kSize; ++y) block.store(y, transposed + (p + y) * 16 + x);
      }
    }
    std::memcpy(to, transposed, sizeof transposed);
  }
}

/// Packs weights: panels of 16 columns one after another, each with all its tiles of k.
inline void pack_weight_tiles(const detail::PackProblem<bfloat16>& problem, const Executor&,
                              Workspace&) {
  const TensorView2<const bfloat16>& b = problem.b;
  const ElementsMatrix<bfloat16> matrix{.data = b.data(),
                                        .k_stride = b.stride(0),
                                        .column_stride = b.stride(1),
                                        .k = b.extent(0),
                                        .n = b.extent(1)};
  const index_t steps = (matrix.k + kTileK - 1) / kTileK;
  for (index_t j = 0; j < matrix.n; j += 16) {
    pack_tiles(matrix, j, 0, steps, problem.packed + j * steps * kTileK);
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
struct TileProduct {
  const detail::ElementsProblem<bfloat16>& problem;
  ElementsMatrix<bfloat16> b;      ///< where problem.packed_b is not given
  index_t batch, first_row, rows;  ///< of C
  index_t steps;                   ///< tiles of k
  const bfloat16* a;               ///< (tile of rows, step, 16, 32); of one row (step, 32)
  const float* bias;

  /// Up to 16 rows by packed weights.
  bool is_few() const { return problem.packed_b != nullptr && rows <= Tiles::kRows; }
};

/// Number of columns to which the epilogue is applied at once, and the floats between rows of their
/// sums: an odd number of cache lines, so that rows map to different sets.
inline constexpr index_t kFinishedColumns = 128, kSumsRow = kFinishedColumns + 16;

/// Rows [i0, i1) by columns [j0, j1), at most kFinishedColumns. `panels`: room for two panels of
/// kTileDepth bytes of k, if B is not packed.
inline void multiply_tiles(const TileProduct& g, index_t i0, index_t i1, index_t j0, index_t j1,
                           float* sums, bfloat16* panels) {
  constexpr index_t kSteps = kTileDepth / Tiles::kRowBytes, kTileElements = 16 * kTileK;
  for (index_t j = j0; j < j1; j += kTileColumns) {
    const index_t second = j + 16 < j1 ? j + 16 : j;
    if (g.is_few()) {
      const auto panel = [&](index_t column) {
        return reinterpret_cast<const char*>(g.problem.packed_b + column * g.steps * kTileK);
      };
      const bool is_one = g.rows == 1;
      Tiles::zero<0>();
      Tiles::zero<1>();
      add_products_of_few<PairProducts>(g.steps, reinterpret_cast<const char*>(g.a),
                                        is_one ? 0 : 64, is_one ? 64 : Tiles::kBytes, panel(j),
                                        panel(second));
      Tiles::store<0>(sums + j - j0, kSumsRow * index_t{sizeof(float)});
      Tiles::store<1>(sums + j - j0 + 16, kSumsRow * index_t{sizeof(float)});
      continue;
    }
    // One pass even for k = 0: the sums are 0.
    for (index_t step = 0; step == 0 || step < g.steps; step += kSteps) {
      const index_t count = std::min(g.steps - step, kSteps);
      const bfloat16 *b0, *b1;
      if (g.problem.packed_b != nullptr) {
        b0 = g.problem.packed_b + (j * g.steps + step * 16) * kTileK;
        b1 = g.problem.packed_b + (second * g.steps + step * 16) * kTileK;
      } else {
        b0 = panels;
        b1 = second == j ? b0 : panels + kSteps * kTileElements;
        pack_tiles(g.b, j, step, step + count, panels);
        if (second != j) {
          pack_tiles(g.b, second, step, step + count, panels + kSteps * kTileElements);
        }
      }
      for (index_t i = i0; i < i1; i += kTileRows) {
        float* const to = sums + (i - i0) * kSumsRow + j - j0;
        const bfloat16* const a = g.a + (i * g.steps + step * 16) * kTileK;
        load_sums(to, kSumsRow, step > 0);
        add_products<PairProducts>(count, a, a + g.steps * kTileElements, b0, b1);
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

inline void gemm_tiles(const detail::ElementsProblem<bfloat16>& g, const Executor& executor,
                       Workspace& workspace) {
  const Shape<3>& shape = g.shape();
  const index_t batch = shape[0], m = shape[1], n = shape[2], k = g.a.extent(2);
  if (batch == 0 || m == 0 || n == 0) return;
  const index_t steps = (k + kTileK - 1) / kTileK;
  // A block of rows stays in L2 for all panels of B.
  const index_t row_bytes = std::max(steps, index_t{1}) * Tiles::kRowBytes;
  const index_t wanted_rows = second_level_cache() * 3 / 8 / row_bytes / kTileRows * kTileRows;
  const index_t max_rows =
      std::min(detail::round_up(m, kTileRows), std::clamp(wanted_rows, kTileRows, index_t{512}));
  const Executor& threads = detail::threads_for(executor, std::min(max_rows, m) * n * k);
  const index_t workers = detail::worker_count(threads);
  const index_t groups = (n + kFinishedColumns - 1) / kFinishedColumns;
  // Tasks are groups of columns; blocks of rows, too, if that would be too few tasks.
  const index_t wanted = workers == 1 ? 1 : (4 * workers + groups - 1) / groups;
  const index_t task_rows = detail::round_up((max_rows + wanted - 1) / wanted, kTileRows);
  Scratch<bfloat16> a(workspace, max_rows * steps * kTileK);
  Scratch<float> bias(workspace, g.bias != nullptr ? n : 0);
  Scratch<float> sums(workspace, workers * task_rows * kSumsRow);
  constexpr index_t kPanels = 2 * kTileDepth * 16 / index_t{sizeof(bfloat16)};
  Scratch<bfloat16> panels(workspace, g.packed_b == nullptr ? workers * kPanels : 0);
  if (g.bias != nullptr) {
    each_vector<float>(
        n, [&](index_t j, auto lanes) { store(load(g.bias + j, lanes), bias.data() + j, lanes); });
  }
  for (index_t at = 0; at < batch; ++at) {
    ElementsMatrix<bfloat16> b{
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
        bfloat16* to = a.data() + tile * steps * 16 * kTileK;
        for (index_t step = 0; step < steps; ++step) {
          for (index_t r = 0; r < tile_rows; ++r, to += kTileK) {
            // Rows past the last repeat it; their sums are not used.
            const index_t row = i + std::min(tile * 16 + r, rows - 1);
            fetch_line(g.a.at_index({at, row, 0}) + step * kTileK * g.a.stride(2), g.a.stride(2),
                       std::min(k - step * kTileK, kTileK), to);
          }
        }
      });
      const TileProduct product{.problem = g,
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
      .gemm = detail::kKernel<gemm_tiles>,
      .pack_weights = detail::kKernel<pack_weight_tiles>,
      .unpack_weights = detail::kKernel<unpack_weight_tiles>};
};
