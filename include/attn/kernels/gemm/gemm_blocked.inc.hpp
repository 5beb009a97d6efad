// Kernel text: blocked matrix multiplication around the micro-kernel.
// SPDX-License-Identifier: Apache-2.0

/// Columns rounded up to whole panels.
template <class T>
ATTN_INLINE index_t panel_columns(index_t n) {
  return detail::round_up(n, TileShape<T>::NR);
}

/// Packs weights: blocks of KC rows one after another, each in panels of NR columns.
template <class T>
inline void pack_weights(const detail::PackProblem<T>& problem, const Executor&, Workspace&) {
  const auto& [b, packed] = problem;
  const index_t k = b.extent(0), n = b.extent(1), KC = detail::gemm_kc(k);
  for (index_t k0 = 0; k0 < k; k0 += KC) {
    const index_t kc = std::min(k - k0, KC);
    pack_columns(n, kc, b.data() + k0 * b.stride(0), b.stride(0), b.stride(1),
                 packed + k0 * panel_columns<T>(n));
  }
}

/// Applies alpha, bias, activation and residual to a finished block of C, which is still in L1.
template <class T>
inline void apply_epilogue(const detail::GemmProblem<T>& g, index_t i0, index_t i1, index_t j0,
                           index_t j1, bool add_residual) {
  using V = Vec<T>;
  const bool scales = g.alpha != T{1} || g.bias != nullptr;
  if (!scales && g.activation == Activation::none && !add_residual) return;
  const index_t n = j1 - j0;
  const V alpha = V::all(g.alpha), beta = V::all(g.beta);
  const T* const bias = g.bias == nullptr ? nullptr : g.bias + j0;
  for (index_t i = i0; i < i1; ++i) {
    T* c = g.c + i * g.c_row + j0;
    if (scales) {
      each_vector<T>(n, [&](index_t j, auto lanes) {
        V v = alpha * load(c + j, lanes);
        if (bias != nullptr) v = v + load(bias + j, lanes);
        store(v, c + j, lanes);
      });
    }
    activate_row(g.activation, n, c, c, false);
    if (add_residual) {
      const T* r = g.residual + i * g.residual_row + j0;
      each_vector<T>(n, [&](index_t j, auto lanes) {
        store(fma(beta, load(r + j, lanes), load(c + j, lanes)), c + j, lanes);
      });
    }
  }
}

/// Packs columns [j, j + columns) of rows [k, k + kc) of B, panel by panel.
template <class T>
inline void pack_b(const detail::GemmProblem<T>& g, index_t k, index_t kc, index_t j,
                   index_t columns, T* packed) {
  if (g.source.write == nullptr) {
    return pack_columns(columns, kc, g.b + j * g.b_column + k * g.b_k, g.b_k, g.b_column, packed);
  }
  constexpr index_t NR = TileShape<T>::NR;
  for (index_t x = 0; x < columns; x += NR) {
    g.source.write(g.source.matrix, k, kc, j + x, std::min(columns - x, NR), packed + x * kc);
  }
}

#include "attn/kernels/gemm/gemm_lines.inc.hpp"
#include "attn/kernels/gemm/gemm_panels.inc.hpp"
#include "attn/kernels/gemm/gemm_small.inc.hpp"

/// BLIS's macro-kernel: tiles [t0, t1) of rows by columns [j0, j1) of one block of KC. Panels of B
/// are the outer loop, so that each stays in L1 for all tiles of A. packed_b: the panels of these
/// columns. Each tile prefetches the next tile's C, for whose loads the sums would wait, and its
/// share of the next panel of B.
template <class T, TileUpdate kUpdate>
inline void multiply_block(const detail::GemmProblem<T>& g, const TiledRows<T>& tiles, index_t t0,
                           index_t t1, index_t j0, index_t j1, index_t kc, const T* packed_a,
                           const T* packed_b, const T* factor) {
  constexpr index_t NR = TileShape<T>::NR, MR = TileShape<T>::MR;
  index_t share = NR * index_t{sizeof(T)};  // bytes to prefetch for each k
  if (t1 - t0 > 1) share /= t1 - t0;
  const index_t end = std::min(tiles.begin(t1), g.m);
  for (index_t j = j0; j < j1; j += NR, packed_b += NR * kc) {
    const index_t width = std::min(j1 - j, NR);
    const bool is_half = width <= NR / 2;
    for (index_t t = t0; t < t1; ++t) {
      const index_t i = tiles.begin(t), R = tiles.height(t), height = std::min(end - i, R);
      T* c = g.c + i * g.c_row + j;
      for (index_t r = i + R; r < std::min(i + 2 * R, end); ++r) {
        detail::prefetch_bytes(g.c + r * g.c_row + j, width * index_t{sizeof(T)});
      }
      const T* next_panel = packed_b + (j + NR < j1 ? NR * kc : 0);
      const TilePrefetch prefetch{reinterpret_cast<const char*>(next_panel) + (t - t0) * share * kc,
                                  share};
      const auto multiply = [&](T* to, index_t to_stride) {
        const T* a = packed_a + i * kc;
        if (R == MR) {
          tile_panel<T, MR, kUpdate>(is_half, kc, a, packed_b, to, to_stride, factor, prefetch);
        } else {
          tile_panel<T, TiledRows<T>::kLowMR, kUpdate>(is_half, kc, a, packed_b, to, to_stride,
                                                       factor, prefetch);
        }
      };
      if (width == (is_half ? NR / 2 : NR) && height == R) {
        multiply(c, g.c_row);
        continue;
      }
      // The tile extends beyond C: compute it in a buffer, and copy the part inside C.
      T whole[MR * NR];
      if constexpr (kUpdate == TileUpdate::rescale_and_add) std::fill_n(whole, R * NR, T{0});
      const auto copy = [&](const T* from, index_t from_row, T* to, index_t to_row) {
        for (index_t r = 0; r < height; ++r) {
          each_vector<T>(width, [&](index_t x, auto lanes) {
            store(load(from + r * from_row + x, lanes), to + r * to_row + x, lanes);
          });
        }
      };
      if constexpr (kUpdate == TileUpdate::rescale_and_add) copy(c, g.c_row, whole, NR);
      multiply(whole, NR);
      copy(whole, NR, c, g.c_row);
    }
  }
}

