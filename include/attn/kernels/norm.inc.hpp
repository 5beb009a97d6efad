// Kernel text: layer normalisation of rows, in two passes (the one-pass variance cancels).

template <class T>
inline void layer_norm_rows(const detail::NormProblem<T>& problem, const Executor& executor,
                            Workspace&) {
  detail::for_rows(executor, problem.x.extent(0), problem.x.extent(1), [&problem](index_t i) {
    const auto& [x, weight, bias, eps, out] = problem;
    using V = Vec<T>;
    const index_t n = x.extent(1);
    const T* from = x.data() + i * x.stride(0);
    T* to = out.data() + i * out.stride(0);
    V total = V::all(T{0});
    for (index_t j = 0; j < n; j += V::kLanes) total = total + V::load(from + j, n - j);
    const T mean = sum(total) / static_cast<T>(n);
    V squares = V::all(T{0});
    index_t j = 0;
    for (; j + V::kLanes <= n; j += V::kLanes) {
      const V d = V::load(from + j) - V::all(mean);
      squares = fma(d, d, squares);
    }
    T square = sum(squares);
    for (; j < n; ++j) square += (from[j] - mean) * (from[j] - mean);
    const T scale = T{1} / std::sqrt(square / static_cast<T>(n) + eps);
    for (j = 0; j < n; j += V::kLanes) {
      const index_t left = n - j;
      V y = (V::load(from + j, left) - V::all(mean)) * V::all(scale);
      if (weight != nullptr) y = y * V::load(weight + j, left);
      if (bias != nullptr) y = y + V::load(bias + j, left);
      y.store(to + j, left);
    }
  });
}
