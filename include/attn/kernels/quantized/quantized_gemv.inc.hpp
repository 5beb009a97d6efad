// Kernel text: few rows of 8-bit activations by quantised weights, expanded in registers.
// SPDX-License-Identifier: Apache-2.0
//
// Memory limits these products (attn_report gemv_q4 prints their share of the bandwidth). So
// weights are expanded in registers, only the result is written, and every line read prefetches the
// line at the same place in the next panels, because hardware prefetchers restart at each panel's
// end.

/// The most rows of a tile. Each tile reads and expands the weights again, which slows 8
/// conversations (llm_speed llm_decode_batch).
inline constexpr int kMaxGemvHeight = Int8::kRows < 4 ? int{Int8::kRows} : 8;
/// Rows of activations that are multiplied directly from their stored layout.
inline constexpr index_t kGemvRows = std::max(8, 2 * kMaxGemvHeight);

/// Panels of a tile. For 8 rows, the integer and float sums fill all 32 registers of AVX-512; the
/// float sums wait in memory for the end of a block, which costs less than reading every activation
/// for half the columns.
constexpr int gemv_panels(int height) {
  const bool is_low = height == 1 || (height == 2 && kMaxGemvHeight > 2);
  return is_low ? 2 * Int8::kPanels : Int8::kPanels;
}

/// The rows of one tile, stored side by side, so that the tile reads them from one address on.
struct GemvRows {
  int height;
  const std::int8_t* codes;    ///< (group of four k, row, 4)
  const float *scales, *sums;  ///< (piece, row)
  const std::int32_t* starts;  ///< (piece, row)
};

/// Rows from `row` on; rows past the last repeat it. `codes`, `scales` and `starts` have room for
/// `height` rows, twice in `scales`.
inline GemvRows interleave_rows(const QuantizedRows& a, index_t m, index_t row, int height,
                                std::int8_t* codes, float* scales, std::int32_t* starts) {
  float* const sums = scales + height * a.pieces;
  for (index_t r = 0; r < height; ++r) {
    const index_t from = std::min(row + r, m - 1);
    const std::int8_t* const x = a.codes + from * a.row_bytes;
    for (index_t k = 0; k < a.row_bytes; k += 4) {
      std::memcpy(codes + k * height + 4 * r, x + k, 4);
    }
    for (index_t piece = 0; piece < a.pieces; ++piece) {
      const index_t to = piece * height + r, at = from * a.pieces + piece;
      scales[to] = a.scales[at];
      sums[to] = a.sums[at];
      starts[to] = a.starts[at];
    }
  }
  return {.height = height, .codes = codes, .scales = scales, .sums = sums, .starts = starts};
}

