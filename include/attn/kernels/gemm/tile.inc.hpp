// Kernel text: C (rows x columns) += A (rows x k) B (k x columns), one register tile at a time.
// SPDX-License-Identifier: Apache-2.0

/// GEMM's register tile, by BLIS's names: MR rows by NR columns, which are NV vectors. With 16
/// registers, 6 x 2 vectors: 12 sums, 2 vectors of B and a broadcast of A. With 32, 6 x 4: 24 sums,
/// 4 vectors of B, and a broadcast (NEON: 2 or 3 vectors) of A. An FMA takes 4 cycles and 2 start
/// each cycle, so that 8 independent sums hide its latency.
template <class T>
struct TileShape {
  static constexpr int MR = 6;
  static constexpr int NV = Registers::kProductVectors;
  static constexpr int NR = NV * Vec<T>::kLanes;
};

/// How GEMM cuts the rows of C: tiles of MR = 6, and at the end up to two of 4 if that leaves fewer
/// rows to pad: 128 rows are 20 x 6 + 2 x 4, where 22 tiles of 6 would compute 132.
template <class T>
struct TiledRows {
  static constexpr index_t MR = TileShape<T>::MR, kLowMR = 4;
  static_assert(MR == 6);
  index_t high, count;  ///< tiles of MR rows, and all tiles

  explicit TiledRows(index_t rows) {
    const index_t rest = rows % MR;
    // One or two remaining rows: together with a tile of 6 they are two tiles of 4.
    const index_t low = rest == 0 || rest == 5 ? 0 : rest > 2 || rows < MR ? 1 : 2;
    high = rows / MR + (rest == 5 ? 1 : low == 2 ? -1 : 0);
    count = high + low;
  }

  index_t height(index_t tile) const { return tile < high ? MR : kLowMR; }
  index_t begin(index_t tile) const {
    return tile <= high ? tile * MR : high * MR + (tile - high) * kLowMR;
  }
};

/// Register tile of products with few rows and columns, such as attention's: 8 x 2 vectors with 32
/// registers. 32 and 128 rows are whole tiles of 8, while tiles of 6 would compute 36 and 132. GEMM
/// with 8 x 2 takes 1.03 times as long (attn_report gemm_1024).
template <class T>
struct RowTileShape {
  static constexpr int MR = Registers::kRowTileHeight;
  static constexpr int NV = 2;
  static constexpr int NR = NV * Vec<T>::kLanes;
};

/// Memory layout of A. interleaved: packed, MR elements of one k after another; rows: row-major;
/// columns: transposed, where a row of memory holds one k of all rows, as attention's backward
/// reads the weights.
enum class ALayout { interleaved, rows, columns };

/// How a tile updates C.
enum class TileUpdate {
  assign,           ///< C = A B
  scale,            ///< C = factor[0] (A B), prefetching as many bytes as B has
  scale_b_in_l1,    ///< C = factor[0] (A B), without prefetches
  rescale_and_add,  ///< C = factor[row] C + A B
  add,              ///< C += A B
};

/// What a tile prefetches into L2 while it multiplies. Packed A: one cache line per k, `step` bytes
/// apart. A in rows: no register is left for `step`; TileUpdate::scale prefetches as many bytes as
/// B has, from `at`, and other updates prefetch nothing. Spread over the products, since a core has
/// few fill buffers and a burst of prefetches stalls it (attn_report gemm_bert and
/// sdpa_queries_32).
struct TilePrefetch {
  const char* at = nullptr;
  index_t step = 0;
};

