// Kernel text: one row through an activation, in place.

template <class T>
inline void activate_row(Activation activation, index_t n, T* x) {
  const auto each = [n, x](auto f) {
    index_t i = 0;
    for (; i + Vec<T>::kLanes <= n; i += Vec<T>::kLanes) f(Vec<T>::load(x + i)).store(x + i);
    if (i < n) f(Vec<T>::load(x + i, n - i)).store(x + i, n - i);
  };
  const auto all = [](double value) { return Vec<T>::all(static_cast<T>(value)); };
  switch (activation) {
    case Activation::none:
      return;
    case Activation::relu:
      // max returns its second operand where one is NaN: a NaN stays one, as in PyTorch.
      return each([&](Vec<T> v) { return max(all(0), v); });
    case Activation::silu:
      return each([&](Vec<T> v) { return v / (all(1) + exp(all(0) - v)); });
    case Activation::gelu_tanh:
      // (1 + tanh u) / 2 = 1 / (1 + e^-2u)
      return each([&](Vec<T> v) {
        const Vec<T> u = all(-1.5957691216057307) * fma(all(0.044715) * v, v * v, v);
        return v / (all(1) + exp(u));
      });
    case Activation::gelu:
      return each(
          [&](Vec<T> v) { return all(0.5) * v * (all(1) + erf(v * all(0.70710678118654752440))); });
  }
}

template <class T>
inline void activate_elements(const detail::ActivationProblem<T>& problem, const Executor& executor,
                              Workspace&) {
  constexpr index_t kRow = 4096;
  detail::for_rows(executor, (problem.n + kRow - 1) / kRow, kRow, [&problem](index_t row) {
    const index_t left = problem.n - row * kRow;
    activate_row(problem.activation, left < kRow ? left : kRow, problem.x + row * kRow);
  });
}
