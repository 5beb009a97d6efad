// Kernel text: rows of stored elements, widened for computation and narrowed for output.
// SPDX-License-Identifier: Apache-2.0

template <class T, class E>
inline void widen_rows(index_t count, index_t n, detail::StoredRows<T> rows, T* to,
                       index_t to_stride) {
  const E* from = static_cast<const E*>(rows.data);
  for (index_t r = 0; r < count; ++r, from += rows.stride, to += to_stride) {
    if constexpr (std::same_as<E, T>) {
      std::copy_n(from, n, to);
    } else {
      const Vec<T> factor = Vec<T>::all(rows.scales == nullptr ? T{1} : rows.scales[r]);
      each_vector<T>(
          n, [&](index_t j, auto lanes) { store(load(from + j, lanes) * factor, to + j, lanes); });
    }
  }
}

template <class T, class E>
inline void copy_rows(index_t count, index_t readable, index_t n, const void* const* rows,
                      const T* scales, T* to, index_t to_stride) {
  constexpr index_t kAhead = 16;
  for (index_t r = 0; r < count; ++r, to += to_stride) {
    const E* ahead = static_cast<const E*>(rows[std::min(r + kAhead, readable - 1)]);
    for (index_t j = 0; j < n; j += 64 / index_t{sizeof(E)}) __builtin_prefetch(ahead + j, 0, 3);
    const E* from = static_cast<const E*>(rows[r]);
    const Vec<T> factor = Vec<T>::all(scales == nullptr ? T{1} : scales[r]);
    each_vector<T>(n, [&](index_t j, auto lanes) {
      const Vec<T> x = load(from + j, lanes);
      store(std::same_as<E, T> ? x : x * factor, to + j, lanes);
    });
  }
}

template <class T, class E>
inline void narrow_rows(index_t count, index_t n, const T* rows, index_t stride, void* to,
                        index_t to_stride) {
  E* out = static_cast<E*>(to);
  for (index_t r = 0; r < count; ++r, rows += stride, out += to_stride) {
    if constexpr (std::same_as<E, T>) {
      std::copy_n(rows, n, out);
    } else {
      each_vector<T>(n,
                     [&](index_t j, auto lanes) { store(load(rows + j, lanes), out + j, lanes); });
    }
  }
}

/// Elements other than T are widened in pieces that stay in L1.
template <class T, class E>
inline void pack_rows(index_t width, index_t room, index_t k, detail::StoredRows<T> rows,
                      T* panel) {
  constexpr index_t NR = RowTileShape<T>::NR;
  const E* from = static_cast<const E*>(rows.data);
  if constexpr (std::same_as<E, T>) {
    pack_part<T, NR>(width, room, k, from, rows.stride, panel);
  } else {
    constexpr index_t kPiece = 64;
    T piece[NR * kPiece];
    for (index_t p = 0; p < k; p += kPiece) {
      const index_t n = (std::min)(k - p, kPiece);
      widen_rows<T, E>(width, n, {from + p, rows.stride, rows.scales}, piece, kPiece);
      pack_part<T, NR>(width, room, n, piece, kPiece, panel + p * NR);
    }
  }
}

template <class T>
inline void scale_columns(index_t height, index_t n, const T* factors, T* s, index_t stride) {
  for (index_t r = 0; r < height; ++r, s += stride) {
    each_vector<T>(n, [&](index_t j, auto lanes) {
      store(load(s + j, lanes) * load(factors + j, lanes), s + j, lanes);
    });
  }
}

/// The table for rows of element type E, computed in T.
template <class T, class E>
struct ElementTable {
  static constexpr detail::ElementKernels<T> kTable = [] {
    detail::ElementKernels<T> table{
        .pack_rows = pack_rows<T, E>,
        .widen_rows = widen_rows<T, E>,
        .copy_rows = copy_rows<T, E>,
        .narrow_rows = nullptr,
        .score_rows = score_rows<T, E>,
        .add_values_rows = add_values_rows<T, E>,
        .scale_columns = nullptr,
    };
    if constexpr (std::same_as<E, std::int8_t>) {
      table.scale_columns = scale_columns<T>;
    } else {
      table.narrow_rows = narrow_rows<T, E>;
    }
    return table;
  }();
};