/// One tile of R rows by V vectors. Every element is one chain of FMAs in the order of k, so that
/// results do not depend on how rows, columns or k are cut. kTail: only the first `columns` lanes
/// of the last vector exist. R rows are always read and written: a caller with fewer provides
/// memory for R. A tile of one row would save only a third of the time of six (its sums wait for
/// one another), and each height takes compile time of every user.
template <class T, int R, int V, ALayout kLayout, TileUpdate kUpdate, bool kTail>
inline void tile(index_t k, const T* a, index_t a_stride, const T* b, index_t b_stride, T* c,
                 index_t c_stride, const T* factor, index_t columns, TilePrefetch prefetch) {
  using Vt = Vec<T>;
  Vt sum[R][V];
  ATTN_UNROLL
  for (int r = 0; r < R; ++r) {
    ATTN_UNROLL
    for (int v = 0; v < V; ++v) {
      if constexpr (kUpdate != TileUpdate::rescale_and_add && kUpdate != TileUpdate::add) {
        sum[r][v] = Vt::all(T{0});
      } else {
        const T* p = c + r * c_stride + v * Vt::kLanes;
        sum[r][v] = kTail && v == V - 1 ? Vt::load(p, columns) : Vt::load(p);
        if constexpr (kUpdate == TileUpdate::rescale_and_add)
          sum[r][v] = Vt::all(factor[r]) * sum[r][v];
      }
    }
  }
  index_t p = 0;
  if constexpr (Registers::kLaneSteps > 0 && kLayout == ALayout::rows) {
    constexpr int kLaneSteps = Registers::kLaneSteps;
    for (; p + kLaneSteps <= k; p += kLaneSteps, a += kLaneSteps) {
      Vt bv[std::max(kLaneSteps, 1)][V];
      ATTN_UNROLL
      for (int step = 0; step < kLaneSteps; ++step, b += b_stride) {
        if constexpr (kUpdate == TileUpdate::scale) {
          __builtin_prefetch(prefetch.at, 0, 2);
          prefetch.at += b_stride * index_t{sizeof(T)};
        }
        ATTN_UNROLL
        for (int v = 0; v < V; ++v) {
          const T* q = b + v * Vt::kLanes;
          bv[step][v] = kTail && v == V - 1 ? Vt::load(q, columns) : Vt::load(q);
        }
      }
      add_lanes_of_rows(a, a_stride, bv, sum);
    }
  }
  for (; p < k; ++p) {
    if constexpr (kLayout == ALayout::interleaved) {
      __builtin_prefetch(prefetch.at, 0, 2);
      prefetch.at += prefetch.step;
    } else if constexpr (kUpdate == TileUpdate::scale) {
      ATTN_UNROLL
      for (int x = 0; x < V * Vt::kLanes; x += 64 / int{sizeof(T)}) {
        __builtin_prefetch(reinterpret_cast<const T*>(prefetch.at) + x, 0, 2);
      }
      prefetch.at += b_stride * index_t{sizeof(T)};
    }
    Vt bv[V];
    ATTN_UNROLL
    for (int v = 0; v < V; ++v) {
      const T* q = b + v * Vt::kLanes;
      bv[v] = kTail && v == V - 1 ? Vt::load(q, columns) : Vt::load(q);
    }
    if constexpr (Registers::kLaneSteps > 0 && kLayout != ALayout::rows) {
      add_lanes_of_column(a, bv, sum);
    } else {
      ATTN_UNROLL
      for (int r = 0; r < R; ++r) {
        const Vt av = Vt::all(kLayout == ALayout::rows ? a[r * a_stride] : a[r]);
        ATTN_UNROLL
        for (int v = 0; v < V; ++v) sum[r][v] = MultiplyAdd::add(av, bv[v], sum[r][v]);
      }
    }
    a += kLayout == ALayout::interleaved ? R : kLayout == ALayout::columns ? a_stride : 1;
    b += b_stride;
  }
  ATTN_UNROLL
  for (int r = 0; r < R; ++r) {
    ATTN_UNROLL
    for (int v = 0; v < V; ++v) {
      T* to = c + r * c_stride + v * Vt::kLanes;
      if constexpr (kUpdate == TileUpdate::scale || kUpdate == TileUpdate::scale_b_in_l1) {
        sum[r][v] = Vt::all(factor[0]) * sum[r][v];
      }
      if (kTail && v == V - 1) {
        sum[r][v].store(to, columns);
      } else {
        sum[r][v].store(to);
      }
    }
  }
}

