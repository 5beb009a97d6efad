// Kernel text: products of 16-bit elements, and of floats rounded to bfloat16.
// SPDX-License-Identifier: Apache-2.0
//
// Packed values have 32 bits: an element widened to float or, for targets with pair products, two
// elements of consecutive k. So blocks, panels and tiles are those of float products, over k values
// or half as many pairs; only the tile's multiply-add differs. C is float until the epilogue is
// done.

#if defined(ATTN_TARGET_PAIRS)
namespace pairs {
// In this order:
// clang-format off
#include "attn/kernels/gemm/tile.inc.hpp"
#include "attn/kernels/gemm/gemm_blocked.inc.hpp"
// clang-format on
}  // namespace pairs
template <class E>
inline constexpr bool kInPairs = std::same_as<E, bfloat16> || std::same_as<E, float>;
#else
template <class E>
inline constexpr bool kInPairs = false;
#endif

/// Elements per packed value.
template <class E>
inline constexpr index_t kElements = kInPairs<E> ? 2 : 1;

/// What packed elements are stored as.
template <class E>
using Stored = std::conditional_t<std::same_as<E, float>, bfloat16, E>;

/// Converts `count` elements, `step` apart, to packed values. An incomplete pair is padded with 0.
template <class E>
inline void fetch(const E* from, index_t step, index_t count, float* to) {
  if constexpr (std::same_as<E, float>) {
    constexpr index_t kPiece = 64;
    for (index_t p = 0; p < count; p += kPiece, to += kPiece / 2) {
      bfloat16 rounded[kPiece];
      const index_t piece = std::min(count - p, kPiece);
      FloatParts<1>::fetch(from + p * step, step, piece, kPiece, rounded, 0);
      std::memcpy(to, rounded, static_cast<std::size_t>((piece + 1) / 2) * sizeof(float));
    }
  } else if constexpr (kInPairs<E>) {
    const index_t whole = count / 2;
    if (step == 1) {
      std::memcpy(to, from, static_cast<std::size_t>(whole) * sizeof(float));
    } else {
      for (index_t p = 0; p < whole; ++p) {
        const E pair[2] = {from[2 * p * step], from[(2 * p + 1) * step]};
        std::memcpy(to + p, pair, sizeof pair);
      }
    }
    if (count % 2 == 0) return;
    const E pair[2] = {from[(count - 1) * step], E::from_bits(0)};
    std::memcpy(to + whole, pair, sizeof pair);
  } else if (step == 1) {
    each_vector<float>(count,
                       [&](index_t j, auto lanes) { store(load(from + j, lanes), to + j, lanes); });
  } else {
    for (index_t j = 0; j < count; ++j) to[j] = from[j * step];
  }
}

/// B of one product, (k, n).
template <class E>
struct ElementsMatrix {
  const E* data;
  index_t k_stride, column_stride, k, n;
};

/// PanelSource::write for a matrix that is not packed.
template <class E>
inline void write_panel(const void* matrix, index_t k0, index_t kc, index_t column, index_t width,
                        float* panel) {
  constexpr index_t NR = TileShape<float>::NR, kStep = kElements<E>, kLine = 64;
  const ElementsMatrix<E>& b = *static_cast<const ElementsMatrix<E>*>(matrix);
  const E* from = b.data + k0 * kStep * b.k_stride + column * b.column_stride;
  const index_t count = std::min(kc * kStep, b.k - k0 * kStep);
  if (b.column_stride == 1 && kStep == 1) {
    for (index_t p = 0; p < kc; ++p, panel += NR) {
      fetch(from + p * b.k_stride, 1, width, panel);
      std::fill(panel + width, panel + NR, 0.0f);
    }
    return;
  }
  float lines[NR * kLine];
  for (index_t p = 0; p < kc; p += kLine) {
    const E* const at = from + p * kStep * b.k_stride;
    for (index_t x = 0; x < width; ++x) {
      fetch(at + x * b.column_stride, b.k_stride, std::min(count - p * kStep, kLine * kStep),
            lines + x * kLine);
    }
    pack_panel(width, std::min(kc - p, kLine), lines, index_t{1}, kLine, panel + p * NR);
  }
}

