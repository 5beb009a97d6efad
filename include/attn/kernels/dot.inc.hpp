// Kernel text: products of few rows with many others, along the vector, for what memory limits.
//
// One row leaves memory to the hardware's prefetchers. Several rows ask for what comes later, line by line between their
// FMAs and into the second cache: a core waits for few lines at a time, fewer still of the first cache
// (attn_report's sdpa_decode_gqa).

/// Sums that dot_block() keeps. 8 hide the latency of the FMAs. With 32 registers there are more: 4 rows by 4 take 8
/// loads for 16 FMAs, 4 by 2 take 6 for 8, and some cores load one vector of AVX-512 in a cycle, as they multiply one.
inline constexpr int kDotSums = ATTN_TARGET == 2 ? 16 : 8;

/// Rows of B that dot_block() takes for R rows of A.
template <int R>
inline constexpr int kDotColumns = std::min(8, kDotSums / R);

/// out[r, j] = scale a_r . b_j over k elements for R rows of A and kDotColumns rows of B, while rows `later` of B are
/// asked for.
template <class T, int R>
inline void dot_block(index_t k, const T* a, const T* const* b, const T* const* later, T scale,
                      T* const* out, index_t out_stride) {
  using V = Vec<T>;
  constexpr int J = kDotColumns<R>;
  V sums[R * J / 8][8];
  ATTN_UNROLL
  for (int i = 0; i < R * J; ++i) sums[i / 8][i % 8] = V::all(T{0});
  const auto step = [&](index_t p, auto load) __attribute__((always_inline)) {
    V bv[J];
    ATTN_UNROLL
    for (int j = 0; j < J; ++j) {
      bv[j] = load(b[j] + p);
      if constexpr (R > 1) __builtin_prefetch(later[j] + p, 0, 2);
    }
    ATTN_UNROLL
    for (int r = 0; r < R; ++r) {
      const V av = load(a + r * k + p);
      ATTN_UNROLL
      for (int j = 0; j < J; ++j) {
        V& sum = sums[(r * J + j) / 8][(r * J + j) % 8];
        sum = fma(av, bv[j], sum);
      }
    }
  };
  index_t p = 0;
  for (; p + V::kLanes <= k; p += V::kLanes) {
    step(
        p, [](const T* x) __attribute__((always_inline)) { return V::load(x); });
  }
  if (p < k)
    step(
        p, [&](const T* x) __attribute__((always_inline)) { return V::load(x, k - p); });
  T each[R * J];
  ATTN_UNROLL
  for (int i = 0; i < R * J / 8; ++i) sum_each(sums[i], scale, each + 8 * i);
  // Unrolled, since g++ would make one scatter of four stores, which is microcode on AMD's machines.
  ATTN_UNROLL
  for (int i = 0; i < R * J; ++i) out[i % J][i / J * out_stride] = each[i];
}

/// out[r, j] = scale a_r . b_j for `height` contiguous rows of A, of which memory holds 1 or a multiple of 4,
/// and n rows of B. One row, two or four at a time: every further shape is compiled by every user.
template <class T>
inline void score_rows(index_t height, index_t n, index_t k, const T* a, const T* const* b, T scale,
                       T* out, index_t out_stride) {
  // Eight places of B are read in turn: hardware prefetchers follow each, and memory gives more to eight (see
  // bench/support/bandwidth.hpp) than to one.
  constexpr index_t kAhead = 3;
  const index_t part = (n + 7) / 8;
  const T *rows[8], *later[8];
  T* to[8];
  for (index_t at = 0; at < part; ++at) {
    for (index_t s = 0; s < 8; ++s) {
      const index_t j = std::min(s * part + at, n - 1);
      rows[s] = b[j];
      later[s] = b[std::min(j + kAhead, n - 1)];
      to[s] = out + j;
    }
    const index_t step = height == 1   ? kDotColumns<1>
                         : height == 2 ? kDotColumns<2>
                                       : kDotColumns<4>;
    for (index_t s = 0; s < 8 && s * part + at < n; s += step) {
      if (height == 1) {
        dot_block<T, 1>(k, a, rows + s, later + s, scale, to + s, out_stride);
      } else if (height == 2) {
        dot_block<T, 2>(k, a, rows + s, later + s, scale, to + s, out_stride);
      } else {
        for (index_t r = 0; r < height; r += 4) {
          T* down[kDotColumns<4>];
          for (index_t x = 0; x < step; ++x) down[x] = to[s + x] + r * out_stride;
          dot_block<T, 4>(k, a + r * k, rows + s, (r == 0 ? later : rows) + s, scale, down,
                          out_stride);
        }
      }
    }
  }
}