/// R packed rows of A times one packed panel of B: C (R x NR), or the first half of its columns.
template <class T, int R, TileUpdate kUpdate>
inline void tile_panel(bool is_half, index_t k, const T* a, const T* panel, T* c, index_t c_stride,
                       const T* factor, TilePrefetch prefetch) {
  using Shape = TileShape<T>;
  if (is_half) {
    tile<T, R, Shape::NV / 2, ALayout::interleaved, kUpdate, false>(k, a, 0, panel, Shape::NR, c,
                                                                    c_stride, factor, 0, prefetch);
  } else {
    tile<T, R, Shape::NV, ALayout::interleaved, kUpdate, false>(k, a, 0, panel, Shape::NR, c,
                                                                c_stride, factor, 0, prefetch);
  }
}

/// Updates C (MR x columns) by A B, with A and B row-major and unpacked: a vector holds columns of
/// B.
template <class T, TileUpdate kUpdate = TileUpdate::rescale_and_add>
inline void tile_columns(index_t columns, index_t k, const T* a, index_t a_stride, const T* b,
                         index_t b_stride, T* c, index_t c_stride, const T* factor) {
  using Shape = RowTileShape<T>;
  constexpr int kLanes = Vec<T>::kLanes;
  index_t j = 0;
  for (; j + Shape::NR <= columns; j += Shape::NR) {
    tile<T, Shape::MR, Shape::NV, ALayout::rows, kUpdate, false>(k, a, a_stride, b + j, b_stride,
                                                                 c + j, c_stride, factor, 0, {});
  }
  for (; j < columns; j += kLanes) {
    tile<T, Shape::MR, 1, ALayout::rows, kUpdate, true>(k, a, a_stride, b + j, b_stride, c + j,
                                                        c_stride, factor, columns - j, {});
  }
}

/// C (rows x columns) += A^T B, with A (k x rows) and B (k x columns) unpacked. Reads and writes
/// rows of C, and columns of A, up to whole tiles of MR.
template <class T>
inline void add_transposed(index_t rows, index_t columns, index_t k, const T* a, index_t a_stride,
                           const T* b, index_t b_stride, T* c, index_t c_stride) {
  using Shape = RowTileShape<T>;
  constexpr int kLanes = Vec<T>::kLanes;
  for (index_t i = 0; i < rows; i += Shape::MR, a += Shape::MR, c += Shape::MR * c_stride) {
    index_t j = 0;
    for (; j + Shape::NR <= columns; j += Shape::NR) {
      tile<T, Shape::MR, Shape::NV, ALayout::columns, TileUpdate::add, false>(
          k, a, a_stride, b + j, b_stride, c + j, c_stride, nullptr, 0, {});
    }
    for (; j < columns; j += kLanes) {
      tile<T, Shape::MR, 1, ALayout::columns, TileUpdate::add, true>(
          k, a, a_stride, b + j, b_stride, c + j, c_stride, nullptr, columns - j, {});
    }
  }
}

/// Packs one tile of A: `height` rows of k, interleaved, padded with zeros to R rows.
template <class T>
inline void pack_tile(index_t R, index_t height, index_t k, const T* a, index_t row_stride,
                      index_t k_stride, T* packed) {
  constexpr index_t kSize = Block<T>::kSize;
  static_assert(kSize <= 2 * TiledRows<T>::kLowMR);
  index_t p = 0;
  if (k_stride == 1) {
    for (; p + kSize <= k; p += kSize) {
      const Block<T> block(a + p, row_stride, static_cast<int>(height));
      // A store writes up to kSize - R elements too many, which the next store overwrites. The loop
      // below handles the last k, since nothing may be written after it.
      const bool is_last = p + kSize == k;
      ATTN_UNROLL
      for (int x = 0; x < kSize - 1; ++x) block.store(x, packed + (p + x) * R);
      if (!is_last) block.store(kSize - 1, packed + (p + kSize - 1) * R);
      for (index_t r = kSize; r < R; ++r) {  // only if a block is lower than a tile
        for (index_t x = 0; x < kSize; ++x) {
          packed[(p + x) * R + r] = r < height ? a[r * row_stride + p + x] : T{0};
        }
      }
    }
    if (p == k && k > 0) --p;
  }
  for (index_t r = 0; r < R; ++r) {
    for (index_t x = p; x < k; ++x) {
      packed[x * R + r] = r < height ? a[r * row_stride + x * k_stride] : T{0};
    }
  }
}

