// Kernel text: products of one row with packed weights, limited by memory.
// SPDX-License-Identifier: Apache-2.0
//
// Several panels are read at once, because hardware prefetchers read several streams faster than
// one: `attn_report --only moe_decode` prints the share of the bandwidth that this reaches. Six
// panels, and software prefetches, are slower.

inline constexpr int kPanelStreams = 4;

/// Whether a product takes this path.
template <class T>
inline bool takes_panels(const detail::GemmProblem<T>& g) {
  return kFused && g.packed_b != nullptr && g.m == 1 && g.k > 0 && !g.accumulate;
}

/// Columns of C in `Panels` panels from `panel` on. Every element is one chain of products in the
/// order of k, as in tile(), so that both give the same bits.
template <class T, int Panels>
inline void multiply_panels(const detail::GemmProblem<T>& g, index_t panel) {
  using V = Vec<T>;
  constexpr int NV = TileShape<T>::NV;
  constexpr index_t NR = TileShape<T>::NR;
  const index_t KC = detail::gemm_kc(g.k), columns = panel_columns<T>(g.n);
  V sums[Panels][NV];
  ATTN_UNROLL
  for (int s = 0; s < Panels; ++s) {
    ATTN_UNROLL
    for (int v = 0; v < NV; ++v) sums[s][v] = V::all(T{0});
  }
  const T* a = g.a;
  for (index_t k0 = 0; k0 < g.k; k0 += KC) {
    const index_t kc = std::min(g.k - k0, KC);
    const T* b = g.packed_b + k0 * columns + panel * NR * kc;
    for (index_t p = 0; p < kc; ++p, a += g.a_k, b += NR) {
      const V av = V::all(*a);
      ATTN_UNROLL
      for (int s = 0; s < Panels; ++s) {
        ATTN_UNROLL
        for (int v = 0; v < NV; ++v) {
          const V bv = V::load(b + s * NR * kc + v * V::kLanes);
          sums[s][v] = MultiplyAdd::add(av, bv, sums[s][v]);
        }
      }
    }
  }
  ATTN_UNROLL
  for (int s = 0; s < Panels; ++s) {
    ATTN_UNROLL
    for (int v = 0; v < NV; ++v) {
      const index_t j = (panel + s) * NR + v * V::kLanes;
      if (j + V::kLanes <= g.n) {
        sums[s][v].store(g.c + j);
      } else if (j < g.n) {
        sums[s][v].store(g.c + j, g.n - j);
      }
    }
  }
}

/// A whole product, for which takes_panels() is true.
template <class T>
inline void multiply_panels(const detail::GemmProblem<T>& g, const Executor& threads) {
  constexpr index_t NR = TileShape<T>::NR;
  const index_t panels = panel_columns<T>(g.n) / NR;
  const index_t groups = (panels + kPanelStreams - 1) / kPanelStreams;
  const index_t tasks = std::min(groups, index_t{4} * detail::worker_count(threads));
  threads.run(tasks, [&](index_t task, int) {
    const index_t begin = groups * task / tasks * kPanelStreams;
    const index_t end = std::min(panels, groups * (task + 1) / tasks * kPanelStreams);
    index_t panel = begin;
    for (; panel + kPanelStreams <= end; panel += kPanelStreams) {
      multiply_panels<T, kPanelStreams>(g, panel);
    }
    for (; panel < end; ++panel) multiply_panels<T, 1>(g, panel);
    apply_epilogue(g, 0, 1, begin * NR, std::min(g.n, end * NR), g.beta != T{0});
  });
}
