// Kernel text: normalisation of rows; that of layers in two passes (the one-pass variance cancels).

template <class T>
inline void layer_norm_rows(const detail::NormProblem<T>& problem, const Executor& executor,
                            Workspace&) {
  detail::for_rows(executor, problem.x.extent(0), problem.x.extent(1), [&problem](index_t i) {
    using V = Vec<T>;
    const index_t n = problem.x.extent(1);
    const T* from = problem.x.data() + i * problem.x.stride(0);
    const T *weight = problem.weight, *bias = problem.bias;
    T* to = problem.out.data() + i * problem.out.stride(0);
    V total = V::all(T{0});
    each_vector<T>(n, [&](index_t k, auto lanes) { total = total + load(from + k, lanes); });
    const T mean = sum(total) / static_cast<T>(n);
    V squares = V::all(T{0});
    index_t j = 0;
    for (; j + V::kLanes <= n; j += V::kLanes) {
      const V d = V::load(from + j) - V::all(mean);
      squares = fma(d, d, squares);
    }
    T square = sum(squares);
    for (; j < n; ++j) square += (from[j] - mean) * (from[j] - mean);
    const T scale = T{1} / std::sqrt(square / static_cast<T>(n) + problem.eps);
    each_vector<T>(n, [&](index_t k, auto lanes) {
      V y = (load(from + k, lanes) - V::all(mean)) * V::all(scale);
      if (weight != nullptr) y = y * load(weight + k, lanes);
      if (bias != nullptr) y = y + load(bias + k, lanes);
      store(y, to + k, lanes);
    });
  });
}

template <class T>
inline void rms_norm_rows(const detail::NormProblem<T>& problem, const Executor& executor,
                          Workspace&) {
  detail::for_rows(executor, problem.x.extent(0), problem.x.extent(1), [&problem](index_t i) {
    using V = Vec<T>;
    const index_t n = problem.x.extent(1);
    const T* from = problem.x.data() + i * problem.x.stride(0);
    const T* weight = problem.weight;
    T* to = problem.out.data() + i * problem.out.stride(0);
    V squares = V::all(T{0});
    each_vector<T>(n, [&](index_t k, auto lanes) {
      const V v = load(from + k, lanes);
      squares = fma(v, v, squares);
    });
    const T scale = T{1} / std::sqrt(sum(squares) / static_cast<T>(n) + problem.eps);
    each_vector<T>(n, [&](index_t k, auto lanes) {
      V y = load(from + k, lanes) * V::all(scale);
      if (weight != nullptr) y = y * load(weight + k, lanes);
      store(y, to + k, lanes);
    });
  });
}
