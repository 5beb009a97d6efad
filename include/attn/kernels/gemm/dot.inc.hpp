// Kernel text: dot products of few rows of A with unpacked rows of B, limited by memory.
// SPDX-License-Identifier: Apache-2.0
//
// With one or two rows of A, hardware prefetchers suffice. With more, B is prefetched line by line
// between the FMAs, into L2, since L1 has fewer fill buffers (attn_report sdpa_decode_gqa).

/// The rows of B are divided into this many equal parts, read as streams: one row of each in turn.
/// Hardware prefetchers follow several streams, but not two within one page. Zen 4, one query on
/// keys and values from memory: four streams of each take 0.83 of the time of eight streams of keys
/// and one of values (attn_report sdpa_decode).
inline constexpr int kStreams = 4;

/// The most sums that dot_block() keeps. 8 hide the latency of the FMAs. 32 registers allow 16: a
/// block of 4 x 4 takes 8 loads for 16 FMAs, one of 4 x 2 takes 6 for 8, and some cores load only
/// one AVX-512 vector per cycle. One row of A keeps 4 sums, since memory limits it, not latency.
inline constexpr int kDotSums = Registers::kDotSums;

/// Number of rows of B that dot_block() takes with R rows of A.
template <int R>
inline constexpr int kDotColumns = std::min(kStreams, kDotSums / R);

/// out[r J + j] = scale a_r . b_j over k elements for R rows of A and J = kDotColumns rows of B;
/// prefetches the rows `to_prefetch` of B.
template <class T, class E, int R>
ATTN_INLINE void dot_block(index_t k, const T* a, index_t a_stride, const E* const* b,
                           const E* const* to_prefetch, T scale, T* out) {
  using V = Vec<T>;
  constexpr int J = kDotColumns<R>;
  V sums[R * J / 4][4];
  ATTN_UNROLL
  for (int i = 0; i < R * J; ++i) sums[i / 4][i % 4] = V::all(T{0});
  const auto step = [&](index_t p, auto load_at) __attribute__((always_inline)) {
    V bv[J];
    ATTN_UNROLL
    for (int j = 0; j < J; ++j) {
      bv[j] = load_at(b[j] + p);
      if constexpr (R > 1) __builtin_prefetch(to_prefetch[j] + p, 0, 2);
    }
    ATTN_UNROLL
    for (int r = 0; r < R; ++r) {
      const V av = load_at(a + r * a_stride + p);
      ATTN_UNROLL
      for (int j = 0; j < J; ++j) {
        V& sum = sums[(r * J + j) / 4][(r * J + j) % 4];
        sum = fma(av, bv[j], sum);
      }
    }
  };
  index_t p = 0;
  for (; p + V::kLanes <= k; p += V::kLanes) {
    step(
        p, [](const auto* x) __attribute__((always_inline)) { return load(x, Whole{}); });
  }
  if (p < k)
    step(
        p, [&](const auto* x) __attribute__((always_inline)) { return load(x, k - p); });
  ATTN_UNROLL
  for (int i = 0; i < R * J / 4; ++i) sum_each(sums[i], scale, out + 4 * i);
}

/// The rows of A in a block, if there are more than kMaxRowsAlone. Only one size: each further one
/// costs compile time, and three rows take the time of four if memory limits (attn_report
/// sdpa_queries). 1 without FMA.
inline constexpr int kRowsAtOnce = Registers::kDotRows;

/// Up to this many rows of A are multiplied one after another by rows of B that stay in L1. Zen 4:
/// two rows take 0.83 of the time of a block of four; four one by one would take 1.3 (attn_report
/// sdpa_queries_2 and sdpa_decode_gqa).
inline constexpr index_t kMaxRowsAlone = 2;

/// One row of each stream, and the row to prefetch for it, `distance` rows ahead. Rows past the end
/// of B are replaced by its last row.
template <class E>
struct Streams {
  index_t at[kStreams];
  const E *rows[kStreams], *to_prefetch[kStreams];

  /// Moves to row x of each stream.
  ATTN_INLINE void go_to(index_t x, const void* const* b, index_t n, index_t length,
                         index_t distance) {
    ATTN_UNROLL
    for (int s = 0; s < kStreams; ++s) {
      at[s] = std::min(s * length + x, n - 1);
      rows[s] = static_cast<const E*>(b[at[s]]);
      to_prefetch[s] = static_cast<const E*>(b[std::min(at[s] + distance, n - 1)]);
    }
  }
};

/// Prefetches the rows `to_prefetch`: scattered rows, which hardware prefetchers do not foresee, or
/// elements of 16 or 8 bits, which are consumed faster than hardware prefetchers run ahead. Emerald
/// Rapids, one thread, in different runs: 2.5 to 3 ms instead of 3.7 to 3.9 in int8 (attn_report
/// sdpa_decode_int8).
template <class E>
ATTN_INLINE void prefetch_rows(index_t k, const E* const* to_prefetch) {
  for (int s = 0; s < kStreams; ++s) {
    for (index_t p = 0; p < k; p += 64 / index_t{sizeof(E)}) {
      __builtin_prefetch(to_prefetch[s] + p, 0, 3);
    }
  }
}

