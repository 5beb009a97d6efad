// Kernel text: many rows of 8-bit activations by expanded panels of quantised weights.
// SPDX-License-Identifier: Apache-2.0

/// Panels of quantised values that a tile multiplies by, over a few pieces of k.
struct CodePanels {
  const std::uint8_t* codes[Int8::kPanels];
  const float* scales[Int8::kPanels];   ///< (piece, 16)
  const float* offsets[Int8::kPanels];  ///< nullptr for none
  index_t pieces, groups;               ///< groups of four k in a piece
  index_t last_groups;                  ///< groups in the last piece
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
    // g++ 12 copies all sums at the ends of such a loop, so each iteration takes several groups.
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

/// What one thread expands of its panels before it multiplies: 8-bit values, float scales and
/// offsets.
struct ExpandedPanels {
  static constexpr index_t kMaxK = 1024;  // values of two panels fill L1 (32 KB)
  std::uint8_t codes[Int8::kPanels][kMaxK * 16];
  float scales[Int8::kPanels][kMaxK], offsets[Int8::kPanels][kMaxK];  // a block has at least 16 k
};

/// Expands panels [first, ..) over `pieces` pieces from `first_piece` on.
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
      // k = 0 still takes one pass: the product is 0, and the epilogue is applied.
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
    apply_epilogue(g, 0, g.m, begin * kUnit, std::min(end * kUnit, g.n), g.beta != 0);
  });
}
