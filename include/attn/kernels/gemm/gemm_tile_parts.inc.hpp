// Kernel text: elements packed into tiles of bfloat16, and the products of their parts.
// SPDX-License-Identifier: Apache-2.0
//
// Parts: StoredElements, RoundedFloats, SplitFloats.

struct PairProducts {
  template <int C, int A, int B>
  static ATTN_INLINE void add() {
    Tiles::add_pairs<C, A, B>();
  }
};

/// k and elements of one tile of bfloat16.
inline constexpr index_t kTileK = 32, kTileElements = 16 * kTileK;

/// Parts of elements that are bfloat16.
struct StoredElements {
  using Element = bfloat16;
  static constexpr index_t kParts = 1;

  /// Copies `count` elements, `step` apart, and pads with 0 to `size`. Each part is stored
  /// `part_stride` elements after the one before.
  static void fetch(const bfloat16* from, index_t step, index_t count, index_t size, bfloat16* to,
                    index_t /*part_stride*/) {
    if (step == 1) {
      std::memcpy(to, from, static_cast<std::size_t>(count) * sizeof(bfloat16));
    } else {
      for (index_t p = 0; p < count; ++p) to[p] = from[p * step];
    }
    std::fill(to + count, to + size, bfloat16::from_bits(0));
  }

  /// See add_products() and add_products_of_few(); a step has a tile of each part.
  static void add(index_t steps, const void* a0, const void* a1, const void* b0, const void* b1) {
    add_products<PairProducts>(steps, a0, a1, b0, b1);
  }
  static void add_few(index_t steps, const char* a, index_t a_row, index_t a_step, const char* b0,
                      const char* b1) {
    add_products_of_few<PairProducts>(steps, a, a_row, a_step, b0, b1);
  }
};

/// Parts of floats that are rounded to one bfloat16.
struct RoundedFloats : StoredElements {
  using Element = float;

  static void fetch(const float* from, index_t step, index_t count, index_t size, bfloat16* to,
                    index_t part_stride) {
    FloatParts<kParts>::fetch(from, step, count, size, to, part_stride);
  }
};

/// Parts of floats that are split into head and tail. The product of both tails is left out.
struct SplitFloats {
  using Element = float;
  static constexpr index_t kParts = 2;

  static void fetch(const float* from, index_t step, index_t count, index_t size, bfloat16* to,
                    index_t part_stride) {
    FloatParts<kParts>::fetch(from, step, count, size, to, part_stride);
  }

  static void add(index_t steps, const void* a0, const void* a1, const void* b0, const void* b1) {
    const auto at = [](const void* p, index_t tile) {
      return static_cast<const char*>(p) + tile * Tiles::kBytes;
    };
    const auto add = []() __attribute__((always_inline)) {
      Tiles::add_pairs<0, 4, 6>();
      Tiles::add_pairs<1, 4, 7>();
      Tiles::add_pairs<2, 5, 6>();
      Tiles::add_pairs<3, 5, 7>();
    };
    for (index_t head = 0; head < 2 * steps; head += 2) {
      Tiles::load<4>(at(a0, head), 64);
      Tiles::load<5>(at(a1, head), 64);
      Tiles::load<6>(at(b0, head + 1), 64);
      Tiles::load<7>(at(b1, head + 1), 64);
      add();
      Tiles::load<6>(at(b0, head), 64);
      Tiles::load<7>(at(b1, head), 64);
      add();
      Tiles::load<4>(at(a0, head + 1), 64);
      Tiles::load<5>(at(a1, head + 1), 64);
      add();
    }
  }
  /// Sums in the same order.
  static void add_few(index_t steps, const char* a, index_t a_row, index_t a_step, const char* b0,
                      const char* b1) {
    for (index_t s = 0; s < steps; ++s, a += 2 * a_step) {
      Tiles::load<4>(a, a_row);
      Tiles::load<5>(a + a_step, a_row);
      prefetch_tile(b0 + kTilePrefetch);
      prefetch_tile(b0 + kTilePrefetch + Tiles::kBytes);
      Tiles::load<6>(b0 + Tiles::kBytes, 64);
      Tiles::add_pairs<0, 4, 6>();
      Tiles::load<6>(b0, 64);
      Tiles::add_pairs<0, 4, 6>();
      Tiles::add_pairs<0, 5, 6>();
      prefetch_tile(b1 + kTilePrefetch);
      prefetch_tile(b1 + kTilePrefetch + Tiles::kBytes);
      Tiles::load<7>(b1 + Tiles::kBytes, 64);
      Tiles::add_pairs<1, 4, 7>();
      Tiles::load<7>(b1, 64);
      Tiles::add_pairs<1, 4, 7>();
      Tiles::add_pairs<1, 5, 7>();
      b0 += 2 * Tiles::kBytes;
      b1 += 2 * Tiles::kBytes;
    }
  }
};

/// Packs tiles [first, last) of k of the panel of 16 columns from `column` on. A tile is 1 KB: 16
/// pairs of k by 16 columns. Each step has a tile of each part.
template <class Parts>
inline void pack_tiles(const ElementsMatrix<typename Parts::Element>& b, index_t column,
                       index_t first, index_t last, bfloat16* to) {
  constexpr index_t kParts = Parts::kParts;
  const index_t width = std::min(b.n - column, index_t{16});
  for (index_t step = first; step < last; ++step, to += kParts * kTileElements) {
    const index_t k = step * kTileK, count = std::min(b.k - k, kTileK);
    const auto* const from = b.data + k * b.k_stride + column * b.column_stride;
    if (b.column_stride == 1) {
      for (index_t pair = 0; pair < kTileK / 2; ++pair) {
        bfloat16 lines[2][kParts][16] = {};
        for (index_t half = 0; half < 2 && 2 * pair + half < count; ++half) {
          Parts::fetch(from + (2 * pair + half) * b.k_stride, 1, width, 16, lines[half][0], 16);
        }
        for (index_t part = 0; part < kParts; ++part) {
          std::uint32_t pairs[16];
          for (int x = 0; x < 16; ++x) {
            pairs[x] = lines[0][part][x].bits() | std::uint32_t{lines[1][part][x].bits()} << 16;
          }
          std::memcpy(to + part * kTileElements + pair * 32, pairs, sizeof pairs);
        }
      }
      continue;
    }
    float pairs[kParts][16 * 16] = {};  // (column, pair), as bits
    for (index_t x = 0; x < width; ++x) {
      bfloat16 lines[kParts][kTileK];
      Parts::fetch(from + x * b.column_stride, b.k_stride, count, kTileK, lines[0], kTileK);
      for (index_t part = 0; part < kParts; ++part) {
        std::memcpy(pairs[part] + x * 16, lines[part], sizeof lines[part]);
      }
    }
    for (index_t part = 0; part < kParts; ++part) {
      float transposed[16 * 16];
      constexpr index_t kSize = Block<float>::kSize;
      for (index_t x = 0; x < 16; x += kSize) {
        for (index_t p = 0; p < 16; p += kSize) {
          const Block<float> block(pairs[part] + x * 16 + p, 16, kSize);
          ATTN_UNROLL
          for (int y = 0; y < kSize; ++y) block.store(y, transposed + (p + y) * 16 + x);
        }
      }
      std::memcpy(to + part * kTileElements, transposed, sizeof transposed);
    }
  }
}