/// How one product is computed on `concurrency` threads, and the scratch memory that it needs.
template <class T>
struct GemmPlan {
  static constexpr index_t NR = TileShape<T>::NR;
  index_t KC, max_kc;
  bool in_panels;          ///< A is one row, B packed before: gemm_panels.inc.hpp
  bool in_lines, in_rows;  ///< B is not packed: gemm_lines.inc.hpp, gemm_small.inc.hpp
  /// shares_b: several blocks of rows use B, which is packed as a whole. packs_panels: only one
  /// block of rows (up to MC) does, and each thread packs a panel just before it multiplies by it,
  /// so that the panel is read once and stays in L1.
  bool shares_b, packs_panels;
  index_t a_elements, elements;  ///< of packed A; of A and packed B, or a panel for each thread

  GemmPlan(const detail::GemmProblem<T>& g, const TiledRows<T>& tiles, index_t block_tiles,
           index_t concurrency)
      : KC(detail::gemm_kc(g.k)),
        max_kc(std::min(g.k, KC)),
        in_panels(takes_panels(g)),
        in_lines(takes_lines(g)),
        in_rows(!in_lines && takes_rows(g)),
        shares_b(g.packed_b == nullptr && tiles.count > block_tiles),
        packs_panels(g.packed_b == nullptr && !shares_b),
        a_elements(detail::round_up(tiles.begin(tiles.count) * max_kc, NR)) {
    const index_t b_columns = shares_b       ? panel_columns<T>(std::min(g.n, detail::kGemmNC))
                              : packs_panels ? NR * concurrency
                                             : 0;
    elements = in_panels || in_lines || in_rows ? 0 : a_elements + b_columns * max_kc;
  }
};

