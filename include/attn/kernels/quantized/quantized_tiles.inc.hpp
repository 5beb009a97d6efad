// Kernel text: many rows of 8-bit activations by quantised weights in tiles.
// SPDX-License-Identifier: Apache-2.0

struct ByteProducts {
  template <int C, int A, int B>
  static ATTN_INLINE void add() {
    Tiles::add_bytes<C, A, B>();
  }
};

/// Whether tiles take a product. Weights with one scale per row are multiplied as stored, which
/// pays above 8 rows; weights in blocks are multiplied as signed numbers, value - zero, so that the
/// sums of a block need no correction.
inline bool takes_tiles(const detail::GemmProblem<float>& g, const QuantizedFormat& format) {
  return g.k > 0 && g.m > (format.block == 0 ? 8 : kGemvRows) &&
         (format.block == 0 || (format.has_wide ? format.zero == 128 : format.zero < 128));
}

/// Activations in tiles: 16 rows each, one tile of `depth` bytes of k after another; and, per
/// block, the terms that their sums need.
struct TiledActivations {
  index_t depth, steps;  ///< bytes of k in a tile's row; tiles along k
  std::int8_t* codes;    ///< (tile of rows, step, 16, depth); of rows up to a multiple of kTileRows
  float *scales, *sums;  ///< (tile of rows, block, 16), for weights in blocks

  const std::int8_t* at(index_t row, index_t step) const {
    return codes + (row / 16 * steps + step) * depth * 16;
  }
};

/// Copies sixteen quantised rows, from row 16 `tile` on.
inline void tile_rows(const QuantizedRows& rows, index_t count, index_t tile,
                      const TiledActivations& to) {
  const auto depth = static_cast<std::size_t>(to.depth);
  std::int8_t* codes = to.codes + tile * to.steps * to.depth * 16;
  for (index_t step = 0; step < to.steps; ++step) {
    for (index_t row = tile * 16; row < tile * 16 + 16; ++row, codes += depth) {
      // Rows past the last repeat it: their results are not used.
      const index_t from = std::min(row, count - 1);
      std::memcpy(codes, rows.codes + from * rows.row_bytes + step * to.depth, depth);
    }
  }
  if (to.depth == 64) return;
  for (index_t block = 0; block < rows.pieces; ++block) {
    for (index_t r = 0; r < 16; ++r) {
      const index_t from = std::min(tile * 16 + r, count - 1) * rows.pieces + block;
      to.scales[(tile * rows.pieces + block) * 16 + r] = rows.scales[from];
      to.sums[(tile * rows.pieces + block) * 16 + r] = rows.sums[from];
    }
  }
}

/// The expanded weights of one thread, and the sums of its tiles.
struct TileScratch {
  static constexpr index_t kMaxK = 1024;  // of two panels: 32 KB, which fits in L1
  alignas(64) std::int32_t sums[8][256];
  alignas(64) float whole[256];
  alignas(64) std::uint8_t codes[2][kMaxK * 16];
  alignas(64) float scales[2][kMaxK], offsets[2][kMaxK];  // a block has at least 16 k
};

/// Scales or offsets of `count` blocks of a panel from `block` on.
inline void expand_scales(const detail::QuantizedMatrix& w, const std::uint8_t* part, index_t block,
                          index_t count, float* to) {
  for (index_t at = 0; at < count * 16; at += Vec<float>::kLanes) {
    load_scales(w, part, block * 16 + at).store(to + at);
  }
}

/// `height` rows of sums (16 x 16, rows kTileColumns apart) of `pieces` pieces, each + start, times
/// both scales: added to c, or written to c.
inline void close_row_sums(index_t height, index_t columns, index_t pieces,
                           const std::int32_t* sums, const QuantizedRows& a, index_t entry,
                           const float* scales, float* c, index_t c_row, bool adds) {
  using V = Vec<float>;
  const V scale = V::load(scales);
  for (index_t r = 0; r < height; ++r, entry += a.pieces, sums += kTileColumns, c += c_row) {
    V all = adds ? V::load(c, columns) : V::all(0);
    for (index_t p = 0; p < pieces; ++p) {
      const Int8::Sums of_piece = Int8::load_sums(sums + p * kTileRows * kTileColumns);
      const V sum = Int8::to_float(Int8::add(of_piece, Int8::all(a.starts[entry + p])));
      all = fma(sum * V::all(a.scales[entry + p]), scale, all);
    }
    all.store(c, columns);
  }
}

