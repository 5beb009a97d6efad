// Kernel text: normalisation of rows, in two passes, since a one-pass variance cancels digits.
// SPDX-License-Identifier: Apache-2.0

/// Calls normalize(row, past_caches) for every row. past_caches: write whole vectors, which are
/// aligned, with non-temporal stores, because the caches cannot hold even half of out.
template <class T, class F>
inline void each_norm_row(const detail::NormProblem<T>& problem, const Executor& executor,
                          F normalize) {
  const auto& [x, weight, bias, eps, out] = problem;
  constexpr index_t kBytes = sizeof(T), kVector = Vec<T>::kLanes * kBytes;
  const bool past_caches = out.data() != x.data() &&
                           2 * out.size() * kBytes >= last_level_cache() &&
                           reinterpret_cast<std::uintptr_t>(out.data()) % kVector == 0 &&
                           out.stride(0) * kBytes % kVector == 0;
  detail::for_row_ranges(executor, x.extent(0), x.extent(1), [&](index_t begin, index_t end) {
    for (index_t i = begin; i < end; ++i) normalize(i, past_caches);
    if (past_caches) streamed();
  });
}

/// Stores v, with a non-temporal store if past_caches and it is a whole vector.
template <class T>
ATTN_INLINE void store_or_stream(Vec<T> v, T* p, Whole, bool past_caches) {
  past_caches ? stream(v, p) : v.store(p);
}
template <class T>
ATTN_INLINE void store_or_stream(Vec<T> v, T* p, index_t n, bool) {
  v.store(p, n);
}

template <class T>
struct MeanAndVariance {
  T mean, variance;
};

/// Without `centers` the mean is 0.
template <class T>
inline MeanAndVariance<T> mean_and_variance(index_t n, const T* x, bool centers) {
  using V = Vec<T>;
  V total = V::all(T{0});
  if (centers) {
    each_vector<T>(n, [&](index_t k, auto lanes) { total = total + load(x + k, lanes); });
  }
  const T mean = sum(total) / static_cast<T>(n);
  V squares = V::all(T{0});
  index_t j = 0;
  for (; j + V::kLanes <= n; j += V::kLanes) {
    const V d = V::load(x + j) - V::all(mean);
    squares = fma(d, d, squares);
  }
  T square = sum(squares);
  for (; j < n; ++j) square += (x[j] - mean) * (x[j] - mean);
  return {mean, square / static_cast<T>(n)};
}

/// One row. A row that needs it is shrunk into `to` first.
template <class T>
inline void layer_norm_row(index_t n, const T* from, const T* weight, const T* bias, T eps, T* to,
                           bool past_caches) {
  using V = Vec<T>;
  const MeanAndVariance<T> given = mean_and_variance(n, from, true);
  T mean = given.mean, scale = T{1} / std::sqrt(given.variance + eps);
  if (detail::needs_shrinking(mean, scale)) {
    if (const T s = detail::shrink_row(n, from, to, true); s > T{0}) {
      from = to;
      const auto shrunk = mean_and_variance(n, from, true);
      mean = shrunk.mean;
      scale = detail::ShrunkScale<T>(shrunk.variance, eps, s).of_shrunk;
    }
  }
  each_vector<T>(n, [&](index_t k, auto lanes) {
    V y = (load(from + k, lanes) - V::all(mean)) * V::all(scale);
    if (weight != nullptr) y = y * load(weight + k, lanes);
    if (bias != nullptr) y = y + load(bias + k, lanes);
    store_or_stream(y, to + k, lanes, past_caches);
  });
}

template <class T>
inline void rms_norm_row(index_t n, const T* from, const T* weight, T eps, T* to,
                         bool past_caches) {
  using V = Vec<T>;
  V squares = V::all(T{0});
  each_vector<T>(n, [&](index_t k, auto lanes) {
    const V v = load(from + k, lanes);
    squares = fma(v, v, squares);
  });
  T scale = T{1} / std::sqrt(sum(squares) / static_cast<T>(n) + eps);
  if (detail::needs_shrinking(T{0}, scale)) {
    if (const T s = detail::shrink_row(n, from, to, false); s > T{0}) {
      from = to;
      const T variance = mean_and_variance(n, from, false).variance;
      scale = detail::ShrunkScale<T>(variance, eps, s).of_shrunk;
    }
  }
  each_vector<T>(n, [&](index_t k, auto lanes) {
    V y = load(from + k, lanes) * V::all(scale);
    if (weight != nullptr) y = y * load(weight + k, lanes);
    store_or_stream(y, to + k, lanes, past_caches);
  });
}

template <class T>
inline void layer_norm_rows(const detail::NormProblem<T>& p, const Executor& executor, Workspace&) {
  each_norm_row(p, executor, [&p](index_t i, bool past_caches) {
    layer_norm_row<T>(p.x.extent(1), p.x.data() + i * p.x.stride(0), p.weight, p.bias, p.eps,
                      p.out.data() + i * p.out.stride(0), past_caches);
  });
}

template <class T>
inline void rms_norm_rows(const detail::NormProblem<T>& p, const Executor& executor, Workspace&) {
  each_norm_row(p, executor, [&p](index_t i, bool past_caches) {
    rms_norm_row<T>(p.x.extent(1), p.x.data() + i * p.x.stride(0), p.weight, p.eps,
                    p.out.data() + i * p.out.stride(0), past_caches);
  });
}

template <class T>
struct TargetTable<detail::Backend<family::Norms, T, T>> {
  static constexpr detail::Backend<family::Norms, T, T> kTable{
      .layer_norm = detail::kKernel<layer_norm_rows<T>>,
      .rms_norm = detail::kKernel<rms_norm_rows<T>>};
};