/// c_r += sum over i < kRows of a[r, i] row_i for R rows of C, while rows `later` are asked for.
template <class T, int R, int kRows>
inline void add_block(index_t columns, const T* a, index_t a_stride, const T* const* row,
                      const T* const* later, T* c, index_t c_stride) {
  using V = Vec<T>;
  // Read once: to the compiler, what is stored below could change the pointers.
  const T *from[kRows], *ahead[kRows];
  for (int i = 0; i < kRows; ++i) {
    from[i] = row[i];
    ahead[i] = later[i];
  }
  V weight[R][kRows];
  ATTN_UNROLL
  for (int x = 0; x < R; ++x) {
    ATTN_UNROLL
    for (int i = 0; i < kRows; ++i) weight[x][i] = V::all(a[x * a_stride + i]);
  }
  each_vector<T>(columns, [&](index_t at, auto lanes) {
    T* to = c + at;
    V sum[R];
    ATTN_UNROLL
    for (int x = 0; x < R; ++x) sum[x] = V::load(to + x * c_stride);
    ATTN_UNROLL
    for (int i = 0; i < kRows; ++i) {
      const V value = load(from[i] + at, lanes);
      if constexpr (R > 1) __builtin_prefetch(ahead[i] + at, 0, 2);
      ATTN_UNROLL
      for (int x = 0; x < R; ++x) sum[x] = fma(weight[x][i], value, sum[x]);
    }
    ATTN_UNROLL
    for (int x = 0; x < R; ++x) sum[x].store(to + x * c_stride);
  });
}

/// c_r += sum over j < n of a[r, j] b_j, `kRows` rows of B at a time (1 for a single row of A). Memory holds 1 or a
/// multiple of 4 rows of A and C.
template <class T, int kRows>
inline void add_rows(index_t height, index_t columns, index_t n, const T* a, index_t a_stride,
                     const T* const* b, T* c, index_t c_stride) {
  constexpr index_t kAhead = 16;
  for (index_t j = 0; j + kRows <= n; j += kRows) {
    const T* const* row = b + j;
    const T* const* later = b + std::min(j + kAhead, n - kRows);
    if (kRows == 1 && height == 1) {
      add_block<T, 1, 1>(columns, a + j, a_stride, row, row, c, c_stride);
    } else if (height == 2) {
      add_block<T, 2, kRows>(columns, a + j, a_stride, row, later, c, c_stride);
    } else {
      for (index_t r = 0; r < height; r += 4) {
        add_block<T, 4, kRows>(columns, a + r * a_stride + j, a_stride, row, r == 0 ? later : row,
                               c + r * c_stride, c_stride);
      }
    }
  }
}

/// c_r = factor_r c_r + sum over j < n of a[r, j] b_j, rows of `columns` elements, c in whole vectors. The same chain
/// of FMAs as tile_columns(), but B is read row after row, in the order of memory, as hardware prefetchers expect it
/// (attn_report's sdpa_decode); where there are several queries, rows share the loads of c and of b.
template <class T>
inline void add_values_rows(index_t height, index_t columns, index_t n, const T* a,
                            index_t a_stride, const T* const* b, T* c, index_t c_stride,
                            const T* factor) {
  using V = Vec<T>;
  for (index_t r = 0; r < height; ++r) {
    for (index_t x = 0; x < columns; x += V::kLanes) {
      (V::all(factor[r]) * V::load(c + r * c_stride + x)).store(c + r * c_stride + x);
    }
  }
  const index_t most = height == 1 ? 0 : n / 4 * 4;
  add_rows<T, 4>(height, columns, most, a, a_stride, b, c, c_stride);
  add_rows<T, 1>(height, columns, n - most, a + most, a_stride, b + most, c, c_stride);
}