/// Computes the first product of the batch `g`.
template <class T>
inline void multiply_one(const detail::GemmProblem<T>& g, const TiledRows<T>& tiles,
                         index_t block_tiles, const GemmPlan<T>& plan, const Executor& threads,
                         T* a_block) {
  if constexpr (kFused) {
    if (plan.in_panels) return multiply_panels(g, threads);
    if (plan.in_lines) return multiply_lines(g, threads);
    if (plan.in_rows) return multiply_rows(g, tiles, threads);
  }
  constexpr index_t NR = TileShape<T>::NR, MR = TileShape<T>::MR;
  constexpr index_t kPackedTiles = 8;  // tiles of A that one task packs
  T first[MR], next[MR];
  std::fill_n(first, MR, g.beta);
  std::fill_n(next, MR, T{1});
  T* const b_block = a_block + plan.a_elements;

  for (index_t n0 = 0; n0 < g.n; n0 += detail::kGemmNC) {
    const index_t nc = g.n - n0 < detail::kGemmNC ? g.n - n0 : detail::kGemmNC;
    // Tasks: blocks of MC rows by blocks of columns, enough to keep every thread busy for any m.
    // One block of each is a separate case, since divisions cost a small product some percent.
    const index_t row_blocks =
        tiles.count <= block_tiles ? 1 : (tiles.count + block_tiles - 1) / block_tiles;
    const index_t a_packs = (tiles.count + kPackedTiles - 1) / kPackedTiles;
    const index_t panels = (nc + NR - 1) / NR;
    index_t column_blocks = 1, step = panels * NR;
    if (detail::worker_count(threads) > 1) {
      const index_t wanted = (4 * detail::worker_count(threads) + row_blocks - 1) / row_blocks;
      const index_t blocks = std::min(wanted, panels);
      step = (panels + blocks - 1) / blocks * NR;
      column_blocks = (nc + step - 1) / step;
    }

    // k = 0 still takes one pass: the product is 0, and the epilogue is applied.
    for (index_t k0 = 0; k0 == 0 || k0 < g.k; k0 += plan.KC) {
      const index_t kc = std::min(g.k - k0, plan.KC);
      const bool last = k0 + plan.KC >= g.k;
      const T* factor = k0 > 0 ? next : g.accumulate ? first : nullptr;
      const index_t packs = kc == 0 ? 0 : a_packs + (plan.shares_b ? column_blocks : 0);
      threads.run(packs, [&](index_t task, int) {
        if (task < a_packs) {
          const index_t end = std::min((task + 1) * kPackedTiles, tiles.count);
          index_t t = task * kPackedTiles;
          if (g.a_row == 1) {
            const index_t whole = std::min(end, std::min(tiles.high, g.m / MR)), i = tiles.begin(t);
            if (t < whole) {
              pack_transposed_tiles(whole - t, kc, g.a + i + k0 * g.a_k, g.a_k, a_block + i * kc);
              t = whole;
            }
          }
          for (; t < end; ++t) {
            const index_t i = tiles.begin(t), R = tiles.height(t);
            pack_tile(R, std::min(g.m - i, R), kc, g.a + i * g.a_row + k0 * g.a_k, g.a_row, g.a_k,
                      a_block + i * kc);
          }
        } else {
          const index_t j0 = (task - a_packs) * step, columns = nc - j0 < step ? nc - j0 : step;
          pack_b(g, k0, kc, n0 + j0, columns, b_block + j0 * kc);
        }
      });
      threads.run(row_blocks * column_blocks, [&](index_t task, int worker) {
        const index_t column_block = row_blocks == 1 ? task : task / row_blocks;
        const index_t t0 = (task - column_block * row_blocks) * block_tiles,
                      t1 = std::min(t0 + block_tiles, tiles.count);
        const index_t j0 = n0 + column_block * step, j1 = std::min(j0 + step, n0 + nc);
        const auto multiply = [&](index_t from, index_t to, const T* packed_b) {
          if (factor == nullptr) {
            multiply_block<T, TileUpdate::assign>(g, tiles, t0, t1, from, to, kc, a_block, packed_b,
                                                  factor);
          } else {
            multiply_block<T, TileUpdate::rescale_and_add>(g, tiles, t0, t1, from, to, kc, a_block,
                                                           packed_b, factor);
          }
        };
        if (plan.packs_panels) {
          T* panel = b_block + worker * plan.max_kc * NR;
          for (index_t j = j0; j < j1; j += NR) {
            const index_t width = std::min(j1 - j, NR);
            if (kc > 0) pack_b(g, k0, kc, j, width, panel);
            multiply(j, j + width, panel);
          }
        } else if (plan.shares_b) {
          multiply(j0, j1, b_block + (j0 - n0) * kc);
        } else {
          multiply(j0, j1, g.packed_b + k0 * panel_columns<T>(g.n) + j0 * kc);
        }
        if (last) {
          apply_epilogue(g, tiles.begin(t0), std::min(tiles.begin(t1), g.m), j0, j1,
                         g.beta != T{0} && !g.accumulate);
        }
      });
    }
  }
}

template <class T>
inline void gemm(const detail::GemmProblem<T>& g, const Executor& executor, Workspace& workspace) {
  if (g.batch == 0 || g.m == 0 || g.n == 0) return;
  const index_t block_tiles = detail::gemm_mc(sizeof(T)) / TileShape<T>::MR;
  const TiledRows<T> tiles(g.m);
  const index_t work = g.m * g.n * g.k;
  const Executor& threads = detail::threads_for(executor, g.batch * work);
  // Many or small products run on one thread each, without synchronisation within a product. With
  // few large ones, the last would leave threads idle, so that threads share each product.
  constexpr index_t kTasks = 8;  // per thread
  const bool apart =
      g.batch > 1 && detail::worker_count(threads) > 1 &&
      (g.batch >= kTasks * detail::worker_count(threads) || !detail::is_worth_threads(work));
  const Executor& of_one = detail::threads_for(executor, apart ? 0 : work);
  const GemmPlan<T> plan(g, tiles, block_tiles, detail::worker_count(of_one));
  Scratch<T> memory(workspace, plan.elements * (apart ? detail::worker_count(threads) : 1));
  const auto multiply = [&](index_t begin, index_t end, int worker) {
    for (index_t i = begin; i < end; ++i) {
      detail::GemmProblem<T> one = g;
      one.a += i * g.a_batch;
      one.b += i * g.b_batch;
      one.c += i * g.c_batch;
      one.residual += i * g.residual_batch;
      multiply_one(one, tiles, block_tiles, plan, of_one, memory.data() + worker * plan.elements);
    }
  };
  if (!apart) return multiply(0, g.batch, 0);
  const index_t tasks = std::min(g.batch, kTasks * detail::worker_count(threads));
  threads.run(tasks, [&](index_t task, int worker) {
    multiply(g.batch * task / tasks, g.batch * (task + 1) / tasks, worker);
  });
}
