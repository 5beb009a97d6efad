// Kernel text: products with quantised weights, of activations in float or in 8 bits.
// SPDX-License-Identifier: Apache-2.0

/// Scales or offsets of one panel from entry `at` on, as floats.
ATTN_INLINE Vec<float> load_scales(const detail::QuantizedMatrix& w, const std::uint8_t* part,
                                   index_t at) {
  if (w.format.float_scales) return Vec<float>::load(reinterpret_cast<const float*>(part) + at);
  return Int8::widen(reinterpret_cast<const float16*>(part) + at);
}

/// A packed panel of floats for tile_panel(): PanelSource::write. Every weight is that of
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

/// Up to R rows by `columns` columns from j on, a multiple of 16, with weights that are made floats
/// in registers. Every element is one chain of multiply-adds in the order of k, as in tile().
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
    a[r] = g.a + std::min(index_t{r}, g.m - 1) * g.a_row;  // rows past the last are the last again
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

/// Products of activations as they are. Few rows take weights straight from their codes, others
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
    finish_block(g, 0, g.m, begin * kUnit, std::min(end * kUnit, g.n), g.beta != 0);
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

/// Rows of activations in 8 bits, filled up with zeros to whole groups of codes; and per row and
/// piece (a block of weights) what the sums over it need.
struct QuantizedRows {
  std::int8_t* codes;
  index_t row_bytes;      ///< from one row to the next
  index_t piece, pieces;  ///< of k
  float* scales;          ///< (row, piece)
  float* sums;            ///< scale times the sum of codes, which offsets are multiplied by
  std::int32_t* starts;   ///< -zero times the sum of codes
};

/// One row of k activations at `x`, x_k apart. Neighbours of `shared` have one scale.
inline void quantize_row(const float* x, index_t x_k, index_t k, index_t shared, int zero,
                         const QuantizedRows& rows, index_t row, float* line) {
  using V = Vec<float>;
  std::int8_t* codes = rows.codes + row * rows.row_bytes;
  if (x_k != 1) {
    for (index_t i = 0; i < k; ++i) line[i] = x[i * x_k];
    x = line;
  }
  for (index_t begin = 0; begin < k; begin += shared) {
    const index_t n = std::min(shared, k - begin);
    V most = V::all(0), check = V::all(0);
    each_vector<float>(n, [&](index_t i, auto lanes) {
      const V v = load(x + begin + i, lanes);
      most = max(most, max(v, V::all(0) - v));
      check = fma(v, V::all(0), check);  // NaN where one is not finite
    });
    const bool is_finite = sum(check) == 0;
    const float largest = is_finite ? max_lane(most) : 0, step = largest / 127;
    const bool is_zero = step < std::numeric_limits<float>::min();
    const float scale = !is_finite ? std::numeric_limits<float>::quiet_NaN() : is_zero ? 0 : step;
    const V factor = V::all(is_zero ? 0 : 127 / largest);
    for (index_t at = begin; at < begin + n; at += rows.piece) {
      const index_t size = std::min(rows.piece, begin + n - at);
      V total = V::all(0);
      index_t i = 0;
      for (; i + V::kLanes <= size; i += V::kLanes) {
        const V code = is_zero ? V::all(0) : round(V::load(x + at + i) * factor);
        total = total + code;
        Int8::narrow(code, codes + at + i);
      }
      if (i < size) {
        const V code = is_zero ? V::all(0) : round(V::load(x + at + i, size - i) * factor);
        total = total + code;
        std::int8_t tail[V::kLanes];
        Int8::narrow(code, tail);
        std::memcpy(codes + at + i, tail, static_cast<std::size_t>(size - i));
      }
      const float codes_sum = sum(total);  // exact: at most 127 times 1024
      const index_t piece = row * rows.pieces + at / rows.piece;
      rows.scales[piece] = scale;
      rows.sums[piece] = scale * codes_sum;
      rows.starts[piece] = -zero * static_cast<std::int32_t>(codes_sum);
    }
  }
  for (index_t i = k; i < rows.row_bytes; ++i) codes[i] = 0;
}

#include "attn/kernels/quantized_gemv.inc.hpp"

/// Panels of codes that a tile multiplies by, over a few pieces of k.
struct CodePanels {
  const std::uint8_t* codes[Int8::kPanels];
  const float* scales[Int8::kPanels];   ///< (piece, 16)
  const float* offsets[Int8::kPanels];  ///< nullptr for none
  index_t pieces, groups;               ///< groups of four k in a piece
  index_t last_groups;                  ///< and in the last one
  index_t scale_step;                   ///< from piece to piece; 0 where all have the same
};

