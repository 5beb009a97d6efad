// Kernel text: softmax of rows, its logarithm, and log-sum-exp.
// SPDX-License-Identifier: Apache-2.0

/// max(lowest, x[0], .., x[n - 1]). May ignore a NaN, which then appears in the sum.
template <class T>
inline T row_max(index_t n, const T* x, T lowest) {
  using V = Vec<T>;
  V m0 = V::all(lowest), m1 = m0;
  index_t j = 0;
  for (; j + 2 * V::kLanes <= n; j += 2 * V::kLanes) {
    m0 = max(m0, V::load(x + j));
    m1 = max(m1, V::load(x + j + V::kLanes));
  }
  T largest = max_lane(max(m0, m1));
  for (; j < n; ++j) largest = x[j] > largest ? x[j] : largest;
  return largest;
}

/// The shift of a row with this maximum. A row of -inf takes 0, since -inf - -inf is NaN; then all
/// its e^-inf are 0.
template <class T>
inline T row_shift(T largest) {
  return largest == -std::numeric_limits<T>::infinity() ? T{0} : largest;
}

/// out = e^(x - shift); returns the sum. out may be x. Needs x <= shift. beside(j, lanes) runs for
/// every vector, between the load from x and the store to out.
template <class T, class Beside>
ATTN_INLINE T row_exp(index_t n, const T* x, T shift, T* out, Beside beside) {
  using V = Vec<T>;
  const V s = V::all(shift);
  V total = V::all(T{0});
  index_t j = 0;
  for (; j + V::kLanes <= n; j += V::kLanes) {
    const V v = V::load(x + j);
    beside(j, Whole{});
    const V e = exp_flush(v - s);
    e.store(out + j);
    total = total + e;
  }
  T rest = 0;
  if (j < n) {
    const index_t left = n - j;
    const V v = V::load(x + j, left);
    beside(j, left);
    const V e = exp_flush(v - s);
    e.store(out + j, left);
    T lanes[V::kLanes];
    e.store(lanes);
    for (index_t i = 0; i < left; ++i) rest += lanes[i];
  }
  return sum(total) + rest;
}

template <class T>
inline void row_scale(index_t n, T factor, T* x) {
  using V = Vec<T>;
  index_t j = 0;
  for (; j + V::kLanes <= n; j += V::kLanes) (V::load(x + j) * V::all(factor)).store(x + j);
  for (; j < n; ++j) x[j] *= factor;
}

/// row_max = max(x[0], .., x[n - 1]) and log_sum = log(sum of e^(x - row_max)); 0 and -inf for a
/// row of -inf.
template <class T>
struct LogSum {
  T row_max, log_sum;
};
template <class T>
inline LogSum<T> row_log_sum(index_t n, const T* x) {
  using V = Vec<T>;
  const T largest = row_max(n, x, -std::numeric_limits<T>::infinity());
  const T shift = row_shift(largest);
  V total = V::all(T{0});
  index_t j = 0;
  for (; j + V::kLanes <= n; j += V::kLanes)
    total = total + exp_flush(V::load(x + j) - V::all(shift));
  T rest = 0;
  for (; j < n; ++j) rest += std::exp(x[j] - shift);
  return {shift, std::log(sum(total) + rest)};
}

template <class T>
inline void log_sum_exp_rows(const detail::LogSumExpProblem<T>& problem, const Executor& executor,
                             Workspace&) {
  detail::for_rows(executor, problem.x.extent(0), problem.x.extent(1), [&problem](index_t i) {
    const auto& [x, out] = problem;
    const LogSum<T> row = row_log_sum(x.extent(1), x.data() + i * x.stride(0));
    out(i) = row.row_max + row.log_sum;
  });
}

/// 1 / total; 1 for a row of -inf, whose weights stay 0.
template <class T>
inline T row_factor(T total) {
  return total != T{0} ? T{1} / total : T{1};
}

