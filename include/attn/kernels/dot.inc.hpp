// Kernel text: products of up to 8 rows with many others, along the vector, for what memory limits.

/// out[r, j] = scale a_r . b_j over k elements for R rows of A and 8 / R rows of B, of which the first n exist:
/// 8 sums whatever R is, which hide the latency of the FMAs and reduce together.
template <class T, int R>
inline void dot_block(index_t k, const T* a, const T* b, index_t b_stride, index_t n, T scale,
                      T* out, index_t out_stride) {
  using V = Vec<T>;
  constexpr int J = 8 / R;
  const T* rows[J];
  ATTN_UNROLL
  for (int j = 0; j < J; ++j) rows[j] = b + (j < n ? j : n - 1) * b_stride;
  V sums[8];
  ATTN_UNROLL
  for (int i = 0; i < 8; ++i) sums[i] = V::all(T{0});
  const auto step = [&](index_t p, auto load) __attribute__((always_inline)) {
    V bv[J];
    ATTN_UNROLL
    for (int j = 0; j < J; ++j) {
      bv[j] = load(rows[j] + p);
      // Two blocks ahead: rows of B come from memory once.
      __builtin_prefetch(rows[j] + 2 * J * b_stride + p);
    }
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
    for (index_t j = 0; j < n && j < J; ++j) out[r * out_stride + j] = scale * each[r * J + j];
  }
}

/// out[r, j] = scale a_r . b_j for `height` contiguous rows of A, of which memory holds 1 or a multiple of 4,
/// and n rows of B. One row alone or four at a time: every further shape is compiled by every user.
template <class T>
inline void score_rows(index_t height, index_t n, index_t k, const T* a, const T* b,
                       index_t b_stride, T scale, T* out, index_t out_stride) {
  if (height == 1) {
    for (index_t j = 0; j < n; j += 8) {
      dot_block<T, 1>(k, a, b + j * b_stride, b_stride, n - j, scale, out + j, out_stride);
    }
    return;
  }
  for (index_t j = 0; j < n; j += 2) {
    for (index_t r = 0; r < height; r += 4) {
      dot_block<T, 4>(k, a + r * k, b + j * b_stride, b_stride, n - j, scale,
                      out + r * out_stride + j, out_stride);
    }
  }
}

/// c_r = factor_r c_r + sum over j < n of a[r, j] b_j, rows of `columns` elements, c in whole vectors. The
/// same chain of FMAs as tile_columns(), but B is read row after row, 8 at a time, as memory has it.
template <class T>
inline void add_values_rows(index_t height, index_t columns, index_t n, const T* a,
                            index_t a_stride, const T* b, index_t b_stride, T* c, index_t c_stride,
                            const T* factor) {
  using V = Vec<T>;
  for (index_t r = 0; r < height; ++r) {
    for (index_t x = 0; x < columns; x += V::kLanes) {
      (V::all(factor[r]) * V::load(c + r * c_stride + x)).store(c + r * c_stride + x);
    }
  }
  for (index_t j = 0; j < n; j += 8) {
    const index_t count = std::min(n - j, index_t{8});
    const T* rows = b + j * b_stride;
    for (index_t r = 0; r < height; ++r) {
      const T* weights = a + r * a_stride + j;
      T* to = c + r * c_stride;
      index_t x = 0;
      if (count == 8) {
        V weight[8];
        ATTN_UNROLL
        for (int i = 0; i < 8; ++i) weight[i] = V::all(weights[i]);
        for (; x + V::kLanes <= columns; x += V::kLanes) {
          V sum = V::load(to + x);
          ATTN_UNROLL
          for (int i = 0; i < 8; ++i) {
            __builtin_prefetch(rows + (16 + i) * b_stride + x);
            sum = fma(weight[i], V::load(rows + i * b_stride + x), sum);
          }
          sum.store(to + x);
        }
      }
      for (; x < columns; x += V::kLanes) {
        V sum = V::load(to + x);
        for (index_t i = 0; i < count; ++i) {
          sum = fma(V::all(weights[i]), V::load(rows + i * b_stride + x, columns - x), sum);
        }
        sum.store(to + x);
      }
    }
  }
}