/// Rows [i0, i1) by columns from j on of weights with one scale per row.
inline void multiply_row_tiles(const detail::GemmProblem<float>& g,
                               const detail::QuantizedMatrix& w, const QuantizedRows& a,
                               const TiledActivations& x, index_t i0, index_t i1, index_t j,
                               TileScratch& scratch) {
  constexpr index_t kSums = kTileRows * kTileColumns;
  static_assert(sizeof scratch.sums == 2 * kSums * sizeof(std::int32_t));
  std::int32_t* const sums = scratch.sums[0];
  const index_t first = j / 16, second = std::min(first + 1, w.panels() - 1);
  const std::uint8_t* const panels[2] = {w.panel(first), w.panel(second)};
  for (int p = 0; p < 2; ++p) expand_scales(w, panels[p], 0, 1, scratch.scales[p]);
  // The last groups of a panel do not fill a tile: the memory after them may not belong to the
  // panel. Activations are 0 there.
  const index_t whole = w.groups() / 16 * 64, rest = w.groups() * 4 - whole;
  for (int p = 0; p < 2 && rest > 0; ++p) {
    std::memcpy(scratch.codes[p], panels[p] + w.codes_begin() + whole * 16,
                static_cast<std::size_t>(rest * 16));
  }
  // Two panels if both fit in L1: C is written once.
  const index_t at_once = 2 * a.piece <= TileScratch::kMaxK ? 2 : 1;
  for (index_t piece = 0; piece < a.pieces; piece += at_once) {
    const index_t pieces = std::min(at_once, a.pieces - piece);
    for (index_t i = i0; i < i1; i += kTileRows) {
      for (index_t p = 0; p < pieces; ++p) {
        const index_t k = (piece + p) * a.piece, k_end = std::min(k + a.piece, g.k);
        const index_t steps = (std::min(k_end, whole) - k) / 64;
        const std::int8_t *x0 = x.at(i, k / 64), *x1 = x.at(i + 16, k / 64);
        load_sums(sums, kTileColumns, false);
        add_products<ByteProducts>(steps, x0, x1, panels[0] + w.codes_begin() + k * 16,
                                   panels[1] + w.codes_begin() + k * 16);
        if (k_end > whole) {
          add_products<ByteProducts>(1, x0 + steps * Tiles::kBytes, x1 + steps * Tiles::kBytes,
                                     scratch.codes[0], scratch.codes[1]);
        }
        store_sums(sums + p * kSums, kTileColumns);
      }
      for (index_t t = 0; t < 4; ++t) {
        const index_t row = i + t / 2 * 16, column = j + t % 2 * 16;
        const index_t columns = std::min(g.n - column, index_t{16});
        if (columns <= 0) continue;
        close_row_sums(std::min(i1 - row, index_t{16}), columns, pieces,
                       sums + t / 2 * 16 * kTileColumns + t % 2 * 16, a, row * a.pieces + piece,
                       scratch.scales[t % 2], g.c + row * g.c_row + column, g.c_row, piece > 0);
      }
    }
  }
}