/// Rows from `row` on by the panels from column j on: c = x W^T for `columns` columns. The float
/// sums of an element are those of int8_tile(), in the same order. Prefetches panels `distance`
/// bytes ahead.
template <int R, bool kWide, bool kNarrow>
inline void gemv_tile(const detail::GemmProblem<float>& g, const detail::QuantizedMatrix& w,
                      const QuantizedRows& rows, const GemvRows& a, index_t row, index_t j,
                      index_t columns, index_t distance) {
  using V = Vec<float>;
  constexpr int kParts = 16 / V::kLanes, kPanels = gemv_panels(R), W = kPanels * kParts;
  const std::uint8_t *scales[kPanels], *codes[kPanels];
  ATTN_UNROLL
  for (int p = 0; p < kPanels; ++p) {
    scales[p] = w.panel(std::min(j / 16 + p, w.panels() - 1));
    codes[p] = scales[p] + w.codes_begin();
  }
  V acc[R][W];
  ATTN_UNROLL
  for (int r = 0; r < R; ++r) {
    ATTN_UNROLL
    for (int v = 0; v < W; ++v) acc[r][v] = V::all(0);
  }
  const bool is_row = w.format.block == 0, has_offset = w.format.has_offset;
  const index_t scale_bytes = w.scale_bytes();
  const index_t scale_size = w.format.float_scales ? 4 : 2;
  for (index_t piece = 0; piece < rows.pieces; ++piece) {
    Int8::Sums sums[R][W];
    const std::int8_t* const x = a.codes + piece * rows.piece * R;
    ATTN_UNROLL
    for (int r = 0; r < R; ++r) {
      const Int8::Sums start = Int8::all(a.starts[piece * R + r]);
      ATTN_UNROLL
      for (int v = 0; v < W; ++v) sums[r][v] = start;
    }
    // Line `t` of quantised weights: group g of four k, or groups g and g + 4.
    const auto add_line = [&](index_t t) __attribute__((always_inline)) {
      Int8::Codes code[W];
      ATTN_UNROLL
      for (int v = 0; v < W; ++v) {
        const std::uint8_t* at = codes[v / kParts] + t * 64 + v % kParts * 4 * V::kLanes;
        code[v] = Int8::load(at);
        if (v % kParts == 0) __builtin_prefetch(at + distance, 0, 2);
      }
      ATTN_UNROLL
      for (int r = 0; r < R; ++r) {
        const Int8::Sums four = Int8::four(x + (t * R + r) * 4);
        ATTN_UNROLL
        for (int v = 0; v < W; ++v) {
          const Int8::Codes low = kNarrow ? Int8::low(code[v]) : code[v];
          sums[r][v] = Int8::template dot<kWide>(sums[r][v], low, four);
        }
      }
      if constexpr (kNarrow) {
        ATTN_UNROLL
        for (int v = 0; v < W; ++v) code[v] = Int8::high(code[v]);
        ATTN_UNROLL
        for (int r = 0; r < R; ++r) {
          const Int8::Sums four = Int8::four(x + ((t + 4) * R + r) * 4);
          ATTN_UNROLL
          for (int v = 0; v < W; ++v) {
            sums[r][v] = Int8::template dot<kWide>(sums[r][v], code[v], four);
          }
        }
      }
    };
    constexpr index_t kTurn = 4;  // a block of 16 k, or of 32 of 4 bits: see int8_tile()
    const index_t lines =
        kNarrow ? kTurn : (std::min(rows.piece, g.k - piece * rows.piece) + 3) / 4;
    index_t line = 0;
    for (; line + kTurn <= lines; line += kTurn) {
      ATTN_UNROLL
      for (int t = 0; t < kTurn; ++t) add_line(line + t);
    }
    if constexpr (!kNarrow) {
      for (; line < lines; ++line) add_line(line);
    }
    const index_t entry = is_row ? 0 : piece * 16;
    ATTN_UNROLL
    for (int v = 0; v < W; ++v) {
      const std::uint8_t* panel = scales[v / kParts];
      const index_t at = entry + v % kParts * V::kLanes;
      const V scale = load_scales(w, panel, at);
      if (v % kParts == 0) __builtin_prefetch(panel + at * scale_size + distance, 0, 2);
      ATTN_UNROLL
      for (int r = 0; r < R; ++r) {
        const V product = Int8::to_float(sums[r][v]) * V::all(a.scales[piece * R + r]);
        acc[r][v] = fma(product, scale, acc[r][v]);
      }
      if (has_offset) {
        const V offset = load_scales(w, panel + scale_bytes, at);
        if (v % kParts == 0) {
          __builtin_prefetch(panel + scale_bytes + at * scale_size + distance, 0, 2);
        }
        ATTN_UNROLL
        for (int r = 0; r < R; ++r) {
          acc[r][v] = fma(V::all(a.sums[piece * R + r]), offset, acc[r][v]);
        }
      }
    }
    ATTN_UNROLL
    for (int p = 0; p < kPanels; ++p) codes[p] += lines * 64;
  }
  ATTN_UNROLL
  for (int r = 0; r < R; ++r) {
    if (row + r >= g.m) break;
    ATTN_UNROLL
    for (int v = 0; v < W; ++v) {
      const index_t left = columns - v * V::kLanes;
      if (left > 0) acc[r][v].store(g.c + (row + r) * g.c_row + j + v * V::kLanes, left);
    }
  }
}

