// Kernel text: float activations by quantised weights, dequantised on the fly.
// SPDX-License-Identifier: Apache-2.0

/// Scales or offsets of one panel from entry `at` on, as floats.
ATTN_INLINE Vec<float> load_scales(const detail::QuantizedMatrix& w, const std::uint8_t* part,
                                   index_t at) {
  if (w.format.float_scales) return Vec<float>::load(reinterpret_cast<const float*>(part) + at);
  return Int8::widen(reinterpret_cast<const float16*>(part) + at);
}

/// Writes a packed panel of floats for tile_panel(): PanelSource::write. Every weight equals
/// QuantizedWeights::dequantize().
inline void expand_panel(const void* matrix, index_t k0, index_t kc, index_t column, index_t width,
                         float* to) {
  using V = Vec<float>;
  using Matrix = detail::QuantizedMatrix;
  constexpr index_t NR = TileShape<float>::NR, kColumns = Matrix::kPanelColumns;
  const Matrix& w = *static_cast<const Matrix*>(matrix);
  const V zero = V::all(static_cast<float>(w.format.zero));
  const index_t block = w.format.block == 0 ? w.k : w.format.block;
  for (index_t x = 0; x < NR; x += V::kLanes, to += V::kLanes) {
    if (x >= width) {
      for (index_t p = 0; p < kc; ++p) V::all(0).store(to + p * NR);
      continue;
    }
    const index_t at = (column + x) % kColumns;
    const std::uint8_t* panel = w.panel((column + x) / kColumns);
    const std::uint8_t* codes = panel + w.codes_begin() + at * Matrix::kGroup;
    for (index_t p = 0; p < kc;) {
      const index_t k = k0 + p, end = std::min(kc, p + block - k % block);
      const V scale = load_scales(w, panel, k / block * kColumns + at);
      const V offset = w.format.has_offset
                           ? load_scales(w, panel + w.scale_bytes(), k / block * kColumns + at)
                           : V::all(0);
      for (; p < end; ++p) {
        const index_t group = (k0 + p) / Matrix::kGroup;
        Int8::Codes c;
        if (w.format.bits == 8) {
          c = Int8::load(codes + group * Matrix::kGroupBytes);
        } else {
          c = Int8::load(codes + (group / 8 * 4 + group % 4) * Matrix::kGroupBytes);
          c = group % 8 < 4 ? Int8::low(c) : Int8::high(c);
        }
        const V code = Int8::byte(c, static_cast<int>((k0 + p) % Matrix::kGroup));
        V weight = scale * (code - zero);
        if (w.format.has_offset) weight = weight + offset;
        weight.store(to + p * NR);
      }
    }
  }
}