/// Packs whole tiles of MR rows, one after another, of an A with contiguous columns, as in products
/// for weight gradients. k is the outer loop, so that each cache line is read once: rows of A^T are
/// often a multiple of 4 KB apart and evict one another.
template <class T>
inline void pack_transposed_tiles(index_t tiles, index_t k, const T* a, index_t k_stride,
                                  T* packed) {
  constexpr index_t MR = TileShape<T>::MR;
  for (index_t p = 0; p < k; ++p) {
    const T* from = a + p * k_stride;
    T* to = packed + p * MR;
    for (index_t t = 0; t < tiles; ++t, from += MR, to += MR * k) {
      std::memcpy(to, from, MR * sizeof(T));  // constant size: two moves
    }
  }
}

/// Packs `width` columns of k elements, each contiguous, into a panel of NR columns of which `room`
/// are left. Columns after `width` may be set to 0, up to a multiple of Block<T>::kSize.
template <class T, index_t NR>
inline void pack_part(index_t width, index_t room, index_t k, const T* b, index_t column_stride,
                      T* panel) {
  constexpr index_t kSize = Block<T>::kSize;
  for (index_t done = 0; done < width; done += kSize) {
    const index_t columns = std::min(width - done, kSize);
    const T* from = b + done * column_stride;
    T* to = panel + done;
    index_t p = 0;
    for (; done + kSize <= room && p + kSize <= k; p += kSize) {
      const Block<T> block(from + p, column_stride, static_cast<int>(columns));
      ATTN_UNROLL
      for (int x = 0; x < kSize; ++x) block.store(x, to + (p + x) * NR);
    }
    for (; p < k; ++p) {
      for (index_t x = 0; x < columns; ++x) to[p * NR + x] = from[x * column_stride + p];
    }
  }
}

/// Packs one panel of B: `width` columns of k elements, padded with zeros to NR.
template <class T>
inline void pack_panel(index_t width, index_t k, const T* b, index_t k_stride,
                       index_t column_stride, T* panel) {
  constexpr index_t NR = TileShape<T>::NR;
  if (k_stride == 1) {
    pack_part<T, NR>(width, NR, k, b, column_stride, panel);
  } else if (column_stride == 1 && width == NR) {
    for (index_t p = 0; p < k; ++p) {
      for (index_t x = 0; x < NR; x += Vec<T>::kLanes) {
        Vec<T>::load(b + p * k_stride + x).store(panel + p * NR + x);
      }
    }
  } else {
    for (index_t p = 0; p < k; ++p) {
      for (index_t x = 0; x < width; ++x) {
        panel[p * NR + x] = b[p * k_stride + x * column_stride];
      }
    }
  }
  if (width == NR) return;
  for (index_t p = 0; p < k; ++p) std::fill(panel + p * NR + width, panel + (p + 1) * NR, T{0});
}

/// Packs k x columns of B into panels of NR columns (the last one padded with zeros): panel j
/// begins at j * NR * k, and holds NR columns of one k after another.
template <class T>
inline void pack_columns(index_t columns, index_t k, const T* b, index_t k_stride,
                         index_t column_stride, T* packed) {
  constexpr index_t NR = TileShape<T>::NR;
  for (index_t j = 0; j < columns; j += NR, packed += NR * k) {
    pack_panel(std::min(columns - j, NR), k, b + j * column_stride, k_stride, column_stride,
               packed);
  }
}
