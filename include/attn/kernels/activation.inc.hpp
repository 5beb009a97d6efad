// Kernel text: one row through an activation, in place; its product with a second row; swish, with a factor.

/// use(f) with the activation as a function f of one vector; nothing for Activation::none.
template <class T, class Use>
inline void with_activation(Activation activation, Use use) {
  const auto all = [](double value) { return Vec<T>::all(static_cast<T>(value)); };
  switch (activation) {
    case Activation::none:
      return;
    case Activation::relu:
      // max returns its second operand where one is NaN: a NaN stays one, as in PyTorch.
      return use([&](Vec<T> v) { return max(all(0), v); });
    case Activation::silu:
      return use([&](Vec<T> v) { return v / (all(1) + exp(all(0) - v)); });
    case Activation::gelu_tanh:
      // (1 + tanh u) / 2 = 1 / (1 + e^-2u)
      return use([&](Vec<T> v) {
        const Vec<T> u = all(-1.5957691216057307) * fma(all(0.044715) * v, v * v, v);
        return v / (all(1) + exp(u));
      });
    case Activation::gelu:
      return use(
          [&](Vec<T> v) { return all(0.5) * v * (all(1) + erf(v * all(0.70710678118654752440))); });
  }
}

template <class T>
inline void activate_row(Activation activation, index_t n, T* x) {
  with_activation<T>(activation, [n, x](auto f) {
    each_vector<T>(n, [&](index_t k, auto lanes) { store(f(load(x + k, lanes)), x + k, lanes); });
  });
}

template <class T>
inline void glu_rows(const detail::GluProblem<T>& problem, const Executor& executor, Workspace&) {
  const index_t n = problem.out.extent(1);
  detail::for_rows(executor, problem.out.extent(0), n, [&](index_t row) {
    const T *a = &problem.a(row, 0), *b = &problem.b(row, 0);
    T* out = &problem.out(row, 0);
    const auto gate = [&](auto f) {
      each_vector<T>(n, [&](index_t k, auto lanes) {
        store(f(load(a + k, lanes)) * load(b + k, lanes), out + k, lanes);
      });
    };
    if (problem.activation == Activation::none) return gate([](Vec<T> v) { return v; });
    with_activation<T>(problem.activation, gate);
  });
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

template <class T>
inline void swiglu_elements(const detail::SwigluProblem<T>& problem, const Executor& executor,
                            Workspace&) {
  constexpr index_t kRow = 4096;
  detail::for_rows(executor, (problem.n + kRow - 1) / kRow, kRow, [&problem](index_t row) {
    using V = Vec<T>;
    const index_t first = row * kRow, left = problem.n - first;
    const T* a = problem.a + first;
    const T* b = problem.b == nullptr ? nullptr : problem.b + first;
    T* out = problem.out + first;
    const V one = V::all(T{1}), minus_alpha = V::all(-problem.alpha);
    each_vector<T>(left < kRow ? left : kRow, [&](index_t k, auto lanes) {
      const V x = load(a + k, lanes);
      V y = x / (one + exp(minus_alpha * x));
      if (b != nullptr) y = y * load(b + k, lanes);
      store(y, out + k, lanes);
    });
  });
}
