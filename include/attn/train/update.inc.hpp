// Kernel text: single-pass updates of parameters and gradients.
// SPDX-License-Identifier: Apache-2.0

/// Calls f(begin, end) for chunks that cover n elements.
template <class F>
inline void for_update_chunks(const Executor& executor, index_t n, F f) {
  constexpr index_t kChunk = detail::kUpdateChunk;
  detail::threads_for(executor, 16 * n).run((n + kChunk - 1) / kChunk, [&](index_t task, int) {
    f(task * kChunk, std::min((task + 1) * kChunk, n));
  });
}

template <class T>
inline void update_adam(const detail::AdamUpdate<T>& u, const Executor& executor, Workspace&) {
  using V = Vec<T>;
  for_update_chunks(executor, u.n, [&u](index_t begin, index_t end) {
    const V beta1 = V::all(u.beta1), beta2 = V::all(u.beta2), rest1 = V::all(u.rest1),
            rest2 = V::all(u.rest2), step = V::all(u.step_size), root = V::all(u.root_scale),
            eps = V::all(u.eps), kept = V::all(u.kept), l2 = V::all(u.l2),
            scale = V::all(u.gradient_scale);
    each_vector<T>(end - begin, [&](index_t at, auto lanes) {
      const index_t k = begin + at;
      V p = load(u.parameter + k, lanes) * kept;
      const V g = fma(l2, p, scale * load(u.gradient + k, lanes));
      const V m = fma(beta1, load(u.moment1 + k, lanes), rest1 * g);
      const V v = fma(beta2, load(u.moment2 + k, lanes), rest2 * g * g);
      p = p - step * m / fma(sqrt(v), root, eps);
      store(m, u.moment1 + k, lanes);
      store(v, u.moment2 + k, lanes);
      store(p, u.parameter + k, lanes);
    });
  });
}

template <class T>
inline void update_sgd(const detail::SgdUpdate<T>& u, const Executor& executor, Workspace&) {
  using V = Vec<T>;
  for_update_chunks(executor, u.n, [&u](index_t begin, index_t end) {
    const V rate = V::all(u.rate), mu = V::all(u.mu), l2 = V::all(u.l2),
            scale = V::all(u.gradient_scale);
    each_vector<T>(end - begin, [&](index_t at, auto lanes) {
      const index_t k = begin + at;
      const V p = load(u.parameter + k, lanes);
      V g = fma(l2, p, scale * load(u.gradient + k, lanes));
      if (u.momentum != nullptr) {
        const V buffer = u.first ? g : fma(mu, load(u.momentum + k, lanes), g);
        store(buffer, u.momentum + k, lanes);
        g = u.nesterov ? fma(mu, buffer, g) : buffer;
      }
      store(fnma(rate, g, p), u.parameter + k, lanes);
    });
  });
}

/// Adds squares in sixteen sums, which AVX-512 keeps in two vectors, so that the order of additions
/// does not depend on the instruction set. Squares of floats are exact in double, hence the same
/// bits on every set.
template <class T>
inline void sum_squares(const detail::SquareSums<T>& problem, const Executor& executor,
                        Workspace&) {
  for_update_chunks(executor, problem.n, [&problem](index_t begin, index_t end) {
    constexpr index_t kChains = 16;
    double sums[kChains] = {};
    index_t i = begin;
    for (; i + kChains <= end; i += kChains) {
      for (index_t c = 0; c < kChains; ++c) {
        const double x = static_cast<double>(problem.x[i + c]);
        sums[c] += x * x;
      }
    }
    for (index_t c = 0; i < end; ++i, ++c) {
      sums[c] += static_cast<double>(problem.x[i]) * static_cast<double>(problem.x[i]);
    }
    for (index_t half = kChains / 2; half > 0; half /= 2) {
      for (index_t c = 0; c < half; ++c) sums[c] += sums[c + half];
    }
    problem.sums[begin / detail::kUpdateChunk] = sums[0];
  });
}

template <class T>
inline void scale_elements(const detail::Scaling<T>& problem, const Executor& executor,
                           Workspace&) {
  for_update_chunks(executor, problem.n, [&problem](index_t begin, index_t end) {
    each_vector<T>(end - begin, [&](index_t at, auto lanes) {
      T* x = problem.x + begin + at;
      store(Vec<T>::all(problem.factor) * load(x, lanes), x, lanes);
    });
  });
}

template <class T>
struct TargetTable<detail::Backend<family::Optimizers, T, T>> {
  static constexpr detail::Backend<family::Optimizers, T, T> kTable{
      .adam = detail::kKernel<update_adam<T>>,
      .sgd = detail::kKernel<update_sgd<T>>,
      .square_sums = detail::kKernel<sum_squares<T>>,
      .scale = detail::kKernel<scale_elements<T>>};
};