/// R rows by all columns of the panels: c (row) = or += the products of pieces [first_piece, ..).
template <int R, bool kWide>
inline void int8_tile(const CodePanels& b, const QuantizedRows& a, index_t row, index_t first_piece,
                      float* c, index_t c_row, index_t columns, bool adds) {
  using V = Vec<float>;
  constexpr int kParts = 16 / V::kLanes, W = Int8::kPanels * kParts;
  V acc[R][W];
  ATTN_UNROLL
  for (int r = 0; r < R; ++r) {
    ATTN_UNROLL
    for (int w = 0; w < W; ++w) {
      const index_t left = columns - w * V::kLanes;
      acc[r][w] = adds && left > 0 ? V::load(c + r * c_row + w * V::kLanes, left) : V::all(0);
    }
  }
  const std::uint8_t* codes[Int8::kPanels];
  for (int p = 0; p < Int8::kPanels; ++p) codes[p] = b.codes[p];
  const std::int8_t* x = a.codes + row * a.row_bytes + first_piece * a.piece;
  const index_t entry = row * a.pieces + first_piece;
  for (index_t piece = 0; piece < b.pieces; ++piece) {
    Int8::Sums sums[R][W];
    ATTN_UNROLL
    for (int r = 0; r < R; ++r) {
      const Int8::Sums start = Int8::all(a.starts[entry + r * a.pieces + piece]);
      ATTN_UNROLL
      for (int w = 0; w < W; ++w) sums[r][w] = start;
    }
    const index_t groups = piece + 1 == b.pieces ? b.last_groups : b.groups;
    // g++ 12 copies all sums at the ends of such a loop, so that each turn takes several groups.
    constexpr int kTurn = 4;
    const auto add_group = [&](int t) __attribute__((always_inline)) {
      Int8::Codes code[W];
      ATTN_UNROLL
      for (int w = 0; w < W; ++w) {
        code[w] = Int8::load(codes[w / kParts] + t * 64 + w % kParts * 4 * V::kLanes);
      }
      ATTN_UNROLL
      for (int r = 0; r < R; ++r) {
        const Int8::Sums four = Int8::four(x + r * a.row_bytes + 4 * t);
        ATTN_UNROLL
        for (int w = 0; w < W; ++w) {
          sums[r][w] = Int8::template dot<kWide>(sums[r][w], code[w], four);
        }
      }
    };
    const auto advance = [&](int by) __attribute__((always_inline)) {
      x += 4 * by;
      ATTN_UNROLL
      for (int p = 0; p < Int8::kPanels; ++p) codes[p] += 64 * by;
    };
    index_t g = 0;
    for (; g + kTurn <= groups; g += kTurn, advance(kTurn)) {
      ATTN_UNROLL
      for (int t = 0; t < kTurn; ++t) add_group(t);
    }
    for (; g < groups; ++g, advance(1)) add_group(0);
    ATTN_UNROLL
    for (int w = 0; w < W; ++w) {
      const index_t at = piece * b.scale_step + w % kParts * V::kLanes;
      const V scale = V::load(b.scales[w / kParts] + at);
      ATTN_UNROLL
      for (int r = 0; r < R; ++r) {
        const V product =
            Int8::to_float(sums[r][w]) * V::all(a.scales[entry + r * a.pieces + piece]);
        acc[r][w] = fma(product, scale, acc[r][w]);
      }
      if (b.offsets[0] != nullptr) {
        const V offset = V::load(b.offsets[w / kParts] + at);
        ATTN_UNROLL
        for (int r = 0; r < R; ++r) {
          acc[r][w] = fma(V::all(a.sums[entry + r * a.pieces + piece]), offset, acc[r][w]);
        }
      }
    }
  }
  ATTN_UNROLL
  for (int r = 0; r < R; ++r) {
    ATTN_UNROLL
    for (int w = 0; w < W; ++w) {
      const index_t left = columns - w * V::kLanes;
      if (left >= V::kLanes) {
        acc[r][w].store(c + r * c_row + w * V::kLanes);
      } else if (left > 0) {
        acc[r][w].store(c + r * c_row + w * V::kLanes, left);
      }
    }
  }
}

