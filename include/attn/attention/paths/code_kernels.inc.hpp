// Kernel text: quantisation of queries and keys to 8 bits, and their products.
// SPDX-License-Identifier: Apache-2.0

/// See CodeKernels. Quantised keys are stored unsigned with zero point 128, whose contribution the
/// initial values of the sums subtract.
inline float quantize_query(index_t d, const float* query, std::int8_t* codes, index_t row_bytes,
                            std::int32_t* start) {
  // Named explicitly: this namespace may contain another one of the same name.
  const float scale = ATTN_TARGET_BASE::quantize_row(d, query, index_t{1}, codes);
  Vec<float> total = Vec<float>::all(0);  // exact: at most 127 times 65536
  each_vector<float>(d, [&](index_t x, auto lanes) { total = total + load(codes + x, lanes); });
  std::fill(codes + d, codes + row_bytes, std::int8_t{0});
  *start = -Int8::zero(128, true) * static_cast<std::int32_t>(sum(total));
  return scale;
}

inline void center_rows(index_t count, index_t first, index_t end, index_t d, float* rows,
                        float* mean) {
  using V = Vec<float>;
  bool is_finite[detail::kKeysOfMean];
  index_t n = 0;
  for (index_t r = first; r < end; ++r) {
    V odd = V::all(0);  // x - x is 0, or NaN where x is not finite
    each_vector<float>(d, [&](index_t x, auto lanes) {
      const V v = load(rows + r * d + x, lanes);
      odd = odd + (v - v);
    });
    is_finite[r] = sum(odd) == 0;
    n += is_finite[r];
  }
  if (n == 0) return;
  // Sums x / count instead of x, so that the sum does not overflow.
  const V share = V::all(1.0f / static_cast<float>(n));
  each_vector<float>(d, [&](index_t x, auto lanes) {
    V m = V::all(0);
    for (index_t r = first; r < end; ++r) {
      if (is_finite[r]) m = fma(load(rows + r * d + x, lanes), share, m);
    }
    float each[V::kLanes];
    m.store(each);
    const index_t columns = std::min(d - x, index_t{V::kLanes});
    for (index_t i = 0; i < columns; ++i) mean[(x + i) * detail::kMaxMeans] = each[i];
    for (index_t r = 0; r < count; ++r) {
      float* row = rows + r * d + x;
      store(load(row, lanes) - m, row, lanes);
    }
  });
}

inline void pack_codes(index_t count, index_t d, const float* rows, index_t row_bytes,
                       std::int8_t* line, std::uint8_t* panel, float* scales) {
  constexpr index_t kStride = 4 * RowTileShape<float>::NR;
  std::fill(line + d, line + row_bytes, std::int8_t{0});
  for (index_t r = 0; r < count; ++r, rows += d, panel += 4) {
    scales[r] = ATTN_TARGET_BASE::quantize_row(d, rows, index_t{1}, line);
    std::uint8_t* to = panel;
    for (index_t x = 0; x < row_bytes; x += 4, to += kStride) {
      std::uint32_t four;
      std::memcpy(&four, line + x, sizeof four);
      four ^= 0x80808080u;
      std::memcpy(to, &four, sizeof four);
    }
  }
}

inline void score_means(index_t rows, index_t d, const float* queries, index_t queries_stride,
                        const float* means, float scale, float* out) {
  constexpr index_t kMaxMeans = detail::kMaxMeans;
  constexpr index_t MR = RowTileShape<float>::MR;
  for (index_t r = 0; r < rows; r += MR, queries += MR * queries_stride, out += MR * kMaxMeans) {
    for (index_t g = 0; g < kMaxMeans; g += Vec<float>::kLanes) {
      tile<float, MR, 1, ALayout::rows, TileUpdate::scale, false>(
          d, queries, queries_stride, means + g, kMaxMeans, out + g, kMaxMeans, &scale, 0,
          {reinterpret_cast<const char*>(means)});
    }
  }
}

/// Number of rows whose sums fit in registers, two vectors wide.
inline constexpr int kCodeRows = Int8::kRows > 2 ? RowTileShape<float>::MR : Int8::kRows;
using CodeSums = Int8::Sums[kCodeRows][RowTileShape<float>::NV];

/// Scores of kCodeRows rows from `first` on, from their sums of products.
template <bool kOneMean>
ATTN_INLINE void close_codes(const detail::CodeQueries<float>& queries,
                             const detail::CodePanel<float>& panel, const CodeSums& sums, int first,
                             float* scores, index_t stride) {
  using V = Vec<float>;
  ATTN_UNROLL
  for (int v = 0; v < RowTileShape<float>::NV; ++v) {
    const V key_scale = V::load(panel.scales + v * V::kLanes);
    [[maybe_unused]] V column, shared;
    if constexpr (!kOneMean) {
      float columns[V::kLanes];
      for (int i = 0; i < V::kLanes; ++i) columns[i] = static_cast<float>(v * V::kLanes + i);
      column = V::load(columns);
      shared = V::all(static_cast<float>(panel.shared));
    }
    ATTN_UNROLL
    for (int r = 0; r < kCodeRows; ++r) {
      const float* of_row = queries.means + (first + r) * detail::kMaxMeans + panel.mean;
      V mean = V::all(of_row[0]);
      if constexpr (!kOneMean) mean = select(less(column, shared), mean, V::all(of_row[1]));
      const V product = Int8::to_float(sums[r][v]) * key_scale;
      fma(product, V::all(queries.scales[first + r]), mean)
          .store(scores + (first + r) * stride + v * V::kLanes);
    }
  }
}

#if defined(ATTN_TARGET_TILES)

