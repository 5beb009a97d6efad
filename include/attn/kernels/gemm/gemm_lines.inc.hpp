// Kernel text: products of few rows with an unpacked weight of contiguous columns.
// SPDX-License-Identifier: Apache-2.0
//
// Columns of B are read once, in place, cache line by cache line, and transposed in registers:
// packing would write and read them again.

/// The most rows whose sums fit in registers beside the transposed lines.
inline constexpr int kLineRows = Registers::kRowTileHeight < 8 ? 4 : 8;
/// The most rows of this path; with more, packing pays (bench/peers linear_768_16 has 16).
inline constexpr int kMaxLineRows = Vec<float>::kLanes < 16 ? 8 : 24;

/// Whether a product takes this path. Beyond kLineRows rows, a strip of columns is read once for
/// each group of kLineRows, which L2 must hold together with A.
template <class T>
inline bool takes_lines(const detail::GemmProblem<T>& g) {
  if (!kFused || g.b == nullptr || g.k <= 0 || g.b_k != 1 || g.a_k != 1 || g.accumulate ||
      g.n < Vec<T>::kLanes) {
    return false;
  }
  const index_t lines = 2 * Vec<T>::kLanes + g.m;
  return g.m <= kLineRows ||
         (g.m <= kMaxLineRows && lines * g.k * index_t{sizeof(T)} <= second_level_cache());
}

/// Up to R rows by `Vectors` vectors of columns of C, from column j on. Lanes are columns: blocks
/// of B are transposed in registers, and every element is one chain of FMAs in the order of k, as
/// in tile(), so that both give the same bits. Whole cache lines are used at a time, since columns
/// of B a multiple of 4 KB apart evict one another.
template <class T, int R, int Vectors>
inline void multiply_lines(const detail::GemmProblem<T>& g, index_t j) {
  using V = Vec<T>;
  constexpr index_t kSize = Lines<T>::kSize, kLine = 64 / sizeof(T);
  const T *a[R], *b[Vectors];
  V sums[R][Vectors];
  ATTN_UNROLL
  for (int r = 0; r < R; ++r) {
    a[r] = g.a + std::min(index_t{r}, g.m - 1) * g.a_row;  // rows past the last repeat it
    ATTN_UNROLL
    for (int v = 0; v < Vectors; ++v) sums[r][v] = V::all(T{0});
  }
  for (int v = 0; v < Vectors; ++v) b[v] = g.b + (j + v * V::kLanes) * g.b_column;
  const auto add = [&](int v, index_t p, V line) __attribute__((always_inline)) {
    ATTN_UNROLL
    for (int r = 0; r < R; ++r) sums[r][v] = fma(V::all(a[r][p]), line, sums[r][v]);
  };
  index_t p = 0;
  for (; p + kLine <= g.k; p += kLine) {
    ATTN_UNROLL
    for (int v = 0; v < Vectors; ++v) {
      ATTN_UNROLL
      for (index_t at = p; at < p + kLine; at += kSize) {
        const Lines<T> lines(b[v] + at, g.b_column);
        ATTN_UNROLL
        for (int x = 0; x < kSize; ++x) add(v, at + x, lines[x]);
      }
    }
  }
  for (; p < g.k; ++p) {
    ATTN_UNROLL
    for (int v = 0; v < Vectors; ++v) {
      T lanes[V::kLanes];
      for (int x = 0; x < V::kLanes; ++x) lanes[x] = b[v][x * g.b_column + p];
      add(v, p, V::load(lanes));
    }
  }
  ATTN_UNROLL
  for (int r = 0; r < R; ++r) {
    if (r >= g.m) break;
    ATTN_UNROLL
    for (int v = 0; v < Vectors; ++v) sums[r][v].store(g.c + r * g.c_row + j + v * V::kLanes);
  }
}

/// Columns [j0, j1), at least a vector of them. The last vector overlaps columns that were computed
/// already.
template <class T, int R>
inline void multiply_lines(const detail::GemmProblem<T>& g, index_t j0, index_t j1) {
  constexpr index_t kLanes = Vec<T>::kLanes;
  index_t j = j0;
  if constexpr (R < 4) {
    // Two vectors at a time hide the latency of the FMAs if the caches hold B. From memory, twice
    // as many streams are slower. Four rows have enough FMAs anyway.
    if (2 * g.n * g.k * index_t{sizeof(T)} <= last_level_cache()) {
      for (; j + 2 * kLanes <= j1; j += 2 * kLanes) multiply_lines<T, R, 2>(g, j);
    }
  }
  for (; j < j1; j += kLanes) multiply_lines<T, R, 1>(g, std::min(j, j1 - kLanes));
}

/// Up to kLineRows rows.
template <class T>
inline void multiply_line_rows(const detail::GemmProblem<T>& g, index_t j0, index_t j1) {
  if (g.m == 1) {
    multiply_lines<T, 1>(g, j0, j1);
  } else if (g.m == 2) {
    multiply_lines<T, 2>(g, j0, j1);
  } else if (g.m <= 4) {
    multiply_lines<T, 4>(g, j0, j1);
  } else if constexpr (kLineRows > 4) {
    multiply_lines<T, kLineRows>(g, j0, j1);
  }
}

/// A whole product, for which takes_lines() is true.
template <class T>
inline void multiply_lines(const detail::GemmProblem<T>& g, const Executor& threads) {
  constexpr index_t kStrip = 2 * Vec<T>::kLanes;
  const index_t strips = std::max(index_t{1}, g.n / kStrip);
  const index_t tasks = std::min(strips, index_t{4} * detail::worker_count(threads));
  threads.run(tasks, [&](index_t task, int) {
    const index_t j0 = strips * task / tasks * kStrip;
    const index_t j1 = task + 1 == tasks ? g.n : strips * (task + 1) / tasks * kStrip;
    if (g.m <= kLineRows) {
      multiply_line_rows(g, j0, j1);
    } else {
      // A strip of columns stays in L2 until all rows were multiplied by it.
      for (index_t j = j0; j < j1; j += kStrip) {
        detail::GemmProblem<T> rows = g;
        for (index_t row = 0; row < g.m; row += kLineRows) {
          rows.m = std::min(g.m - row, index_t{kLineRows});
          rows.a = g.a + row * g.a_row;
          rows.c = g.c + row * g.c_row;
          multiply_line_rows(rows, j, std::min(j + kStrip, j1));
        }
      }
    }
    apply_epilogue(g, 0, g.m, j0, j1, g.beta != T{0});
  });
}
