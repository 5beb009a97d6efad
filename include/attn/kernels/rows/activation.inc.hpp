// Kernel text: activations of rows, gated products, and swish.
// SPDX-License-Identifier: Apache-2.0

/// Calls use(f), where f maps a vector to its activation; does nothing for Activation::none.
template <class T, class Use>
inline void with_activation(Activation activation, Use use) {
  const auto all = [](double value) { return Vec<T>::all(static_cast<T>(value)); };
  switch (activation) {
    case Activation::none:
      return;
    case Activation::relu:
      // max returns its second operand if one is NaN: a NaN stays NaN, as in PyTorch.
      return use([&](Vec<T> v) { return max(all(0), v); });
    case Activation::relu_squared:
      return use([&](Vec<T> v) {
        const Vec<T> positive = max(all(0), v);
        return positive * positive;
      });
    case Activation::silu:
      return use([](Vec<T> v) { return times_sigmoid(v, v); });
    case Activation::quick_gelu:
      return use([&](Vec<T> v) { return times_sigmoid(v, all(1.702) * v); });
    case Activation::gelu_tanh:
      // (1 + tanh u) / 2 = 1 / (1 + e^-2u)
      return use([&](Vec<T> v) {
        return times_sigmoid(v, all(1.5957691216057307) * fma(all(0.044715) * v, v * v, v));
      });
    case Activation::gelu:
      return use([](Vec<T> v) { return times_normal_cdf(v); });
  }
}

/// Prefetch distance. It pays beyond L2 (attn_report gelu and silu).
inline constexpr index_t kPrefetchBytes = 4096;

/// Prefetches the line of p + kPrefetchBytes, which may lie past the end.
template <int kWrite, class T>
ATTN_INLINE void prefetch_ahead(const T* p) {
  const auto at = reinterpret_cast<std::uintptr_t>(p) + kPrefetchBytes;
  __builtin_prefetch(reinterpret_cast<const void*>(at), kWrite);
}

/// One row; out may be x. past_caches: use non-temporal stores, which neither read out first nor
/// evict other data; the caller calls streamed() afterwards.
template <class T>
inline void activate_row(Activation activation, index_t n, const T* x, T* out, bool past_caches) {
  constexpr index_t kLanes = Vec<T>::kLanes;
  with_activation<T>(activation, [=](auto f) {
    const auto part = [&](index_t k, index_t lanes) {
      store(f(load(x + k, lanes)), out + k, lanes);
    };
    index_t k = 0;
    if (past_caches) {
      // Elements before the first aligned vector.
      const auto past = static_cast<index_t>(reinterpret_cast<std::uintptr_t>(out) / sizeof(T));
      k = std::min((kLanes - past % kLanes) % kLanes, n);
      if (k > 0) part(0, k);
      for (; k + kLanes <= n; k += kLanes) {
        prefetch_ahead<0>(x + k);
        stream(f(Vec<T>::load(x + k)), out + k);
      }
    }
    for (; k + kLanes <= n; k += kLanes) {
      prefetch_ahead<0>(x + k);
      prefetch_ahead<1>(out + k);
      f(Vec<T>::load(x + k)).store(out + k);
    }
    if (k < n) part(k, n - k);
  });
}

/// The limit and offset of a GatedUnit. min and max return their second operand if one is NaN, so
/// that a NaN stays NaN.
template <class T>
struct ClampedUnit {
  explicit ClampedUnit(const GatedUnit& unit)
      : limit(Vec<T>::all(static_cast<T>(unit.limit))),
        offset(Vec<T>::all(static_cast<T>(unit.offset))) {}

  ATTN_INLINE Vec<T> above(Vec<T> v) const { return min(limit, v); }
  ATTN_INLINE Vec<T> both_sides(Vec<T> v) const {
    return max(Vec<T>::all(0) - limit, min(limit, v));
  }

  Vec<T> limit, offset;
};

template <class T>
inline void glu_rows(const detail::GluProblem<T>& problem, const Executor& executor, Workspace&) {
  using V = Vec<T>;
  const index_t n = problem.out.extent(1);
  const GatedUnit& unit = problem.unit;
  const bool plain = unit.limit == std::numeric_limits<double>::infinity() && unit.offset == 0;
  detail::for_rows(executor, problem.out.extent(0), n, [&](index_t row) {
    const T *a = &problem.a(row, 0), *b = &problem.b(row, 0);
    T* out = &problem.out(row, 0);
    const auto gate = [&](auto f) {
      if (plain) {
        each_vector<T>(n, [&](index_t k, auto lanes) {
          store(f(load(a + k, lanes)) * load(b + k, lanes), out + k, lanes);
        });
        return;
      }
      const ClampedUnit<T> clamped(unit);
      each_vector<T>(n, [&](index_t k, auto lanes) {
        const V up = clamped.both_sides(load(b + k, lanes)) + clamped.offset;
        store(f(clamped.above(load(a + k, lanes))) * up, out + k, lanes);
      });
    };
    if (unit.activation == Activation::none) return gate([](V v) { return v; });
    with_activation<T>(unit.activation, gate);
  });
}

template <class T>
inline void activate_elements(const detail::ActivationProblem<T>& problem, const Executor& executor,
                              Workspace&) {
  constexpr index_t kRow = 4096;
  // In place, out is already in the caches.
  const bool past_caches =
      problem.x != problem.out && 2 * problem.n * index_t{sizeof(T)} >= last_level_cache();
  const index_t rows = (problem.n + kRow - 1) / kRow;
  detail::for_row_ranges(executor, rows, kRow, [&](index_t begin, index_t end) {
    for (index_t row = begin; row < end; ++row) {
      const index_t first = row * kRow, n = std::min(kRow, problem.n - first);
      activate_row(problem.activation, n, problem.x + first, problem.out + first, past_caches);
    }
    if (past_caches) streamed();
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
    const V alpha = V::all(problem.alpha);
    each_vector<T>(left < kRow ? left : kRow, [&](index_t k, auto lanes) {
      const V x = load(a + k, lanes);
      V y = times_sigmoid(x, alpha * x);
      if (b != nullptr) y = y * load(b + k, lanes);
      store(y, out + k, lanes);
    });
  });
}

template <class T>
struct TargetTable<detail::Backend<family::Elementwise, T, T>> {
  static constexpr detail::Backend<family::Elementwise, T, T> kTable{
      .activate = detail::kKernel<activate_elements<T>>,
      .glu = detail::kKernel<glu_rows<T>>,
      .swiglu = detail::kKernel<swiglu_elements<T>>};
};