/// Elements that one step of the products takes.
inline constexpr index_t kCodeStep = Tiles::kRowBytes;

/// Sums of 32 rows x 32 columns in AMX tiles. Prefetches nothing: a panel takes too little time.
template <bool kOneMean>
inline void score_codes(const detail::CodeQueries<float>& queries,
                        const detail::CodePanel<float>& panel, float* scores, index_t stride,
                        const void*) {
  constexpr index_t kColumns = RowTileShape<float>::NR, kRows = Tiles::kRows;
  static_assert(kColumns == 2 * kRows && detail::kPairRows == 2 * kRows);
  alignas(64) std::int32_t all[detail::kPairRows * kColumns];
  {
    const TileScope scope;
    Tiles::zero<0>();
    Tiles::zero<1>();
    Tiles::zero<2>();
    Tiles::zero<3>();
    const std::uint8_t* codes = panel.codes;
    for (index_t k = 0; k < queries.row_bytes; k += kCodeStep, codes += kCodeStep * kColumns) {
      const std::int8_t* x = queries.codes + k;
      Tiles::load<4>(x, queries.row_bytes);
      Tiles::load<6>(codes, 4 * kColumns);
      Tiles::add_bytes<0, 4, 6>();
      Tiles::load<7>(codes + 4 * kRows, 4 * kColumns);
      Tiles::add_bytes<1, 4, 7>();
      Tiles::load<5>(x + kRows * queries.row_bytes, queries.row_bytes);
      Tiles::add_bytes<2, 5, 6>();
      Tiles::add_bytes<3, 5, 7>();
    }
    Tiles::store<0>(all, 4 * kColumns);
    Tiles::store<1>(all + kRows, 4 * kColumns);
    Tiles::store<2>(all + kRows * kColumns, 4 * kColumns);
    Tiles::store<3>(all + kRows * kColumns + kRows, 4 * kColumns);
  }
  for (int first = 0; first < detail::kPairRows; first += kCodeRows) {
    CodeSums sums;
    ATTN_UNROLL
    for (int r = 0; r < kCodeRows; ++r) {
      const Int8::Sums start = Int8::all(queries.starts[first + r]);
      ATTN_UNROLL
      for (int v = 0; v < 2; ++v) {
        const std::int32_t* of_row = all + (first + r) * kColumns + v * kRows;
        sums[r][v] = Int8::add(start, Int8::load_sums(of_row));
      }
    }
    close_codes<kOneMean>(queries, panel, sums, first, scores, stride);
  }
}

#else

/// Elements that one step of the products takes: g++ 12 copies all sums at the ends of a loop over
/// steps.
inline constexpr index_t kCodeStep = 16;

template <bool kOneMean>
inline void score_codes(const detail::CodeQueries<float>& queries,
                        const detail::CodePanel<float>& panel, float* scores, index_t stride,
                        const void* to_prefetch) {
  using V = Vec<float>;
  using Shape = RowTileShape<float>;
  constexpr index_t kQuad = 4 * Shape::NR, kLine = 64;
#if defined(ATTN_TARGET_PAIRS)
  constexpr int kTileRows = detail::kPairRows;  // of PairValues
#else
  constexpr int kTileRows = Shape::MR;
#endif
  static_assert(kTileRows % kCodeRows == 0 && detail::kMaxMeans % V::kLanes == 0);
  for (int first = 0; first < kTileRows; first += kCodeRows) {
    const std::int8_t* x = queries.codes + first * queries.row_bytes;
    const std::uint8_t* codes = panel.codes;
    // Later rows prefetch the same lines again; these are hits by then.
    const char* line = static_cast<const char*>(to_prefetch);
    CodeSums sums;
    ATTN_UNROLL
    for (int r = 0; r < kCodeRows; ++r) {
      ATTN_UNROLL
      for (int v = 0; v < Shape::NV; ++v) sums[r][v] = Int8::all(queries.starts[first + r]);
    }
    for (index_t k = 0; k < queries.row_bytes; k += kCodeStep, x += kCodeStep) {
      ATTN_UNROLL
      for (int t = 0; t < kCodeStep / 4; ++t, codes += kQuad, line += kQuad) {
        for (index_t at = 0; at < kQuad; at += kLine) __builtin_prefetch(line + at, 0, 2);
        Int8::Codes code[Shape::NV];
        ATTN_UNROLL
        for (int v = 0; v < Shape::NV; ++v) code[v] = Int8::load(codes + v * 4 * V::kLanes);
        ATTN_UNROLL
        for (int r = 0; r < kCodeRows; ++r) {
          const Int8::Sums four = Int8::four(x + r * queries.row_bytes + 4 * t);
          ATTN_UNROLL
          for (int v = 0; v < Shape::NV; ++v) {
            sums[r][v] = Int8::template dot<true>(sums[r][v], code[v], four);
          }
        }
      }
    }
    close_codes<kOneMean>(queries, panel, sums, first, scores, stride);
  }
}

#endif

inline void score_code_panel(const detail::CodeQueries<float>& queries,
                             const detail::CodePanel<float>& panel, float* scores, index_t stride,
                             const void* to_prefetch) {
  if (panel.shared == RowTileShape<float>::NR) {
    score_codes<true>(queries, panel, scores, stride, to_prefetch);
  } else {
    score_codes<false>(queries, panel, scores, stride, to_prefetch);
  }
}

template <>
struct TargetTable<detail::CodeKernels<float>> {
  static constexpr detail::CodeKernels<float> kTable{.step = kCodeStep,
                                                     .quantize_query = quantize_query,
                                                     .center_rows = center_rows,
                                                     .pack_codes = pack_codes,
                                                     .score_means = score_means,
                                                     .score_panel = score_code_panel};
};
