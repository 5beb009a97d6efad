// Kernel text: both products of attention in bfloat16 pairs, by tiles or vectors.
// SPDX-License-Identifier: Apache-2.0

template <index_t kParts>
inline void pair_rows(index_t n, const float* both, detail::ElementPair* to, index_t tails) {
  constexpr index_t kLanes = Vec<float>::kLanes;
  for (index_t x = 0; x < n; x += kLanes) {
    bfloat16 first[kParts][kLanes], second[kParts][kLanes];
    FloatParts<kParts>::store(Vec<float>::load(both + x), first[0], kLanes);
    FloatParts<kParts>::store(Vec<float>::load(both + n + x), second[0], kLanes);
    for (index_t part = 0; part < kParts; ++part) {
      for (index_t i = 0; i < kLanes; ++i) {
        to[part * tails + x + i] = static_cast<detail::ElementPair>(first[part][i].bits()) |
                                   static_cast<detail::ElementPair>(second[part][i].bits()) << 16;
      }
    }
  }
}
inline void pair_rows(index_t n, const float* both, detail::ElementPair* to, index_t tails) {
  tails == 0 ? pair_rows<1>(n, both, to, 0) : pair_rows<2>(n, both, to, tails);
}

template <index_t kParts>
inline void round_row(index_t n, const float* row, bfloat16* to, index_t tails) {
  constexpr index_t kLanes = Vec<float>::kLanes;
  index_t j = 0;
  for (; j + kLanes <= n; j += kLanes) {
    FloatParts<kParts>::store(Vec<float>::load(row + j), to + j, tails);
  }
  if (j == n) return;
  bfloat16 rest[kParts][kLanes];
  FloatParts<kParts>::store(Vec<float>::load(row + j, n - j), rest[0], kLanes);
  for (index_t part = 0; part < kParts; ++part) {
    std::copy_n(rest[part], n - j, to + part * tails + j);
  }
}
inline void round_row(index_t n, const float* row, bfloat16* to, index_t tails) {
  tails == 0 ? round_row<1>(n, row, to, 0) : round_row<2>(n, row, to, tails);
}

#if defined(ATTN_TARGET_TILES)

/// Four tiles of sums, two by two, over `steps` steps of 32 elements: rows of A are `a_bytes`
/// apart; rows of B, which hold two tiles side by side, are `b_bytes` apart.
ATTN_INLINE void add_pair_products(index_t steps, const bfloat16* a, index_t a_bytes, const void* b,
                                   index_t b_bytes) {
  const char* left = reinterpret_cast<const char*>(a);
  const char* right = static_cast<const char*>(b);
  for (index_t s = 0; s < steps; ++s, left += Tiles::kRowBytes, right += Tiles::kRows * b_bytes) {
    Tiles::load<4>(left, a_bytes);
    Tiles::load<6>(right, b_bytes);
    Tiles::add_pairs<0, 4, 6>();
    Tiles::load<7>(right + Tiles::kRowBytes, b_bytes);
    Tiles::add_pairs<1, 4, 7>();
    Tiles::load<5>(left + Tiles::kRows * a_bytes, a_bytes);
    Tiles::add_pairs<2, 5, 6>();
    Tiles::add_pairs<3, 5, 7>();
  }
}

inline void score_pair_panels(index_t panels, index_t d, const bfloat16* queries, const float* keys,
                              float scale, float* scores, index_t stride) {
  using V = Vec<float>;
  constexpr index_t kColumns = RowTileShape<float>::NR, kRows = Tiles::kRows;
  constexpr index_t kBytes = kColumns * index_t{sizeof(float)};
  static_assert(kColumns == 2 * kRows && detail::kPairRows == 2 * kRows &&
                detail::kPairColumns == kColumns && detail::kPairStep == 2 * kRows);
  alignas(64) float sums[detail::kPairRows * kColumns];
  const V by = V::all(scale);
  const TileScope scope;
  for (index_t p = 0; p < panels; ++p, keys += kColumns * d / 2, scores += kColumns) {
    Tiles::zero<0>();
    Tiles::zero<1>();
    Tiles::zero<2>();
    Tiles::zero<3>();
    add_pair_products(d / detail::kPairStep, queries, 2 * d, keys, kBytes);
    Tiles::store<0>(sums, kBytes);
    Tiles::store<1>(sums + kRows, kBytes);
    Tiles::store<2>(sums + kRows * kColumns, kBytes);
    Tiles::store<3>(sums + kRows * kColumns + kRows, kBytes);
    for (index_t r = 0; r < detail::kPairRows; ++r) {
      const float* from = sums + r * kColumns;
      (V::load(from) * by).store(scores + r * stride);
      (V::load(from + kRows) * by).store(scores + r * stride + kRows);
    }
  }
}