/// PanelSource::write for packed weights that are not in pairs: widens them.
template <class E>
inline void widen_panel(const void* matrix, index_t k0, index_t kc, index_t column, index_t,
                        float* panel) {
  const ElementsMatrix<E>& b = *static_cast<const ElementsMatrix<E>*>(matrix);
  fetch(b.data + k0 * panel_columns<float>(b.n) + column * kc, 1, kc * TileShape<float>::NR, panel);
}

/// Packs weights in the layout of pack_weights(): blocks of KC packed values, each in panels.
template <class E>
inline void pack_elements(const detail::PackProblem<E>& problem, const Executor&, Workspace&) {
  constexpr index_t NR = TileShape<float>::NR, kStep = kElements<E>;
  const TensorView2<const E>& b = problem.b;
  const ElementsMatrix<E> matrix{.data = b.data(),
                                 .k_stride = b.stride(0),
                                 .column_stride = b.stride(1),
                                 .k = b.extent(0),
                                 .n = b.extent(1)};
  const index_t steps = (matrix.k + kStep - 1) / kStep, KC = detail::gemm_kc(steps);
  auto* to = reinterpret_cast<Stored<E>*>(problem.packed);
  for (index_t k0 = 0; k0 < steps; k0 += KC) {
    const index_t kc = std::min(steps - k0, KC);
    for (index_t j = 0; j < matrix.n; j += NR, to += NR * kc * kStep) {
      const index_t width = std::min(matrix.n - j, NR);
      if constexpr (kInPairs<E>) {
        write_panel<E>(&matrix, k0, kc, j, width, reinterpret_cast<float*>(to));
      } else {
        for (index_t p = 0; p < kc; ++p) {
          const E* from = b.data() + (k0 + p) * b.stride(0) + j * b.stride(1);
          for (index_t x = 0; x < NR; ++x) {
            to[p * NR + x] = x < width ? from[x * b.stride(1)] : E::from_bits(0);
          }
        }
      }
    }
  }
}

/// Unpacks rows of packed weights: one row for an embedding, or the whole matrix.
template <class E>
inline void unpack_elements(const detail::UnpackProblem<E>& problem, const Executor&, Workspace&) {
  constexpr index_t NR = TileShape<float>::NR, kStep = kElements<E>;
  const index_t steps = (problem.k + kStep - 1) / kStep, KC = detail::gemm_kc(steps);
  for (index_t row = 0; row < problem.to.extent(0); ++row) {
    const index_t column = problem.first + row, j = column / NR * NR;
    for (index_t k0 = 0; k0 < steps; k0 += KC) {
      const index_t kc = std::min(steps - k0, KC);
      const E* const panel =
          problem.packed + (k0 * panel_columns<float>(problem.n) + j * kc + column - j) * kStep;
      const index_t end = std::min((k0 + kc) * kStep, problem.k);
      for (index_t p = k0 * kStep; p < end; ++p) {
        problem.to(row, p) = panel[(p / kStep - k0) * NR * kStep + p % kStep];
      }
    }
  }
}