/// Up to R rows.
template <int R, bool kWide>
inline void int8_rows(index_t height, const CodePanels& b, const QuantizedRows& a, index_t row,
                      index_t first_piece, float* c, index_t c_row, index_t columns, bool adds) {
  if constexpr (R > 1) {
    if (height < R) {
      return int8_rows<R - 1, kWide>(height, b, a, row, first_piece, c, c_row, columns, adds);
    }
  }
  int8_tile<R, kWide>(b, a, row, first_piece, c, c_row, columns, adds);
}

/// What one thread makes of its panels before it multiplies by them: codes of 8 bits, scales and
/// offsets in float.
struct ExpandedPanels {
  static constexpr index_t kMaxK =
      1024;  // codes of two panels fill the first cache, 32 KB, and no more
  std::uint8_t codes[Int8::kPanels][kMaxK * 16];
  float scales[Int8::kPanels][kMaxK], offsets[Int8::kPanels][kMaxK];  // a block has 16 k at least
};

/// Panels [first, ..) over `pieces` pieces from `first_piece` on.
inline CodePanels expand_codes(const detail::QuantizedMatrix& w, index_t first, index_t first_piece,
                               index_t pieces, index_t piece, ExpandedPanels& to) {
  using V = Vec<float>;
  const bool is_row = w.format.block == 0;
  CodePanels result;
  result.pieces = pieces;
  result.groups = piece / 4;
  const index_t k_begin = first_piece * piece, k_end = std::min(k_begin + pieces * piece, w.k);
  result.last_groups = (k_end - k_begin - (pieces - 1) * piece + 3) / 4;
  result.scale_step = is_row ? 0 : 16;
  for (index_t p = 0; p < Int8::kPanels; ++p) {
    const std::uint8_t* panel = w.panel(std::min(first + p, w.panels() - 1));
    const std::uint8_t* codes = panel + w.codes_begin() + k_begin * 16 * w.format.bits / 8;
    result.codes[p] = codes;
    if (w.format.bits == 4) {
      result.codes[p] = to.codes[p];
      constexpr index_t kSize = 4 * V::kLanes;
      std::uint8_t* out = to.codes[p];
      for (index_t block = 0; block < pieces; ++block, out += 512, codes += 256) {
        for (index_t at = 0; at < 256; at += kSize) {
          const Int8::Codes both = Int8::load(codes + at);
          Int8::store(Int8::low(both), out + at);
          Int8::store(Int8::high(both), out + 256 + at);
        }
      }
    }
    const index_t begin = is_row ? 0 : first_piece * 16, count = is_row ? 16 : pieces * 16;
    for (index_t at = 0; at < count; at += V::kLanes) {
      load_scales(w, panel, begin + at).store(to.scales[p] + at);
    }
    result.scales[p] = to.scales[p];
    result.offsets[p] = nullptr;
    if (w.format.has_offset) {
      for (index_t at = 0; at < count; at += V::kLanes) {
        load_scales(w, panel + w.scale_bytes(), begin + at).store(to.offsets[p] + at);
      }
      result.offsets[p] = to.offsets[p];
    }
  }
  return result;
}

#if defined(ATTN_TARGET_TILES)
#include "attn/kernels/quantized_tiles.inc.hpp"
#endif

/// Many rows: panels are expanded once for all of them.
inline void multiply_panels(const detail::GemmProblem<float>& g, const detail::QuantizedMatrix& w,
                            const QuantizedRows& rows, const Executor& threads,
                            ExpandedPanels* expanded) {
  const index_t workers = detail::worker_count(threads);
  const index_t units = (w.panels() + Int8::kPanels - 1) / Int8::kPanels;
  const index_t tasks = std::min(units, workers == 1 ? 1 : 8 * workers);
  const index_t pieces_at_once = std::max(index_t{1}, ExpandedPanels::kMaxK / rows.piece);
  threads.run(tasks, [&](index_t task, int worker) {
    constexpr index_t kUnit = 16 * Int8::kPanels;
    const index_t begin = units * task / tasks, end = units * (task + 1) / tasks;
    for (index_t unit = begin; unit < end; ++unit) {
      const index_t j = unit * kUnit, columns = std::min(g.n - j, kUnit);
      // k = 0 still takes one round: the product is 0, the epilogue is due.
      for (index_t piece = 0; piece == 0 || piece < rows.pieces; piece += pieces_at_once) {
        const index_t pieces = std::min(pieces_at_once, rows.pieces - piece);
        const CodePanels b =
            expand_codes(w, unit * Int8::kPanels, piece, pieces, rows.piece, expanded[worker]);
        for (index_t i = 0; i < g.m; i += Int8::kRows) {
          const index_t height = std::min(g.m - i, Int8::kRows);
          float* c = g.c + i * g.c_row + j;
          if (w.format.has_wide) {
            int8_rows<Int8::kRows, true>(height, b, rows, i, piece, c, g.c_row, columns, piece > 0);
          } else {
            int8_rows<Int8::kRows, false>(height, b, rows, i, piece, c, g.c_row, columns,
                                          piece > 0);
          }
        }
      }
    }
    finish_block(g, 0, g.m, begin * kUnit, std::min(end * kUnit, g.n), g.beta != 0);
  });
}

