// Kernel text: C (rows x columns) += A (rows x k) B (k x columns), one register tile at a time.

/// BLIS's names. MR rows by NV vectors: 6 x 2 leaves 16 registers room for 12 sums, 2 vectors of B and a
/// broadcast of A; 6 x 4 fills 32 registers with 24 sums, 4 and 1. Twelve sums hide the FMA's latency of
/// 4 cycles at 2 a cycle (8 would do).
template <class T>
struct TileShape {
  static constexpr int MR = 6;
  static constexpr int NV = ATTN_TARGET == 2 ? 4 : 2;
  static constexpr int NR = NV * Vec<T>::kLanes;
};

/// How A lies in memory: packed (the rows of a tile interleaved, one k after the other) or in rows.
enum class ALayout { interleaved, rows };

/// What a tile's sums start from: 0, or C times a factor per row.
enum class Start { zero, scaled };

/// One tile of R x V vectors: C = factor C + A B. Every element is one chain of FMAs in the order of k, so
/// that results depend neither on R nor on how k is cut. kTail: only the first `columns` lanes of the last
/// vector exist.
template <class T, int R, int V, ALayout kLayout, Start kStart, bool kTail>
inline void tile(index_t k, const T* a, index_t a_stride, const T* b, index_t b_stride, T* c,
                 index_t c_stride, const T* factor, index_t columns) {
  using Vt = Vec<T>;
  Vt sum[R][V];
  ATTN_UNROLL
  for (int r = 0; r < R; ++r) {
    ATTN_UNROLL
    for (int v = 0; v < V; ++v) {
      if constexpr (kStart == Start::zero) {
        sum[r][v] = Vt::all(T{0});
      } else {
        const T* p = c + r * c_stride + v * Vt::kLanes;
        sum[r][v] = Vt::all(factor[r]) * (kTail && v == V - 1 ? Vt::load(p, columns) : Vt::load(p));
      }
    }
  }
  for (index_t p = 0; p < k; ++p) {
    Vt bv[V];
    ATTN_UNROLL
    for (int v = 0; v < V; ++v) {
      const T* q = b + v * Vt::kLanes;
      bv[v] = kTail && v == V - 1 ? Vt::load(q, columns) : Vt::load(q);
    }
    ATTN_UNROLL
    for (int r = 0; r < R; ++r) {
      const Vt av = Vt::all(kLayout == ALayout::interleaved ? a[r] : a[r * a_stride]);
      ATTN_UNROLL
      for (int v = 0; v < V; ++v) sum[r][v] = fma(av, bv[v], sum[r][v]);
    }
    a += kLayout == ALayout::interleaved ? R : 1;
    b += b_stride;
  }
  ATTN_UNROLL
  for (int r = 0; r < R; ++r) {
    ATTN_UNROLL
    for (int v = 0; v < V; ++v) {
      T* p = c + r * c_stride + v * Vt::kLanes;
      if (kTail && v == V - 1) {
        sum[r][v].store(p, columns);
      } else {
        sum[r][v].store(p);
      }
    }
  }
}

/// Rows of the next tile when `left` remain: 6, 4, 2 or 1. Packing and computing cut alike.
ATTN_INLINE int tile_rows(index_t left) {
  return left >= 6 ? 6 : left >= 4 ? 4 : left >= 2 ? 2 : 1;
}

/// Calls f(std::integral_constant<int, rows>) for the `rows` that tile_rows() named.
template <class F>
ATTN_INLINE void with_tile_rows(int rows, F&& f) {
  switch (rows) {
    case 6:
      return f(std::integral_constant<int, 6>{});
    case 4:
      return f(std::integral_constant<int, 4>{});
    case 2:
      return f(std::integral_constant<int, 2>{});
    default:
      return f(std::integral_constant<int, 1>{});
  }
}

/// R packed rows of A times one packed panel of B: C (R x NR).
template <class T, int R, Start kStart>
inline void tile_panel(index_t k, const T* a, const T* panel, T* c, index_t c_stride,
                       const T* factor) {
  tile<T, R, TileShape<T>::NV, ALayout::interleaved, kStart, false>(
      k, a, 0, panel, TileShape<T>::NR, c, c_stride, factor, 0);
}