/// Up to R rows of A by the panel of packed weights that begins at column j, which is read once.
/// Every element is one chain of multiply-adds in the order of k, as in tile().
template <class E, int R>
inline void multiply_panel(const detail::GemmProblem<float>& g, const Stored<E>* packed,
                           index_t j) {
  using V = Vec<float>;
  constexpr int NV = TileShape<float>::NV;
  constexpr int kVectorBytes = V::kLanes * kElements<E> * int{sizeof(Stored<E>)};
  // Prefetches into the next panel, too, which follows in memory. Emerald Rapids, one thread: 0.82
  // of the time (attn_report gemv_bf16).
  constexpr index_t kPrefetchDistance = 8192 / index_t{sizeof(Stored<E>)};
  const float* a[R];
  V sums[R][NV];
  ATTN_UNROLL
  for (int r = 0; r < R; ++r) {
    a[r] = g.a + std::min(index_t{r}, g.m - 1) * g.a_row;  // rows past the last repeat it
    ATTN_UNROLL
    for (int v = 0; v < NV; ++v) sums[r][v] = V::all(0);
  }
  const index_t KC = detail::gemm_kc(g.k);
  for (index_t k0 = 0; k0 < g.k; k0 += KC) {
    const index_t kc = std::min(g.k - k0, KC);
    const Stored<E>* panel = packed + (k0 * panel_columns<float>(g.n) + j * kc) * kElements<E>;
    for (index_t p = k0; p < k0 + kc; ++p) {
      ATTN_UNROLL
      for (int v = 0; v < NV; ++v, panel += V::kLanes * kElements<E>) {
        if (v * kVectorBytes % 64 == 0) __builtin_prefetch(panel + kPrefetchDistance, 0, 2);
        ATTN_UNROLL
        for (int r = 0; r < R; ++r) {
#if defined(ATTN_TARGET_PAIRS)
          if constexpr (kInPairs<E>) {
            const V b = V::load(reinterpret_cast<const float*>(panel));
            sums[r][v] = pairs::MultiplyAdd::add(V::all(a[r][p]), b, sums[r][v]);
            continue;
          }
#endif
          sums[r][v] = MultiplyAdd::add(V::all(a[r][p]), load(panel, Whole{}), sums[r][v]);
        }
      }
    }
  }
  ATTN_UNROLL
  for (int r = 0; r < R; ++r) {
    if (r >= g.m) break;
    float* c = g.c + r * g.c_row + j;
    ATTN_UNROLL
    for (int v = 0; v < NV; ++v) {
      const index_t left = g.n - j - v * V::kLanes;
      if (left > 0) sums[r][v].store(c + v * V::kLanes, left);
    }
  }
}

/// A product of few rows by packed weights.
template <class E>
inline void multiply_few(const detail::GemmProblem<float>& g, const Stored<E>* packed,
                         const Executor& threads) {
  constexpr index_t NR = TileShape<float>::NR;
  const index_t panels = (g.n + NR - 1) / NR;
  const index_t tasks = std::min(panels, index_t{4} * detail::worker_count(threads));
  threads.run(tasks, [&](index_t task, int) {
    const index_t begin = panels * task / tasks * NR;
    const index_t end = std::min(panels * (task + 1) / tasks * NR, g.n);
    for (index_t j = begin; j < end; j += NR) {
      if (g.m == 1) {
        multiply_panel<E, 1>(g, packed, j);
      } else {
        multiply_panel<E, 4>(g, packed, j);
      }
    }
    apply_epilogue(g, 0, g.m, begin, end, false);
  });
}

/// Stores columns [j0, j1) of one row of C, 16-bit or float: the sums after the epilogue, plus beta
/// times the residual, rounded once.
template <class C>
inline void close_columns(const TensorView3<C>& c, const TensorView3<const C>& residual,
                          float factor, index_t batch, index_t row, index_t j0, index_t j1,
                          const float* sums) {
  constexpr index_t kPiece = 256;
  const index_t to_step = c.stride(2), kept_step = residual.stride(2);
  C* to = &c(batch, row, 0);
  const C* kept = factor != 0 ? residual.at_index({batch, row, 0}) : to;
  const Vec<float> beta = Vec<float>::all(factor);
  float line[kPiece];
  C rounded[kPiece];
  for (index_t j = j0; j < j1; j += kPiece, sums += kPiece) {
    const index_t count = std::min(j1 - j, kPiece);
    if (factor != 0) {
      if (kept_step == 1) {
        each_vector<float>(count, [&](index_t x, auto lanes) {
          store(load(kept + j + x, lanes), line + x, lanes);
        });
      } else {
        for (index_t x = 0; x < count; ++x) line[x] = kept[(j + x) * kept_step];
      }
    }
    C* const out = to_step == 1 ? to + j : rounded;
    each_vector<float>(count, [&](index_t x, auto lanes) {
      Vec<float> v = load(sums + x, lanes);
      if (factor != 0) v = fma(beta, load(line + x, lanes), v);
      store(v, out + x, lanes);
    });
    if (to_step == 1) continue;
    for (index_t x = 0; x < count; ++x) to[(j + x) * to_step] = rounded[x];
  }
}

/// Stores to the problem's c or sums.
template <class E>
inline void close_row(const detail::ElementsProblem<E>& g, index_t batch, index_t row, index_t j0,
                      index_t j1, const float* sums) {
  if (g.sums) {
    close_columns<float>(g.sums, g.sums_residual, g.beta, batch, row, j0, j1, sums);
  } else {
    close_columns<E>(g.c, g.residual, g.beta, batch, row, j0, j1, sums);
  }
}

