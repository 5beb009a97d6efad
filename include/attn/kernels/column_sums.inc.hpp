// Kernel text: sums over rows, column by column.
// SPDX-License-Identifier: Apache-2.0

/// out[c] += sum over rows of f(row, c, lanes), a vector, for columns [begin, end).
template <class T, class F>
ATTN_INLINE void sum_over_rows(index_t rows, index_t begin, index_t end, T* out, F f) {
  using V = Vec<T>;
  const auto add = [&](index_t c, auto lanes) __attribute__((always_inline)) {
    V total = load(out + c, lanes);
    for (index_t row = 0; row < rows;) {
      const index_t stop = std::min(row + detail::kRowsOfPartSum, rows);
      V part = V::all(T{0});
      for (; row < stop; ++row) part = part + f(row, c, lanes);
      total = total + part;
    }
    store(total, out + c, lanes);
  };
  each_vector<T>(end - begin, [&](index_t c, auto lanes) { add(begin + c, lanes); });
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
struct Row<detail::Backend<family::ColumnSums, T, T>> {
  static constexpr detail::Backend<family::ColumnSums, T, T> kTable{
      .add = detail::kKernel<column_sums<T>>};
};