/// Columns [begin, end); `begin` is the first column of a panel.
template <bool kWide, bool kNarrow>
inline void gemv_columns(const detail::GemmProblem<float>& g, const detail::QuantizedMatrix& w,
                         const QuantizedRows& a, std::span<const GemvRows> tiles, index_t begin,
                         index_t end) {
  constexpr int kPanels = gemv_panels(1);
  for (index_t j = begin; j < end; j += 16 * kPanels) {
    // The memory after the last panel is not prefetched: another thread reads it.
    index_t row = 0, distance = j + 16 * kPanels < end ? kPanels * w.panel_bytes() : 0;
    for (const GemvRows& tile : tiles) {
      const auto multiply = [&](auto height) {
        constexpr int R = std::min(height.value, kMaxGemvHeight);
        constexpr index_t kColumns = 16 * gemv_panels(R);
        for (index_t at = j; at < std::min(j + 16 * kPanels, end); at += kColumns) {
          gemv_tile<R, kWide, kNarrow>(g, w, a, tile, row, at, std::min(end - at, kColumns),
                                       distance);
        }
      };
      switch (tile.height) {
        case 1:
          multiply(std::integral_constant<int, 1>{});
          break;
        case 2:
          multiply(std::integral_constant<int, 2>{});
          break;
        case 4:
          multiply(std::integral_constant<int, 4>{});
          break;
        default:
          multiply(std::integral_constant<int, 8>{});
      }
      row += tile.height;
      distance = 0;  // their prefetches are under way
    }
  }
}

/// Up to kGemvRows rows by stacked weights of one format.
inline void multiply_codes(const detail::GemmProblem<float>& g,
                           std::span<const detail::QuantizedMatrix> parts, const QuantizedRows& a,
                           const Executor& threads, Workspace& workspace) {
  const bool is_one = g.m == 1;  // stored in the layout of its tile
  const index_t room = is_one ? 0 : detail::round_up(g.m, index_t{kMaxGemvHeight});
  Scratch<std::int8_t> codes(workspace, room * a.row_bytes);
  Scratch<float> scales(workspace, 2 * room * a.pieces);
  Scratch<std::int32_t> starts(workspace, room * a.pieces);
  GemvRows tiles[kGemvRows / kMaxGemvHeight];
  std::size_t count = 0;
  for (index_t row = 0; row < g.m; row += tiles[count++].height) {
    int height = 1;
    while (height < std::min(g.m - row, index_t{kMaxGemvHeight})) height *= 2;
    tiles[count] = is_one ? GemvRows{.height = 1,
                                     .codes = a.codes,
                                     .scales = a.scales,
                                     .sums = a.sums,
                                     .starts = a.starts}
                          : interleave_rows(a, g.m, row, height, codes.data() + row * a.row_bytes,
                                            scales.data() + 2 * row * a.pieces,
                                            starts.data() + row * a.pieces);
  }
  const QuantizedFormat& format = parts[0].format;
  const auto multiply = format.bits == 4  ? gemv_columns<false, true>
                        : format.has_wide ? gemv_columns<true, false>
                                          : gemv_columns<false, false>;
  constexpr index_t kUnit = 16 * gemv_panels(1);
  const auto units_of = [](const detail::QuantizedMatrix& w) { return (w.n + kUnit - 1) / kUnit; };
  index_t units = 0;
  for (const detail::QuantizedMatrix& w : parts) units += units_of(w);
  // Long runs of panels, since each begins without prefetches; if there are many panels, several
  // runs per thread, for balance.
  constexpr index_t kRun = 32;
  const index_t workers = detail::worker_count(threads);
  const index_t tasks = std::min(units, std::clamp(units / kRun, workers, 4 * workers));
  threads.run(tasks, [&](index_t task, int) {
    index_t begin = units * task / tasks, end = units * (task + 1) / tasks, column = 0;
    for (const detail::QuantizedMatrix& w : parts) {
      const index_t j0 = std::max(begin, index_t{0}) * kUnit, j1 = std::min(end * kUnit, w.n);
      if (j0 < j1) {
        const detail::GemmProblem<float> part = columns_of(g, column, w.n);
        multiply(part, w, a, {tiles, count}, j0, j1);
        apply_epilogue(part, 0, g.m, j0, j1, g.beta != 0);
      }
      begin -= units_of(w);
      end -= units_of(w);
      column += w.n;
    }
  });
}