/// C (R x columns) = factor C + A B, with A in rows and B unpacked: its columns lie along the vector.
template <class T, int R>
inline void tile_columns(index_t columns, index_t k, const T* a, index_t a_stride, const T* b,
                         index_t b_stride, T* c, index_t c_stride, const T* factor) {
  constexpr int NV = TileShape<T>::NV, kLanes = Vec<T>::kLanes;
  constexpr ALayout kRows = ALayout::rows;
  constexpr Start kScaled = Start::scaled;
  index_t j = 0;
  for (; j + NV * kLanes <= columns; j += NV * kLanes) {
    tile<T, R, NV, kRows, kScaled, false>(k, a, a_stride, b + j, b_stride, c + j, c_stride, factor,
                                          0);
  }
  if (NV > 2 && j + 2 * kLanes <= columns) {
    tile<T, R, 2, kRows, kScaled, false>(k, a, a_stride, b + j, b_stride, c + j, c_stride, factor,
                                         0);
    j += 2 * kLanes;
  }
  for (; j < columns; j += kLanes) {
    tile<T, R, 1, kRows, kScaled, true>(k, a, a_stride, b + j, b_stride, c + j, c_stride, factor,
                                        columns - j);
  }
}

/// Packs one tile of A, times `factor`: `height` rows of k, interleaved.
template <class T>
inline void pack_tile(int height, index_t k, const T* a, index_t row_stride, index_t k_stride,
                      T factor, T* packed) {
  constexpr index_t kSize = Block<T>::kSize;
  index_t p = 0;
  if (k_stride == 1) {
    // A store writes past the end of its rows what the next one overwrites; so the last block is left to
    // the loop below.
    for (; p + 2 * kSize <= k; p += kSize) {
      const Block<T> block(a + p, row_stride, height);
      ATTN_UNROLL
      for (int x = 0; x < kSize; ++x) block.store(x, packed + (p + x) * height);
      for (int r = kSize; r < height; ++r) {  // only where a block is lower than a tile
        for (int x = 0; x < kSize; ++x) packed[(p + x) * height + r] = a[r * row_stride + p + x];
      }
    }
  }
  for (int r = 0; r < height; ++r) {
    for (index_t x = p; x < k; ++x) packed[x * height + r] = a[r * row_stride + x * k_stride];
  }
  if (factor == T{1}) return;
  const index_t n = k * height;
  index_t x = 0;
  for (; x + Vec<T>::kLanes <= n; x += Vec<T>::kLanes) {
    (Vec<T>::load(packed + x) * Vec<T>::all(factor)).store(packed + x);
  }
  for (; x < n; ++x) packed[x] *= factor;
}

/// Packs `rows` x k of A, times `factor`, into tiles of interleaved rows: row i begins a tile at i * k.
template <class T>
inline void pack_rows(index_t rows, index_t k, const T* a, index_t row_stride, index_t k_stride,
                      T factor, T* packed) {
  for (index_t i = 0; i < rows;) {
    const int height = tile_rows(rows - i);
    pack_tile(height, k, a + i * row_stride, row_stride, k_stride, factor, packed + i * k);
    i += height;
  }
}

/// Packs one panel of B: `width` columns of k, the rest of NR filled up with zeros.
template <class T>
inline void pack_panel(index_t width, index_t k, const T* b, index_t k_stride,
                       index_t column_stride, T* panel) {
  constexpr index_t NR = TileShape<T>::NR, kSize = Block<T>::kSize;
  index_t whole = 0;  // columns done by vectors
  if (column_stride == 1 && width == NR) {
    whole = NR;
    for (index_t p = 0; p < k; ++p) {
      for (index_t x = 0; x < NR; x += Vec<T>::kLanes) {
        Vec<T>::load(b + p * k_stride + x).store(panel + p * NR + x);
      }
    }
  } else if (k_stride == 1) {
    for (; whole + kSize <= width; whole += kSize) {
      const T* from = b + whole * column_stride;
      index_t p = 0;
      for (; p + kSize <= k; p += kSize) {
        const Block<T> block(from + p, column_stride, kSize);
        ATTN_UNROLL
        for (int x = 0; x < kSize; ++x) block.store(x, panel + (p + x) * NR + whole);
      }
      for (; p < k; ++p) {
        for (index_t x = 0; x < kSize; ++x) panel[p * NR + whole + x] = from[x * column_stride + p];
      }
    }
  }
  for (index_t x = whole; x < NR; ++x) {
    for (index_t p = 0; p < k; ++p) {
      panel[p * NR + x] = x < width ? b[p * k_stride + x * column_stride] : T{0};
    }
  }
}

/// Packs k x columns of B into panels of NR columns (the last one filled up with zeros): panel j begins
/// at j * NR * k, and holds NR columns of one k after the other.
template <class T>
inline void pack_columns(index_t columns, index_t k, const T* b, index_t k_stride,
                         index_t column_stride, T* packed) {
  constexpr index_t NR = TileShape<T>::NR;
  for (index_t j = 0; j < columns; j += NR, packed += NR * k) {
    pack_panel(std::min(columns - j, NR), k, b + j * column_stride, k_stride, column_stride,
               packed);
  }
}