/// Products of activations in 8 bits by weights of one format, one below the other.
inline void multiply_int8_by(std::span<const detail::QuantizedMatrix> parts,
                             const detail::GemmProblem<float>& g, const Executor& executor,
                             Workspace& workspace) {
  if (g.n == 0) return;
  const QuantizedFormat& format = parts[0].format;
  constexpr index_t kMaxK = ExpandedPanels::kMaxK;
  const bool is_row = format.block == 0;
  // Reading and expanding a weight counts as 12 products, once for all rows: decoding SmolLM2 on
  // two threads takes 0.58 of the time (bench/llm_speed llm_decode, median of three pairs).
  const Executor& threads = detail::threads_for(executor, (g.m / 4 + 3) * g.n * g.k);
  const index_t workers = detail::worker_count(threads);
  QuantizedRows rows{};
  rows.row_bytes = detail::round_up(g.k, index_t{64});
  rows.piece = is_row ? kMaxK : format.block;
  rows.pieces = (g.k + rows.piece - 1) / rows.piece;
  Scratch<std::int8_t> codes(workspace, g.m * rows.row_bytes);
  Scratch<float> scales(workspace, 2 * g.m * rows.pieces);
  Scratch<std::int32_t> starts(workspace, g.m * rows.pieces);
  Scratch<float> lines(workspace, g.a_k == 1 ? 0 : workers * g.k);
  rows.codes = codes.data();
  rows.scales = scales.data();
  rows.sums = scales.data() + g.m * rows.pieces;
  rows.starts = starts.data();
  const int zero = Int8::zero(format.zero, format.has_wide);
  const index_t shared = is_row ? std::max(g.k, index_t{1}) : 32;

  constexpr index_t kTaskRows = 16;
  const auto quantize = [&](index_t task, int worker) {
    for (index_t i = task * kTaskRows; i < std::min((task + 1) * kTaskRows, g.m); ++i) {
      float* line = g.a_k == 1 ? nullptr : lines.data() + worker * g.k;
      quantize_row(g.a + i * g.a_row, g.a_k, g.k, shared, zero, rows, i, line);
    }
  };
  const index_t row_tasks = (g.m + kTaskRows - 1) / kTaskRows;
  if (row_tasks == 1) {
    quantize(0, 0);
  } else {
    threads.run(row_tasks, quantize);
  }

  if (g.m <= kGemvRows) return multiply_codes(g, parts, rows, threads);

  Scratch<ExpandedPanels> expanded(workspace, workers);
  index_t column = 0;
  for (const detail::QuantizedMatrix& w : parts) {
    const detail::GemmProblem<float> part = columns_of(g, column, w.n);
    column += w.n;
#if defined(ATTN_TARGET_TILES)
    if (takes_tiles(part, format)) {
      multiply_int8_tiles(part, w, rows, threads, workspace);
      continue;
    }
#endif
    multiply_panels(part, w, rows, threads, expanded.data());
  }
}

inline void multiply_int8(const detail::QuantizedProblem& problem, const Executor& executor,
                          Workspace& workspace) {
  if (problem.product.m == 0) return;
  const detail::QuantizedMatrix *part = problem.weights, *end = part + problem.parts;
  for (index_t column = 0; part != end;) {
    const detail::QuantizedMatrix* const first = part;
    index_t n = 0;
    for (; part != end && part->format == first->format; ++part) n += part->n;
    multiply_int8_by({first, part}, columns_of(problem.product, column, n), executor, workspace);
    column += n;
  }
}

template <>
struct Row<detail::Backend<family::QuantizedProducts, float, float>> {
  static constexpr detail::Backend<family::QuantizedProducts, float, float> kTable{
      .multiply_floats = detail::kKernel<multiply_floats>,
      .multiply_int8 = detail::kKernel<multiply_int8>};
};