/// Sixteen rows by one panel over `blocks` blocks of k: each block's sums are scaled and added to c
/// (16 x 16) in turn, while products of the next blocks run.
template <bool kOffsets>
inline void multiply_blocks(index_t depth, index_t blocks, const std::int8_t* x,
                            const float* x_scales, const float* x_sums, const std::uint8_t* codes,
                            const float* scales, const float* offsets, std::int32_t (*sums)[256],
                            float* c, index_t c_row, bool adds) {
  using V = Vec<float>;
  constexpr index_t kBlocksAtOnce = 4;
  V acc[16];
  ATTN_UNROLL
  for (int r = 0; r < 16; ++r) acc[r] = adds ? V::load(c + r * c_row) : V::all(0);
  const auto multiply = [&](auto tile, index_t block) __attribute__((always_inline)) {
    constexpr int kTile = decltype(tile)::value;
    Tiles::load<4>(x + block * depth * 16, depth);
    Tiles::load<6>(codes + block * depth * 16, Tiles::kRowBytes);
    Tiles::zero<kTile>();
    Tiles::add_signed_bytes<kTile, 4, 6>();
  };
  const auto multiply_some = [&](index_t block) __attribute__((always_inline)) {
    std::int32_t(*to)[256] = sums + block / kBlocksAtOnce % 2 * kBlocksAtOnce;
    const index_t last = blocks - 1;
    multiply(std::integral_constant<int, 0>{}, std::min(block, last));
    multiply(std::integral_constant<int, 1>{}, std::min(block + 1, last));
    multiply(std::integral_constant<int, 2>{}, std::min(block + 2, last));
    multiply(std::integral_constant<int, 3>{}, std::min(block + 3, last));
    Tiles::store<0>(to[0], 64);
    Tiles::store<1>(to[1], 64);
    Tiles::store<2>(to[2], 64);
    Tiles::store<3>(to[3], 64);
  };
  multiply_some(0);
  for (index_t begin = 0; begin < blocks; begin += kBlocksAtOnce) {
    if (begin + kBlocksAtOnce < blocks) multiply_some(begin + kBlocksAtOnce);
    const std::int32_t* from = sums[begin / kBlocksAtOnce % 2 * kBlocksAtOnce];
    const index_t count = std::min(kBlocksAtOnce, blocks - begin);
    for (index_t block = 0; block < count; ++block, from += 256, x_scales += 16, scales += 16) {
      const V scale = V::load(scales);
      ATTN_UNROLL
      for (int r = 0; r < 16; ++r) {
        const V product = Int8::to_float(Int8::load_sums(from + r * 16)) * V::all(x_scales[r]);
        acc[r] = fma(product, scale, acc[r]);
      }
      if constexpr (kOffsets) {
        const V offset = V::load(offsets);
        ATTN_UNROLL
        for (int r = 0; r < 16; ++r) acc[r] = fma(V::all(x_sums[r]), offset, acc[r]);
        offsets += 16;
        x_sums += 16;
      }
    }
  }
  ATTN_UNROLL
  for (int r = 0; r < 16; ++r) acc[r].store(c + r * c_row);
}

/// Expands blocks [block, block + blocks) of a panel to signed numbers, value - zero, and their
/// scales.
inline void expand_blocks(const detail::QuantizedMatrix& w, index_t panel, index_t block,
                          index_t blocks, std::uint8_t* to, float* scales, float* offsets) {
  const std::uint8_t* const from_panel = w.panel(panel);
  const int zero = w.format.zero;
  expand_scales(w, from_panel, block, blocks, scales);
  if (w.format.has_offset) {
    expand_scales(w, from_panel + w.scale_bytes(), block, blocks, offsets);
  }
  const index_t bytes = w.format.block * 16;  // of a block, expanded
  const std::uint8_t* from = from_panel + w.codes_begin() + block * bytes * w.format.bits / 8;
  if (w.format.bits == 8) {
    for (index_t at = 0; at < blocks * bytes; at += 64) {
      Int8::store(Int8::minus(Int8::load(from + at), zero), to + at);
    }
    return;
  }
  for (index_t b = 0; b < blocks; ++b, to += 512, from += 256) {
    for (index_t at = 0; at < 256; at += 64) {
      const Int8::Codes both = Int8::load(from + at);
      Int8::store(Int8::minus(Int8::low(both), zero), to + at);
      Int8::store(Int8::minus(Int8::high(both), zero), to + 256 + at);
    }
  }
}

