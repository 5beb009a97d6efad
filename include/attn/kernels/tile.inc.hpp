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

/// One tile of R x V vectors. Every element is one chain of FMAs in the order of k, starting from
/// scale[r] * C (scale == nullptr: from 0), so that results depend neither on R nor on how k is cut.
/// kTail: only the first `columns` lanes of the last vector exist.
template <class T, int R, int V, ALayout kLayout, bool kTail>
inline void tile(index_t k, const T* a, index_t a_stride, const T* b, index_t b_stride, T* c,
                 index_t c_stride, const T* scale, index_t columns) {
  using Vt = Vec<T>;
  Vt sum[R][V];
  if (scale == nullptr) {
    ATTN_UNROLL
    for (int r = 0; r < R; ++r) {
      ATTN_UNROLL
      for (int v = 0; v < V; ++v) sum[r][v] = Vt::all(T{0});
    }
  } else {
    ATTN_UNROLL
    for (int r = 0; r < R; ++r) {
      const Vt s = Vt::all(scale[r]);
      ATTN_UNROLL
      for (int v = 0; v < V; ++v) {
        const T* p = c + r * c_stride + v * Vt::kLanes;
        sum[r][v] = s * (kTail && v == V - 1 ? Vt::load(p, columns) : Vt::load(p));
      }
    }
  }
  for (index_t p = 0; p < k; ++p) {
    Vt bv[V];
    ATTN_UNROLL
    for (int v = 0; v < V; ++v) {
      bv[v] = kTail && v == V - 1 ? Vt::load(b + v * Vt::kLanes, columns)
                                  : Vt::load(b + v * Vt::kLanes);
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

/// R rows of A times `columns` of B, which lie along the vector in rows of b_stride.
template <class T, int R, ALayout kLayout>
inline void tile_columns(index_t columns, index_t k, const T* a, index_t a_stride, const T* b,
                         index_t b_stride, T* c, index_t c_stride, const T* scale) {
  constexpr int NV = TileShape<T>::NV, kLanes = Vec<T>::kLanes;
  index_t j = 0;
  for (; j + NV * kLanes <= columns; j += NV * kLanes) {
    tile<T, R, NV, kLayout, false>(k, a, a_stride, b + j, b_stride, c + j, c_stride, scale, 0);
  }
  if constexpr (NV > 2) {
    for (; j + 2 * kLanes <= columns; j += 2 * kLanes) {
      tile<T, R, 2, kLayout, false>(k, a, a_stride, b + j, b_stride, c + j, c_stride, scale, 0);
    }
  }
  for (; j + kLanes <= columns; j += kLanes) {
    tile<T, R, 1, kLayout, false>(k, a, a_stride, b + j, b_stride, c + j, c_stride, scale, 0);
  }
  if (j < columns) {
    tile<T, R, 1, kLayout, true>(k, a, a_stride, b + j, b_stride, c + j, c_stride, scale,
                                 columns - j);
  }
}

/// The same for any number of rows up to MR that tile_rows() names.
template <class T, ALayout kLayout>
inline void tile_rows_by(int rows, index_t columns, index_t k, const T* a, index_t a_stride,
                         const T* b, index_t b_stride, T* c, index_t c_stride, const T* scale) {
  switch (rows) {
    case 6:
      return tile_columns<T, 6, kLayout>(columns, k, a, a_stride, b, b_stride, c, c_stride, scale);
    case 4:
      return tile_columns<T, 4, kLayout>(columns, k, a, a_stride, b, b_stride, c, c_stride, scale);
    case 2:
      return tile_columns<T, 2, kLayout>(columns, k, a, a_stride, b, b_stride, c, c_stride, scale);
    default:
      return tile_columns<T, 1, kLayout>(columns, k, a, a_stride, b, b_stride, c, c_stride, scale);
  }
}

/// Packs `rows` x k of A, times `factor`, into tiles of interleaved rows: row i begins a tile at i * k.
template <class T>
inline void pack_rows(index_t rows, index_t k, const T* a, index_t row_stride, index_t k_stride,
                      T factor, T* packed) {
  for (index_t i = 0; i < rows;) {
    const int tile_height = tile_rows(rows - i);
    for (int r = 0; r < tile_height; ++r) {
      const T* from = a + (i + r) * row_stride;
      T* to = packed + i * k + r;
      for (index_t p = 0; p < k; ++p) to[p * tile_height] = factor * from[p * k_stride];
    }
    i += tile_height;
  }
}

/// Packs k x columns of B into panels of NR columns (the last one filled up with zeros): panel j begins
/// at j * NR * k, and holds NR columns of one k after the other.
template <class T>
inline void pack_columns(index_t columns, index_t k, const T* b, index_t k_stride,
                         index_t column_stride, T* packed) {
  constexpr index_t NR = TileShape<T>::NR;
  for (index_t j = 0; j < columns; j += NR, packed += NR * k) {
    const index_t width = columns - j < NR ? columns - j : NR;
    const T* from = b + j * column_stride;
    if (column_stride == 1 && width == NR) {
      for (index_t p = 0; p < k; ++p) {
        for (index_t x = 0; x < NR; x += Vec<T>::kLanes) {
          Vec<T>::load(from + p * k_stride + x).store(packed + p * NR + x);
        }
      }
      continue;
    }
    for (index_t x = 0; x < width; ++x) {
      const T* column = from + x * column_stride;
      for (index_t p = 0; p < k; ++p) packed[p * NR + x] = column[p * k_stride];
    }
    for (index_t x = width; x < NR; ++x) {
      for (index_t p = 0; p < k; ++p) packed[p * NR + x] = T{0};
    }
  }
}
