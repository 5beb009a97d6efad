// Kernel text: products of up to 8 rows with many others, along the vector, for what memory limits.

/// out[r, j] = scale a_r . b_j over k elements for R rows of A and 8 / R rows of B: 8 sums whatever R is, which hide
/// the latency of the FMAs and reduce together.
template <class T, int R>
inline void dot_block(index_t k, const T* a, const T* const* b, T scale, T* const* out,
                      index_t out_stride) {
  using V = Vec<T>;
  constexpr int J = 8 / R;
  V sums[8];
  ATTN_UNROLL
  for (int i = 0; i < 8; ++i) sums[i] = V::all(T{0});
  const auto step = [&](index_t p, auto load) __attribute__((always_inline)) {
    V bv[J];
    ATTN_UNROLL
    for (int j = 0; j < J; ++j) bv[j] = load(b[j] + p);
    ATTN_UNROLL
    for (int r = 0; r < R; ++r) {
      const V av = load(a + r * k + p);
      ATTN_UNROLL
      for (int j = 0; j < J; ++j) sums[r * J + j] = fma(av, bv[j], sums[r * J + j]);
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
  T each[8];
  sum_each(sums, each);
  for (index_t r = 0; r < R; ++r) {
    for (index_t j = 0; j < J; ++j) out[j][r * out_stride] = scale * each[r * J + j];
  }
}

/// out[r, j] = scale a_r . b_j for `height` contiguous rows of A, of which memory holds 1 or a multiple of 4,
/// and n rows of B. One row, two or four at a time: every further shape is compiled by every user.
template <class T>
inline void score_rows(index_t height, index_t n, index_t k, const T* a, const T* const* b, T scale,
                       T* out, index_t out_stride) {
  // Eight places of B are read in turn: hardware prefetchers follow each, and memory gives more to eight (see
  // bench/support/bandwidth.hpp) than to one. Several rows of A give memory time to bring the next rows of B, if they
  // are asked for (attn_report's sdpa_decode_gqa); for one row that costs more than it gains.
  const index_t part = (n + 7) / 8;
  const T* rows[8];
  T* to[8];
  for (index_t at = 0; at < part; ++at) {
    for (index_t s = 0; s < 8; ++s) {
      const index_t j = std::min(s * part + at, n - 1);
      rows[s] = b[j];
      to[s] = out + j;
    }
    if (height == 1) {
      dot_block<T, 1>(k, a, rows, scale, to, out_stride);
      continue;
    }
    const index_t step = height == 2 ? 4 : 2;
    for (index_t s = 0; s < 8; s += step) {
      for (index_t x = s; x < s + step; ++x) {
        detail::prefetch_bytes<3>(b[std::min(x * part + at + 1, n - 1)], k * index_t{sizeof(T)});
      }
      if (height == 2) {
        dot_block<T, 2>(k, a, rows + s, scale, to + s, out_stride);
        continue;
      }
      for (index_t r = 0; r < height; r += 4) {
        T* const down[2] = {to[s] + r * out_stride, to[s + 1] + r * out_stride};
        dot_block<T, 4>(k, a + r * k, rows + s, scale, down, out_stride);
      }
    }
  }
}

/// c_r += sum over j < n of a[r, j] b_j, R rows of C and `kRows` rows of B at a time; memory holds whole multiples of
/// R rows. Rows of B are asked for 8 ahead, a few between others' sums: hardware prefetchers start anew with every
/// page, and a core waits for few lines at a time (attn_report's sdpa_decode_gqa and cost_paged).
template <class T, int R, int kRows>
inline void add_rows(index_t height, index_t columns, index_t n, const T* a, index_t a_stride,
                     const T* const* b, T* c, index_t c_stride) {
  using V = Vec<T>;
  constexpr index_t kAhead = 8;
  const index_t steps = (height + R - 1) / R, share = (kRows + steps - 1) / steps;
  for (index_t j = 0; j + kRows <= n; j += kRows) {
    const T* row[kRows];  // read once: to the compiler, what is stored below could change b
    for (index_t i = 0; i < kRows; ++i) row[i] = b[j + i];
    index_t asked = 0;
    for (index_t r = 0; r < height; r += R) {
      for (const index_t until = std::min(asked + share, index_t{kRows}); asked < until; ++asked) {
        detail::prefetch_bytes<3>(b[std::min(j + kAhead + asked, n - 1)],
                                  columns * index_t{sizeof(T)});
      }
      V weight[R][kRows];
      ATTN_UNROLL
      for (int x = 0; x < R; ++x) {
        ATTN_UNROLL
        for (int i = 0; i < kRows; ++i) weight[x][i] = V::all(a[(r + x) * a_stride + j + i]);
      }
      each_vector<T>(columns, [&](index_t at, auto lanes) {
        T* to = c + r * c_stride + at;
        V sum[R];
        ATTN_UNROLL
        for (int x = 0; x < R; ++x) sum[x] = V::load(to + x * c_stride);
        ATTN_UNROLL
        for (int i = 0; i < kRows; ++i) {
          const V value = load(row[i] + at, lanes);
          ATTN_UNROLL
          for (int x = 0; x < R; ++x) sum[x] = fma(weight[x][i], value, sum[x]);
        }
        ATTN_UNROLL
        for (int x = 0; x < R; ++x) sum[x].store(to + x * c_stride);
      });
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
  add_rows<T, 2, 4>(height, columns, most, a, a_stride, b, c, c_stride);
  add_rows<T, 1, 1>(height, columns, n - most, a + most, a_stride, b + most, c, c_stride);
}
