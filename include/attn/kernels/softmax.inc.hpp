// Kernel text: softmax of rows, and its two halves, which attention uses on blocks of a row.

/// Largest of x[0, n), not below `least`. A NaN may be passed over: it shows in the sum.
template <class T>
inline T row_max(index_t n, const T* x, T least) {
  using V = Vec<T>;
  V m0 = V::all(least), m1 = m0;
  index_t j = 0;
  for (; j + 2 * V::kLanes <= n; j += 2 * V::kLanes) {
    m0 = max(m0, V::load(x + j));
    m1 = max(m1, V::load(x + j + V::kLanes));
  }
  T most = max_lane(max(m0, m1));
  for (; j < n; ++j) most = x[j] > most ? x[j] : most;
  return most;
}

/// out = e^(x - shift); returns the sum. out may be x. Needs x <= shift.
template <class T>
inline T row_exp(index_t n, const T* x, T shift, T* out) {
  using V = Vec<T>;
  const V s = V::all(shift);
  V total = V::all(T{0});
  index_t j = 0;
  for (; j + V::kLanes <= n; j += V::kLanes) {
    const V e = exp_flush(V::load(x + j) - s);
    e.store(out + j);
    total = total + e;
  }
  T rest = 0;
  if (j < n) {
    const index_t left = n - j;
    const V e = exp_flush(V::load(x + j, left) - s);
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

/// Largest of x[0, n) and the logarithm of the sum of e^(x - it); 0 and -inf where nothing is above -inf.
template <class T>
struct LogSum {
  T most, log_sum;
};
template <class T>
inline LogSum<T> row_log_sum(index_t n, const T* x) {
  using V = Vec<T>;
  const T most = row_max(n, x, -std::numeric_limits<T>::infinity());
  const T shift = most == -std::numeric_limits<T>::infinity() ? T{0} : most;
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
    out(i) = row.most + row.log_sum;
  });
}

template <class T>
inline void softmax_rows(const detail::SoftmaxProblem<T>& problem, const Executor& executor,
                         Workspace&) {
  detail::for_rows(executor, problem.x.extent(0), problem.x.extent(1), [&problem](index_t i) {
    const auto& [x, out] = problem;
    const index_t n = x.extent(1);
    const T* from = x.data() + i * x.stride(0);
    T* to = out.data() + i * out.stride(0);
    const T most = row_max(n, from, -std::numeric_limits<T>::infinity());
    // Nothing visible: shift 0 keeps -inf - -inf out, e^-inf gives the zeros.
    const T shift = most == -std::numeric_limits<T>::infinity() ? T{0} : most;
    const T total = row_exp(n, from, shift, to);
    if (total != T{0}) row_scale(n, T{1} / total, to);
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
    // Nothing visible: x, which is -inf, less a logarithm of -inf would be NaN.
    const T log_sum = row.log_sum == -std::numeric_limits<T>::infinity() ? T{0} : row.log_sum;
    // The maximum first: its difference from x is exact where x is large, and their sum would round the logarithm away.
    each_vector<T>(n, [&](index_t k, auto lanes) {
      store(load(from + k, lanes) - V::all(row.most) - V::all(log_sum), to + k, lanes);
    });
  });
}