/// Rows [i0, i1) by columns from j on of weights in blocks.
inline void multiply_block_tiles(const detail::GemmProblem<float>& g,
                                 const detail::QuantizedMatrix& w, const TiledActivations& x,
                                 index_t i0, index_t i1, index_t j, TileScratch& scratch) {
  const index_t depth = w.format.block, at_once = TileScratch::kMaxK / depth;
  const index_t panels = std::min(index_t{2}, w.panels() - j / 16);
  for (index_t block = 0; block < x.steps; block += at_once) {
    const index_t blocks = std::min(x.steps - block, at_once);
    for (index_t p = 0; p < panels; ++p) {
      expand_blocks(w, j / 16 + p, block, blocks, scratch.codes[p], scratch.scales[p],
                    scratch.offsets[p]);
    }
    for (index_t i = i0; i < i1; i += 16) {
      const index_t entry = (i / 16 * x.steps + block) * 16;
      for (index_t p = 0; p < panels; ++p) {
        const index_t column = j + p * 16, columns = std::min(g.n - column, index_t{16});
        const index_t height = std::min(i1 - i, index_t{16});
        float* const c = g.c + i * g.c_row + column;
        const auto multiply = [&](float* to, index_t to_row) {
          const auto kernel = w.format.has_offset ? multiply_blocks<true> : multiply_blocks<false>;
          kernel(depth, blocks, x.at(i, block), x.scales + entry, x.sums + entry, scratch.codes[p],
                 scratch.scales[p], scratch.offsets[p], scratch.sums, to, to_row, block > 0);
        };
        if (height == 16 && columns == 16) {
          multiply(c, g.c_row);
          continue;
        }
        // The tile extends beyond C: compute it in a buffer.
        float* const whole = scratch.whole;
        for (index_t r = 0; r < height && block > 0; ++r) {
          std::copy_n(c + r * g.c_row, columns, whole + r * 16);
        }
        multiply(whole, 16);
        for (index_t r = 0; r < height; ++r) {
          std::copy_n(whole + r * 16, columns, c + r * g.c_row);
        }
      }
    }
  }
}

/// A whole product by quantised activations.
inline void multiply_int8_tiles(const detail::GemmProblem<float>& g,
                                const detail::QuantizedMatrix& w, const QuantizedRows& rows,
                                const Executor& threads, Workspace& workspace) {
  const index_t workers = detail::worker_count(threads);
  const index_t tiles = detail::round_up(g.m, kTileRows) / 16;
  const bool is_row = w.format.block == 0;
  TiledActivations x{};
  x.depth = is_row ? 64 : w.format.block;
  x.steps = is_row ? rows.row_bytes / 64 : rows.pieces;
  Scratch<std::int8_t> codes(workspace, tiles * x.steps * x.depth * 16);
  const index_t scale_count = is_row ? 0 : tiles * x.steps * 16;
  Scratch<float> scales(workspace, 2 * scale_count);
  x.codes = codes.data();
  x.scales = scales.data();
  x.sums = scales.data() + scale_count;
  threads.run(tiles, [&](index_t tile, int) { tile_rows(rows, g.m, tile, x); });
  // A block of rows stays in L2 for all panels of weights.
  const index_t max_rows = second_level_cache() * 3 / 8 / std::max(rows.row_bytes, index_t{64});
  const index_t MC = std::max(index_t{1}, max_rows / kTileRows) * kTileRows;
  const index_t row_blocks = (g.m + MC - 1) / MC;
  const index_t units = (g.n + kTileColumns - 1) / kTileColumns;
  const index_t wanted = workers == 1 ? 1 : (8 * workers + row_blocks - 1) / row_blocks;
  const index_t ranges = std::min(units, wanted);
  Scratch<TileScratch> scratch(workspace, workers);
  threads.run(row_blocks * ranges, [&](index_t task, int worker) {
    const TileScope scope(static_cast<int>(x.depth));
    const index_t i0 = task / ranges * MC, i1 = std::min(i0 + MC, g.m), range = task % ranges;
    for (index_t unit = units * range / ranges; unit < units * (range + 1) / ranges; ++unit) {
      const index_t j = unit * kTileColumns;
      if (is_row) {
        multiply_row_tiles(g, w, rows, x, i0, i1, j, scratch.data()[worker]);
      } else {
        multiply_block_tiles(g, w, x, i0, i1, j, scratch.data()[worker]);
      }
      apply_epilogue(g, i0, i1, j, std::min(j + kTileColumns, g.n), g.beta != 0);
    }
  });
}