/// Up to R rows by `columns` columns from j on, a multiple of 16, with weights dequantised in
/// registers. Every element is one chain of multiply-adds in the order of k, as in tile().
template <int R>
inline void multiply_exact(const detail::GemmProblem<float>& g, const detail::QuantizedMatrix& w,
                           index_t j, index_t columns) {
  using V = Vec<float>;
  constexpr int kParts = 16 / V::kLanes, kPanels = 2 * Int8::kPanels, W = kPanels * kParts;
  const V zero = V::all(static_cast<float>(w.format.zero));
  const bool has_offset = w.format.has_offset, is_narrow = w.format.bits == 4;
  const std::uint8_t *panels[kPanels], *codes[kPanels];
  for (int p = 0; p < kPanels; ++p) {
    panels[p] = w.panel(std::min(j / 16 + p, w.panels() - 1));
    codes[p] = panels[p] + w.codes_begin();
  }
  const float* a[R];
  V acc[R][W];
  ATTN_UNROLL
  for (int r = 0; r < R; ++r) {
    a[r] = g.a + std::min(index_t{r}, g.m - 1) * g.a_row;  // rows past the last repeat it
    ATTN_UNROLL
    for (int x = 0; x < W; ++x) acc[r][x] = V::all(0);
  }
  const index_t block = w.format.block == 0 ? g.k : w.format.block;
  const index_t distance = kPanels * w.panel_bytes();
  for (index_t b = 0, k = 0; b < w.blocks(); ++b) {
    V scale[W], offset[W];
    ATTN_UNROLL
    for (int x = 0; x < W; ++x) {
      const index_t at = b * 16 + x % kParts * V::kLanes;
      scale[x] = load_scales(w, panels[x / kParts], at);
      offset[x] = has_offset ? load_scales(w, panels[x / kParts] + w.scale_bytes(), at) : zero;
    }
    const index_t end = k + block;
    for (index_t group = 0; k < end; ++group) {
      const index_t line = is_narrow ? (b * 4 + group % 4) * 64 : (b * block / 4 + group) * 64;
      Int8::Codes code[W];
      ATTN_UNROLL
      for (int x = 0; x < W; ++x) {
        const std::uint8_t* at = codes[x / kParts] + line + x % kParts * 4 * V::kLanes;
        code[x] = Int8::load(at);
        if (x % kParts == 0) __builtin_prefetch(at + distance, 0, 2);
        if (is_narrow) code[x] = group < 4 ? Int8::low(code[x]) : Int8::high(code[x]);
      }
      for (int t = 0; t < 4 && k < end; ++t, ++k) {
        ATTN_UNROLL
        for (int x = 0; x < W; ++x) {
          V weight = scale[x] * (Int8::byte(code[x], t) - zero);
          if (has_offset) weight = weight + offset[x];
          ATTN_UNROLL
          for (int r = 0; r < R; ++r) acc[r][x] = fma(V::all(a[r][k]), weight, acc[r][x]);
        }
      }
    }
  }
  ATTN_UNROLL
  for (int r = 0; r < R; ++r) {
    if (r >= g.m) break;
    ATTN_UNROLL
    for (int x = 0; x < W; ++x) {
      const index_t left = columns - x * V::kLanes;
      if (left > 0) acc[r][x].store(g.c + r * g.c_row + j + x * V::kLanes, left);
    }
  }
}

/// Columns [first, first + n) of a product.
inline detail::GemmProblem<float> columns_of(detail::GemmProblem<float> g, index_t first,
                                             index_t n) {
  g.n = n;
  g.c += first;
  g.residual += first;
  if (g.bias != nullptr) g.bias += first;
  return g;
}

/// Products of unconverted activations. Few rows dequantise weights in registers, others multiply
/// packed panels of them.
inline void multiply_floats_by(const detail::QuantizedMatrix& w, detail::GemmProblem<float> g,
                               const Executor& executor, Workspace& workspace) {
  constexpr index_t kMaxRows = 4, kUnit = 32 * Int8::kPanels;
  if (g.m == 0 || g.m > kMaxRows || g.a_k != 1 || g.accumulate || g.k == 0) {
    g.source = {&w, expand_panel};
    return gemm(g, executor, workspace);
  }
  const Executor& threads = detail::threads_for(executor, g.m * g.n * g.k);
  const index_t units = (g.n + kUnit - 1) / kUnit;
  const index_t tasks = std::min(units, index_t{4} * detail::worker_count(threads));
  threads.run(tasks, [&](index_t task, int) {
    const index_t begin = units * task / tasks, end = units * (task + 1) / tasks;
    for (index_t unit = begin; unit < end; ++unit) {
      const index_t j = unit * kUnit, columns = std::min(g.n - j, kUnit);
      if (g.m == 1) {
        multiply_exact<1>(g, w, j, columns);
      } else {
        multiply_exact<4>(g, w, j, columns);
      }
    }
    apply_epilogue(g, 0, g.m, begin * kUnit, std::min(end * kUnit, g.n), g.beta != 0);
  });
}

inline void multiply_floats(const detail::QuantizedProblem& problem, const Executor& executor,
                            Workspace& workspace) {
  if (problem.product.m == 0) return;
  index_t column = 0;
  for (const detail::QuantizedMatrix& w : std::span(problem.weights, problem.parts)) {
    multiply_floats_by(w, columns_of(problem.product, column, w.n), executor, workspace);
    column += w.n;
  }
}
