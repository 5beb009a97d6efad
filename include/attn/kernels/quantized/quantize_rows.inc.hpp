// Kernel text: one row to int8 and its scale.
// SPDX-License-Identifier: Apache-2.0

/// Calls f(first, count, x) for pieces of a row, contiguous at x.
template <class T, class F>
ATTN_INLINE void for_pieces(index_t n, const T* from, index_t stride, F f) {
  constexpr index_t kPiece = 256;
  if (stride == 1) return f(index_t{0}, n, from);
  T piece[kPiece];
  for (index_t first = 0; first < n; first += kPiece) {
    const index_t count = std::min(n - first, kPiece);
    for (index_t j = 0; j < count; ++j) piece[j] = from[(first + j) * stride];
    f(first, count, piece);
  }
}

/// Returns the scale.
template <class T>
inline T quantize_row(index_t n, const T* from, index_t stride, std::int8_t* codes) {
  using V = Vec<T>;
  V largest = V::all(T{0}), odd = largest;  // x - x is 0, or NaN where x is not finite
  for_pieces(n, from, stride, [&](index_t, index_t count, const T* x) {
    each_vector<T>(count, [&](index_t j, auto lanes) {
      const V v = load(x + j, lanes);
      largest = max(max(v, V::all(T{0}) - v), largest);
      odd = odd + (v - v);
    });
  });
  const bool is_finite = sum(odd) == T{0};
  const T scale = max_lane(largest) / T{127};
  if (!is_finite || scale < std::numeric_limits<T>::min()) {
    std::fill_n(codes, n, std::int8_t{0});
    return is_finite ? T{0} : std::numeric_limits<T>::quiet_NaN();
  }
  const V by = V::all(scale);
  for_pieces(n, from, stride, [&](index_t first, index_t count, const T* x) {
    each_vector<T>(count, [&](index_t j, auto lanes) {
      store(load(x + j, lanes) / by, codes + first + j, lanes);
    });
  });
  return scale;
}

template <class T>
inline void quantize_all(const detail::QuantizationProblem<T>& problem, const Executor& executor,
                         Workspace&) {
  const Shape<4>& shape = problem.from.shape();
  detail::for_rows(executor, shape[0] * shape[1] * shape[2], shape[3], [&](index_t row) {
    const index_t b = row / shape[2] / shape[1], h = row / shape[2] % shape[1], i = row % shape[2];
    problem.scales(b, h, i) =
        quantize_row(shape[3], problem.from.at_index({b, h, i, 0}), problem.from.stride(3),
                     problem.codes.at_index({b, h, i, 0}));
  });
}

template <class T>
struct TargetTable<detail::Backend<family::RowQuantization, T, std::int8_t>> {
  static constexpr detail::Backend<family::RowQuantization, T, std::int8_t> kTable{
      .quantize = detail::kKernel<quantize_all<T>>};
};
