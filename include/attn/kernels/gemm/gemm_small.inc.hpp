// Kernel text: products of small row-major matrices, without packing.
// SPDX-License-Identifier: Apache-2.0
//
// A and B are read in place; B fits L1.

/// Whether a product takes this path: with few rows, packing B would cost as much as it saves. m is
/// at least a tile's height.
template <class T>
inline bool takes_rows(const detail::GemmProblem<T>& g) {
  constexpr index_t kMaxRows = 128, kMaxK = 256, kCache = index_t{32} << 10;
  return kFused && g.b != nullptr && g.k > 0 && !g.accumulate && g.a_k == 1 && g.b_column == 1 &&
         TiledRows<T>(g.m).height(0) <= g.m && g.m <= kMaxRows && g.n >= Vec<T>::kLanes &&
         g.k <= kMaxK && g.k * g.b_k * index_t{sizeof(T)} <= kCache;
}

/// Rows [i, i + R) of C. The last vector overlaps columns that were computed already, and computes
/// the same values again.
template <class T, int R>
inline void multiply_rows(const detail::GemmProblem<T>& g, index_t i) {
  constexpr index_t kLanes = Vec<T>::kLanes;
  const T* a = g.a + i * g.a_row;
  T* c = g.c + i * g.c_row;
  index_t j = 0;
  for (; j + 2 * kLanes <= g.n; j += 2 * kLanes) {
    tile<T, R, 2, ALayout::rows, TileUpdate::assign, false>(g.k, a, g.a_row, g.b + j, g.b_k, c + j,
                                                            g.c_row, nullptr, 0, {});
  }
  for (; j < g.n; j += kLanes) {
    const index_t at = std::min(j, g.n - kLanes);
    tile<T, R, 1, ALayout::rows, TileUpdate::assign, false>(g.k, a, g.a_row, g.b + at, g.b_k,
                                                            c + at, g.c_row, nullptr, 0, {});
  }
}

/// A whole product for which takes_rows() is true. The last tile overlaps the one before it, of the
/// same task, as the last vector does.
template <class T>
inline void multiply_rows(const detail::GemmProblem<T>& g, const TiledRows<T>& tiles,
                          const Executor& threads) {
  const auto multiply = [&](index_t t0, index_t t1) {
    for (index_t t = t0; t < t1; ++t) {
      const index_t R = tiles.height(t), i = std::min(tiles.begin(t), g.m - R);
      if (R == TileShape<T>::MR) {
        multiply_rows<T, TileShape<T>::MR>(g, i);
      } else {
        multiply_rows<T, TiledRows<T>::kLowMR>(g, i);
      }
    }
    apply_epilogue(g, tiles.begin(t0), std::min(tiles.begin(t1), g.m), 0, g.n, g.beta != T{0});
  };
  // Divisions and calls would take a large part of a product of 16 x 16 x 16 (attn_report
  // batched_16).
  if (tiles.count < 4 || detail::worker_count(threads) == 1) return multiply(0, tiles.count);
  const index_t tasks = std::min(tiles.count / 2, index_t{4} * detail::worker_count(threads));
  threads.run(tasks, [&](index_t task, int) {
    multiply(tiles.count * task / tasks, tiles.count * (task + 1) / tasks);
  });
}
