// Kernel text: sums over rows, column by column.
// SPDX-License-Identifier: Apache-2.0

/// out[c] += sum over rows of the vectors f(row, c, lanes), for columns [begin, end). Four vectors
/// at a time, to use whole cache lines and to have four independent sums.
template <class T, class F>
ATTN_INLINE void sum_over_rows(index_t rows, index_t begin, index_t end, T* out, F f) {
  using V = Vec<T>;
  const auto add = [&]<int N>(index_t c, auto lanes, std::integral_constant<int, N>)
      __attribute__((always_inline)) {
    V total[N];
    ATTN_UNROLL
    for (int n = 0; n < N; ++n) total[n] = load(out + c + n * V::kLanes, lanes);
    for (index_t row = 0; row < rows;) {
      const index_t stop = std::min(row + detail::kRowsOfPartSum, rows);
      V part[N];
      ATTN_UNROLL
      for (int n = 0; n < N; ++n) part[n] = V::all(T{0});
      for (; row < stop; ++row) {
        ATTN_UNROLL
        for (int n = 0; n < N; ++n) part[n] = part[n] + f(row, c + n * V::kLanes, lanes);
      }
      ATTN_UNROLL
      for (int n = 0; n < N; ++n) total[n] = total[n] + part[n];
    }
    ATTN_UNROLL
    for (int n = 0; n < N; ++n) store(total[n], out + c + n * V::kLanes, lanes);
  };
  constexpr int kAtOnce = 4;
  index_t c = begin;
  for (; c + kAtOnce * V::kLanes <= end; c += kAtOnce * V::kLanes) {
    add(c, Whole{}, std::integral_constant<int, kAtOnce>{});
  }
  each_vector<T>(
      end - c, [&](index_t x, auto lanes) { add(c + x, lanes, std::integral_constant<int, 1>{}); });
}

template <class T>
inline void column_sums(const detail::ColumnSumsProblem<T>& problem, const Executor& executor,
                        Workspace&) {
  const index_t rows = problem.x.extent(0), stride = problem.x.stride(0);
  const T* x = problem.x.data();
  T* out = problem.out;
  detail::for_column_ranges(executor, rows, problem.x.extent(1), [&](index_t begin, index_t end) {
    sum_over_rows(rows, begin, end, out, [&](index_t row, index_t c, auto lanes) {
      return load(x + row * stride + c, lanes);
    });
  });
}

template <class T>
struct TargetTable<detail::Backend<family::ColumnSums, T, T>> {
  static constexpr detail::Backend<family::ColumnSums, T, T> kTable{
      .add = detail::kKernel<column_sums<T>>};
};