inline void add_pair_values(index_t columns, index_t keys, const bfloat16* weights,
                            index_t weights_stride, const detail::ElementPair* values, float* sums,
                            const float* rescale) {
  using V = Vec<float>;
  constexpr index_t kRows = Tiles::kRows;
  const index_t bytes = columns * index_t{sizeof(float)};
  for (index_t r = 0; rescale != nullptr && r < detail::kPairRows; ++r) {
    const V by = V::all(rescale[r]);
    for (float *at = sums + r * columns, *end = at + columns; at < end; at += V::kLanes) {
      (V::load(at) * by).store(at);
    }
  }
  const TileScope scope;
  for (index_t c = 0; c < columns; c += detail::kPairColumns) {
    float* const to = sums + c;
    Tiles::load<0>(to, bytes);
    Tiles::load<1>(to + kRows, bytes);
    Tiles::load<2>(to + kRows * columns, bytes);
    Tiles::load<3>(to + kRows * columns + kRows, bytes);
    add_pair_products(keys / detail::kPairStep, weights, 2 * weights_stride, values + c, bytes);
    Tiles::store<0>(to, bytes);
    Tiles::store<1>(to + kRows, bytes);
    Tiles::store<2>(to + kRows * columns, bytes);
    Tiles::store<3>(to + kRows * columns + kRows, bytes);
  }
}

#elif defined(ATTN_TARGET_PAIRS)

/// Rows and vectors of columns whose sums fit in registers beside the operands.
inline constexpr int kPairSumRows = 8, kPairSumVectors = 2;
using PairSums = Vec<float>[kPairSumRows][kPairSumVectors];

/// sums[r][v] += a row of A (rows `a_stride` elements apart) times columns of B, which stores
/// consecutive k in pairs, rows `b_stride` pairs apart. Each sum is one chain in the order of k.
ATTN_INLINE void add_pair_products(index_t count, const bfloat16* a, index_t a_stride,
                                   const float* b, index_t b_stride, PairSums& sums) {
  using V = Vec<float>;
  for (index_t p = 0; p < count; ++p, a += 2, b += b_stride) {
    V columns[kPairSumVectors];
    ATTN_UNROLL
    for (int v = 0; v < kPairSumVectors; ++v) columns[v] = V::load(b + v * V::kLanes);
    ATTN_UNROLL
    for (int r = 0; r < kPairSumRows; ++r) {
      float pair;
      std::memcpy(&pair, a + r * a_stride, sizeof pair);
      ATTN_UNROLL
      for (int v = 0; v < kPairSumVectors; ++v) {
        sums[r][v] = pairs::MultiplyAdd::add(V::all(pair), columns[v], sums[r][v]);
      }
    }
  }
}

inline void score_pair_panels(index_t panels, index_t d, const bfloat16* queries, const float* keys,
                              float scale, float* scores, index_t stride) {
  using V = Vec<float>;
  constexpr index_t kColumns = kPairSumVectors * V::kLanes;
  static_assert(detail::kPairColumns == kColumns && detail::kPairRows % kPairSumRows == 0);
  const V by = V::all(scale);
  for (index_t p = 0; p < panels; ++p, keys += kColumns * d / 2, scores += kColumns) {
    for (index_t first = 0; first < detail::kPairRows; first += kPairSumRows) {
      PairSums sums;
      ATTN_UNROLL
      for (int r = 0; r < kPairSumRows; ++r) {
        ATTN_UNROLL
        for (int v = 0; v < kPairSumVectors; ++v) sums[r][v] = V::all(0);
      }
      add_pair_products(d / 2, queries + first * d, d, keys, kColumns, sums);
      ATTN_UNROLL
      for (int r = 0; r < kPairSumRows; ++r) {
        ATTN_UNROLL
        for (int v = 0; v < kPairSumVectors; ++v) {
          (sums[r][v] * by).store(scores + (first + r) * stride + v * V::kLanes);
        }
      }
    }
  }
}

inline void add_pair_values(index_t columns, index_t keys, const bfloat16* weights,
                            index_t weights_stride, const detail::ElementPair* values, float* sums,
                            const float* rescale) {
  using V = Vec<float>;
  const float* const pairs_of_values = reinterpret_cast<const float*>(values);
  for (index_t c = 0; c < columns; c += detail::kPairColumns) {
    for (index_t first = 0; first < detail::kPairRows; first += kPairSumRows) {
      float* const to = sums + first * columns + c;
      PairSums all;
      ATTN_UNROLL
      for (int r = 0; r < kPairSumRows; ++r) {
        const V by = V::all(rescale[first + r]);
        ATTN_UNROLL
        for (int v = 0; v < kPairSumVectors; ++v) {
          all[r][v] = V::load(to + r * columns + v * V::kLanes) * by;
        }
      }
      add_pair_products(keys / 2, weights + first * weights_stride, weights_stride,
                        pairs_of_values + c, columns, all);
      ATTN_UNROLL
      for (int r = 0; r < kPairSumRows; ++r) {
        ATTN_UNROLL
        for (int v = 0; v < kPairSumVectors; ++v) {
          all[r][v].store(to + r * columns + v * V::kLanes);
        }
      }
    }
  }
}

#endif

#if defined(ATTN_TARGET_TILES) || defined(ATTN_TARGET_PAIRS)

template <>
struct TargetTable<detail::PairKernels<float>> {
  static constexpr detail::PairKernels<float> kTable{.score_panels = score_pair_panels,
                                                     .pair_rows = pair_rows,
                                                     .round_row = round_row,
                                                     .add_values = add_pair_values};
};

#else

template <>
struct TargetTable<detail::PairKernels<float>> {
  static constexpr detail::PairKernels<float> kTable{};
};

#endif
