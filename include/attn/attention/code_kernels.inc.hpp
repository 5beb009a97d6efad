// Kernel text: queries and keys in codes of 8 bits, and their products.
// SPDX-License-Identifier: Apache-2.0

/// See CodeKernels. Codes of keys are unsigned, 128 for 0, which sums begin without.
inline float quantize_query(index_t d, const float* query, std::int8_t* codes, index_t row_bytes,
                            std::int32_t* start) {
  // The target's base has it; this namespace may have another of that name.
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
  // Of shares, whose sum does not overflow.
  const V share = V::all(1.0f / static_cast<float>(n));
  each_vector<float>(d, [&](index_t x, auto lanes) {
    V m = V::all(0);
    for (index_t r = first; r < end; ++r) {
      if (is_finite[r]) m = fma(load(rows + r * d + x, lanes), share, m);
    }
    float each[V::kLanes];
    m.store(each);
    const index_t columns = std::min(d - x, index_t{V::kLanes});
    for (index_t i = 0; i < columns; ++i) mean[(x + i) * detail::kMostMeans] = each[i];
    for (index_t r = 0; r < count; ++r) {
      float* row = rows + r * d + x;
      store(load(row, lanes) - m, row, lanes);
    }
  });
}

inline void pack_codes(index_t count, index_t d, const float* rows, std::int8_t* line,
                       std::uint8_t* panel, float* scales) {
  constexpr index_t kStride = 4 * RowTileShape<float>::NR;
  const index_t filled = detail::round_up(d, detail::kCodeStep);
  std::fill(line + d, line + filled, std::int8_t{0});
  for (index_t r = 0; r < count; ++r, rows += d, panel += 4) {
    scales[r] = ATTN_TARGET_BASE::quantize_row(d, rows, index_t{1}, line);
    std::uint8_t* to = panel;
    for (index_t x = 0; x < filled; x += 4, to += kStride) {
      std::uint32_t four;
      std::memcpy(&four, line + x, sizeof four);
      four ^= 0x80808080u;
      std::memcpy(to, &four, sizeof four);
    }
  }
}

inline void score_means(index_t d, const float* queries, index_t queries_stride, const float* means,
                        float scale, float* out) {
  constexpr index_t kMostMeans = detail::kMostMeans;
  for (index_t g = 0; g < kMostMeans; g += Vec<float>::kLanes) {
    tile<float, RowTileShape<float>::MR, 1, ALayout::rows, Start::product, false>(
        d, queries, queries_stride, means + g, kMostMeans, out + g, kMostMeans, &scale, 0,
        {reinterpret_cast<const char*>(means)});
  }
}

/// Rows of a tile that registers hold the sums of, by two vectors.
inline constexpr int kCodeRows = Int8::kRows > 2 ? RowTileShape<float>::MR : Int8::kRows;

/// kCodeRows rows from `first` on.
template <bool kOneMean>
inline void score_codes(const detail::CodeQueries<float>& queries,
                        const detail::CodePanel<float>& panel, int first, float* scores,
                        index_t stride, const char* ahead) {
  using V = Vec<float>;
  constexpr int R = kCodeRows, NV = RowTileShape<float>::NV;
  constexpr index_t kQuad = 4 * RowTileShape<float>::NR, kLine = 64;
  const std::int8_t* x = queries.codes + first * queries.row_bytes;
  const std::uint8_t* codes = panel.codes;
  Int8::Sums sums[R][NV];
  ATTN_UNROLL
  for (int r = 0; r < R; ++r) {
    ATTN_UNROLL
    for (int v = 0; v < NV; ++v) sums[r][v] = Int8::all(queries.starts[first + r]);
  }
  // g++ 12 copies all sums at the ends of such a loop, so that each turn takes kCodeStep numbers.
  for (index_t k = 0; k < queries.row_bytes; k += detail::kCodeStep) {
    ATTN_UNROLL
    for (int t = 0; t < detail::kCodeStep / 4; ++t, codes += kQuad, ahead += kQuad) {
      for (index_t line = 0; line < kQuad; line += kLine) __builtin_prefetch(ahead + line, 0, 2);
      Int8::Codes code[NV];
      ATTN_UNROLL
      for (int v = 0; v < NV; ++v) code[v] = Int8::load(codes + v * 4 * V::kLanes);
      ATTN_UNROLL
      for (int r = 0; r < R; ++r) {
        const Int8::Sums four = Int8::four(x + r * queries.row_bytes + 4 * t);
        ATTN_UNROLL
        for (int v = 0; v < NV; ++v) {
          sums[r][v] = Int8::template dot<true>(sums[r][v], code[v], four);
        }
      }
    }
    x += detail::kCodeStep;
  }
  ATTN_UNROLL
  for (int v = 0; v < NV; ++v) {
    const V key_scale = V::load(panel.scales + v * V::kLanes);
    [[maybe_unused]] V column, shared;
    if constexpr (!kOneMean) {
      float columns[V::kLanes];
      for (int i = 0; i < V::kLanes; ++i) columns[i] = static_cast<float>(v * V::kLanes + i);
      column = V::load(columns);
      shared = V::all(static_cast<float>(panel.shared));
    }
    ATTN_UNROLL
    for (int r = 0; r < R; ++r) {
      const float* of_row = queries.means + (first + r) * detail::kMostMeans + panel.mean;
      V mean = V::all(of_row[0]);
      if constexpr (!kOneMean) mean = select(less(column, shared), mean, V::all(of_row[1]));
      const V product = Int8::to_float(sums[r][v]) * key_scale;
      fma(product, V::all(queries.scales[first + r]), mean)
          .store(scores + (first + r) * stride + v * V::kLanes);
    }
  }
}

inline void score_code_panel(const detail::CodeQueries<float>& queries,
                             const detail::CodePanel<float>& panel, float* scores, index_t stride,
                             const void* ahead) {
  using Shape = RowTileShape<float>;
  static_assert(Shape::MR % kCodeRows == 0 && detail::kMostMeans % Vec<float>::kLanes == 0);
  // Other rows than the first ask again for the same lines, which then are there.
  const char* at = static_cast<const char*>(ahead);
  for (int first = 0; first < Shape::MR; first += kCodeRows) {
    if (panel.shared == Shape::NR) {
      score_codes<true>(queries, panel, first, scores, stride, at);
    } else {
      score_codes<false>(queries, panel, first, scores, stride, at);
    }
  }
}

template <>
struct Row<detail::CodeKernels<float>> {
  static constexpr detail::CodeKernels<float> kTable{.quantize_query = quantize_query,
                                                     .center_rows = center_rows,
                                                     .pack_codes = pack_codes,
                                                     .score_means = score_means,
                                                     .score_panel = score_code_panel};
};