/// score_rows() with one row of A at a time.
template <class T, class E>
inline void score_rows_alone(index_t height, index_t n, index_t k, const T* a, index_t a_stride,
                             const void* const* b, T scale, T* out, index_t out_stride,
                             bool scattered) {
  const index_t length = (n + kStreams - 1) / kStreams;
  // As many bytes ahead for each type.
  const index_t distance = (scattered ? 4 : 6) * index_t{sizeof(T)} / index_t{sizeof(E)};
  Streams<E> streams;
  for (index_t x = 0; x < length; ++x) {
    streams.go_to(x, b, n, length, distance);
    if (scattered || sizeof(E) < sizeof(T)) prefetch_rows(k, streams.to_prefetch);
    for (index_t r = 0; r < height; ++r) {
      T sums[kStreams];
      dot_block<T, E, 1>(k, a + r * a_stride, a_stride, streams.rows, streams.to_prefetch, scale,
                         sums);
      // Unrolled, since g++ would merge four stores into a scatter, which is microcoded on AMD
      // processors.
      ATTN_UNROLL
      for (int s = 0; s < kStreams; ++s) out[r * out_stride + streams.at[s]] = sums[s];
    }
  }
}

/// to[r, s length + x] = from[x, r J + s] for kRowsAtOnce rows r, J = kDotColumns streams s and
/// x < count; `to` has `room` columns left.
template <class T>
inline void transpose_sums(index_t length, index_t count, index_t room, const T* from, T* to,
                           index_t to_stride) {
  constexpr index_t J = kDotColumns<kRowsAtOnce>, kWidth = kRowsAtOnce * J;
  constexpr index_t kSize = Block<T>::kSize;
  static_assert(kWidth % kSize == 0);
  if (count == kSize && (J - 1) * length + kSize <= room) {
    for (index_t i = 0; i < kWidth; i += kSize) {
      const Block<T> block(from + i, kWidth, kSize);
      ATTN_UNROLL
      for (int x = 0; x < kSize; ++x) {
        block.store(x, to + (i + x) / J * to_stride + (i + x) % J * length);
      }
    }
    return;
  }
  for (index_t s = 0; s < J; ++s, from += 1, to += length, room -= length) {
    for (index_t x = 0; x < std::min(room, count); ++x) {
      ATTN_UNROLL
      for (int r = 0; r < kRowsAtOnce; ++r) to[r * to_stride + x] = from[x * kWidth + r * J];
    }
  }
}

/// score_rows() with kRowsAtOnce rows of A at a time. Sums for several rows of each stream are
/// collected and transposed in registers: 16 single stores after each 16 sums took 1.07 times as
/// long (attn_report sdpa_decode_gqa).
template <class T, class E>
inline void score_rows_together(index_t height, index_t n, index_t k, const T* a, index_t a_stride,
                                const void* const* b, T scale, T* out, index_t out_stride) {
  constexpr index_t R = kRowsAtOnce, J = kDotColumns<R>, kSize = Block<T>::kSize;
  constexpr index_t kTransposed = kSize * R * J;
  const index_t length = (n + kStreams - 1) / kStreams;
  T sums[detail::kMaxDecodeRows * kStreams * kSize];
  Streams<E> streams;
  for (index_t first = 0; first < length; first += kSize) {
    const index_t count = std::min(length - first, kSize);
    for (index_t x = 0; x < count; ++x) {
      streams.go_to(first + x, b, n, length, 6);
      T* to = sums + x * R * J;
      for (index_t s = 0; s < kStreams; s += J) {
        for (index_t r = 0; r < height; r += R, to += kTransposed) {
          dot_block<T, E, R>(k, a + r * a_stride, a_stride, streams.rows + s,
                             (r == 0 ? streams.to_prefetch : streams.rows) + s, scale, to);
        }
      }
    }
    const T* from = sums;
    for (index_t s = 0; s < kStreams; s += J) {
      const index_t column = s * length + first;
      for (index_t r = 0; r < height; r += R, from += kTransposed) {
        transpose_sums(length, count, n - column, from, out + r * out_stride + column, out_stride);
      }
    }
  }
}

/// out[r, j] = scale a_r . b_j for `height` rows of A and n rows of B, whose elements are of type
/// E. `a` and `out` have memory for a multiple of detail::kDecodeRowsAtOnce rows, all of which may
/// be accessed. `scattered`: the rows of B do not follow one another in memory.
template <class T, class E>
inline void score_rows(index_t height, index_t n, index_t k, const T* a, index_t a_stride,
                       const void* const* b, T scale, T* out, index_t out_stride, bool scattered) {
  if constexpr (kRowsAtOnce > 1) {
    if (height > kMaxRowsAlone) {
      return score_rows_together<T, E>(height, n, k, a, a_stride, b, scale, out, out_stride);
    }
  }
  score_rows_alone<T, E>(height, n, k, a, a_stride, b, scale, out, out_stride, scattered);
}