/// Softmax of rows [begin, end), at least one, as a pipeline of three rows: while e^x of one is
/// computed, the row before it is scaled and the maximum of the row after it found. Rows of 1024
/// floats in L2 take 0.7 of the time of one row after another (bench/softmax_bench; AVX-512, Zen
/// 4).
template <class T>
inline void softmax_row_range(const detail::SoftmaxProblem<T>& problem, index_t begin,
                              index_t end) {
  using V = Vec<T>;
  constexpr T kLowest = -std::numeric_limits<T>::infinity();
  const index_t n = problem.x.extent(1);
  const auto x = [&](index_t i) { return problem.x.data() + i * problem.x.stride(0); };
  const auto out = [&](index_t i) { return problem.out.data() + i * problem.out.stride(0); };
  const T first_shift = row_shift(row_max(n, x(begin), kLowest));
  T total = row_exp(n, x(begin), first_shift, out(begin), [](index_t, auto) {});
  T largest = begin + 1 < end ? row_max(n, x(begin + 1), kLowest) : kLowest;
  for (index_t i = begin + 1; i < end; ++i) {
    const T* const after = x(i + 1 < end ? i + 1 : i);  // after the last row: repeats it, unused
    T* const before = out(i - 1);
    const T factor = row_factor(total), shift = row_shift(largest);
    largest = kLowest;
    V largest_lanes = V::all(kLowest);
    // All loads come before the stores: a load waits for earlier stores whose addresses agree in
    // the low 12 bits (4K aliasing), as in rows of 4 KB.
    total = row_exp(n, x(i), shift, out(i), [&](index_t j, auto lanes) {
      if constexpr (std::is_same_v<decltype(lanes), Whole>) {
        largest_lanes = max(largest_lanes, V::load(after + j));
        (V::load(before + j) * V::all(factor)).store(before + j);
      } else {
        largest = row_max(lanes, after + j, largest);
        row_scale(lanes, factor, before + j);
      }
    });
    largest = std::max(largest, max_lane(largest_lanes));
  }
  row_scale(n, row_factor(total), out(end - 1));
}

template <class T>
inline void softmax_rows(const detail::SoftmaxProblem<T>& problem, const Executor& executor,
                         Workspace&) {
  const index_t rows = problem.x.extent(0), n = problem.x.extent(1);
  // Rows from memory are faster with a separate pass for the maximum, which keeps many cache lines
  // in flight (bench/softmax_bench).
  const bool is_near = rows * n <= 4 * second_level_cache() / index_t{sizeof(T)};
  detail::for_row_ranges(executor, rows, n, [&problem, is_near](index_t begin, index_t end) {
    const index_t step = is_near ? end - begin : 1;
    for (index_t i = begin; i < end; i += step) softmax_row_range(problem, i, i + step);
  });
}

template <class T>
inline void log_softmax_rows(const detail::SoftmaxProblem<T>& problem, const Executor& executor,
                             Workspace&) {
  detail::for_rows(executor, problem.x.extent(0), problem.x.extent(1), [&problem](index_t i) {
    using V = Vec<T>;
    const auto& [x, out] = problem;
    const index_t n = x.extent(1);
    const T* from = x.data() + i * x.stride(0);
    T* to = out.data() + i * out.stride(0);
    const LogSum<T> row = row_log_sum(n, from);
    // A row of -inf: x - log_sum would be -inf - -inf, which is NaN.
    const T log_sum = row.log_sum == -std::numeric_limits<T>::infinity() ? T{0} : row.log_sum;
    // row_max is subtracted first: x - row_max is exact where x is large, while row_max + log_sum
    // would round the logarithm away.
    each_vector<T>(n, [&](index_t k, auto lanes) {
      store(load(from + k, lanes) - V::all(row.row_max) - V::all(log_sum), to + k, lanes);
    });
  });
}

template <class T>
struct TargetTable<detail::Backend<family::Softmax, T, T>> {
  static constexpr detail::Backend<family::Softmax, T, T> kTable{
      .softmax = detail::kKernel<softmax_rows<T>>,
      .log_softmax = detail::kKernel<log_softmax_rows<T>>,
      .log_sum_exp = detail::kKernel<log_sum_exp_rows<T>>};
};