/// Converts as many rows of A at once as fit in L2 as packed values; these and their float sums are
/// the scratch memory of a product.
template <class E>
inline void gemm_elements(const detail::ElementsProblem<E>& g, const Executor& executor,
                          Workspace& workspace) {
  constexpr index_t kStep = kElements<E>, MR = TileShape<float>::MR, kFew = 4;
  const Shape<3>& shape = g.shape();
  const index_t batch = shape[0], m = shape[1], n = shape[2], k = g.a.extent(2);
  if (batch == 0 || m == 0 || n == 0) return;
  const index_t steps = (k + kStep - 1) / kStep;
  const index_t max_rows = std::min(m, detail::gemm_mc(sizeof(float)) / MR * MR);
  const Executor& threads = detail::threads_for(executor, max_rows * n * k);
  Scratch<float> a(workspace, max_rows * steps), c(workspace, max_rows * n);
  Scratch<float> bias(workspace, g.bias != nullptr ? n : 0);
  if (g.bias != nullptr) {
    each_vector<float>(
        n, [&](index_t j, auto lanes) { store(load(g.bias + j, lanes), bias.data() + j, lanes); });
  }
  ElementsMatrix<E> b{.data = g.packed_b,
                      .k_stride = g.b.stride(1),
                      .column_stride = g.b.stride(2),
                      .k = k,
                      .n = n};
  detail::GemmProblem<float> product{};
  product.n = n;
  product.k = steps;
  product.a = a.data();
  product.a_row = steps;
  product.a_k = 1;
  product.c = c.data();
  product.c_row = n;
  product.alpha = g.alpha;
  product.bias = g.sums_bias != nullptr ? g.sums_bias : bias.data();
  product.activation = g.activation;
  product.batch = 1;
  const bool is_few = g.packed_b != nullptr && m <= kFew;
  if (g.packed_b == nullptr) {
    product.source = {&b, write_panel<E>};
  } else if constexpr (kInPairs<E>) {
    product.packed_b = reinterpret_cast<const float*>(g.packed_b);
  } else {
    product.source = {&b, widen_panel<E>};
  }
  constexpr index_t kTaskRows = 16;
  for (index_t at = 0; at < batch; ++at) {
    if (g.packed_b == nullptr) b.data = g.b.at_index({at, 0, 0});
    for (index_t i = 0; i < m; i += max_rows) {
      product.m = std::min(m - i, max_rows);
      const auto each_row = [&](auto f) {
        threads.run((product.m + kTaskRows - 1) / kTaskRows, [&](index_t task, int) {
          const index_t end = std::min((task + 1) * kTaskRows, product.m);
          for (index_t row = task * kTaskRows; row < end; ++row) f(row);
        });
      };
      // k = 0: there may be no A to step through.
      if (k > 0) {
        each_row([&](index_t row) {
          fetch(g.a.at_index({at, i + row, 0}), g.a.stride(2), k, a.data() + row * steps);
        });
      }
      if (is_few) {
        multiply_few<E>(product, reinterpret_cast<const Stored<E>*>(g.packed_b), threads);
      } else {
#if defined(ATTN_TARGET_PAIRS)
        if constexpr (kInPairs<E>) {
          pairs::gemm(product, executor, workspace);
        } else {
          gemm(product, executor, workspace);
        }
#else
        gemm(product, executor, workspace);
#endif
      }
      each_row([&](index_t row) { close_row(g, at, i + row, 0, n, c.data() + row * n); });
    }
  }
}

template <Float16Element E>
struct TargetTable<detail::Backend<family::Products, E, float>> {
  static constexpr detail::Backend<family::Products, E, float> kTable{
      .panel_width = TileShape<float>::NR,
      .k_step = kElements<E>,
      .gemm = detail::kKernel<gemm_elements<E>>,
      .pack_weights = detail::kKernel<pack_elements<E>>,
      .unpack_weights = detail::kKernel<unpack_elements<E>>};
};

#if defined(ATTN_TARGET_TILES)
#include "attn/kernels/gemm/gemm_tiles.inc.hpp"
#endif