/// c_r += sum over i < N of a[r, i a_step] row_i for R rows of C; prefetches the rows
/// `to_prefetch`.
template <class T, class E, int R, int N>
inline void add_block(index_t columns, const T* a, index_t a_stride, index_t a_step,
                      const E* const* row, const E* const* to_prefetch, T* c, index_t c_stride) {
  using V = Vec<T>;
  // Read once: for the compiler, the stores below could change the pointers.
  const E *from[N], *next[N];
  for (int i = 0; i < N; ++i) {
    from[i] = row[i];
    next[i] = to_prefetch[i];
  }
  V weight[R][N];
  ATTN_UNROLL
  for (int x = 0; x < R; ++x) {
    ATTN_UNROLL
    for (int i = 0; i < N; ++i) weight[x][i] = V::all(a[x * a_stride + i * a_step]);
  }
  each_vector<T>(columns, [&](index_t at, auto lanes) {
    T* to = c + at;
    V sum[R];
    ATTN_UNROLL
    for (int x = 0; x < R; ++x) sum[x] = V::load(to + x * c_stride);
    ATTN_UNROLL
    for (int i = 0; i < N; ++i) {
      const V value = load(from[i] + at, lanes);
      if constexpr (R > 1) __builtin_prefetch(next[i] + at, 0, 2);
      ATTN_UNROLL
      for (int x = 0; x < R; ++x) sum[x] = fma(weight[x][i], value, sum[x]);
    }
    ATTN_UNROLL
    for (int x = 0; x < R; ++x) sum[x].store(to + x * c_stride);
  });
}

/// c_r = factor_r c_r + sum over j < n of a[r, j] b_j, for rows of `columns` elements; elements of
/// b are of type E, and c has memory for whole vectors. Several rows share the loads of b.
///
/// b[0] has index `first` in its block. The order of sums depends only on which steps of
/// detail::kKeyStep rows of the block are touched, so that a further row within the last step does
/// not change it.
template <class T, class E>
inline void add_values_rows(index_t height, index_t columns, index_t first, index_t n, const T* a,
                            index_t a_stride, const void* const* b, T* c, index_t c_stride,
                            const T* factor, bool scattered) {
  using V = Vec<T>;
  for (index_t r = 0; r < height; ++r) {
    for (index_t x = 0; x < columns; x += V::kLanes) {
      (V::all(factor[r]) * V::load(c + r * c_stride + x)).store(c + r * c_stride + x);
    }
  }
  const bool is_alone = height <= kMaxRowsAlone;
  const index_t distance =
      is_alone ? (scattered ? 5 : 8) * index_t{sizeof(T)} / index_t{sizeof(E)} : 8;
  static_assert(detail::kKeyStep % kStreams == 0);
  const index_t before = first % detail::kKeyStep;
  const index_t length = detail::round_up(before + n, detail::kKeyStep) / kStreams;
  const E *rows[kStreams], *to_prefetch[kStreams];
  for (index_t at = 0; at < length; ++at) {
    const index_t begin = at - before, last = begin + (kStreams - 1) * length;
    if (begin < 0 || last >= n) {
      for (index_t j = begin; j < n; j += length) {
        if (j < 0) continue;
        const E* row = static_cast<const E*>(b[j]);
        if (is_alone) {
          for (index_t r = 0; r < height; ++r) {
            add_block<T, E, 1, 1>(columns, a + r * a_stride + j, a_stride, 0, &row, &row,
                                  c + r * c_stride, c_stride);
          }
          continue;
        }
        for (index_t r = 0; r < height; r += kRowsAtOnce) {
          add_block<T, E, kRowsAtOnce, 1>(columns, a + r * a_stride + j, a_stride, 0, &row, &row,
                                          c + r * c_stride, c_stride);
        }
      }
      continue;
    }
    for (index_t s = 0; s < kStreams; ++s) {
      rows[s] = static_cast<const E*>(b[begin + s * length]);
      to_prefetch[s] = static_cast<const E*>(b[std::min(begin + s * length + distance, n - 1)]);
    }
    if (is_alone) {
      if (scattered || sizeof(E) < sizeof(T)) prefetch_rows(columns, to_prefetch);
      for (index_t r = 0; r < height; ++r) {
        add_block<T, E, 1, kStreams>(columns, a + r * a_stride + begin, a_stride, length, rows,
                                     to_prefetch, c + r * c_stride, c_stride);
      }
      continue;
    }
    for (index_t r = 0; r < height; r += kRowsAtOnce) {
      add_block<T, E, kRowsAtOnce, kStreams>(columns, a + r * a_stride + begin, a_stride, length,
                                             rows, r == 0 ? to_prefetch : rows, c + r * c_stride,
                                             c_stride);
    }
  }
}
