// Kernel text: cross-entropy of rows of logits, with its gradient.
// SPDX-License-Identifier: Apache-2.0

template <class T>
inline void cross_entropy_rows(const detail::CrossEntropyProblem<T>& problem,
                               const Executor& executor, Workspace&) {
  using V = Vec<T>;
  const index_t n = problem.logits.extent(1);
  const T *weights = problem.weights, smoothing = problem.smoothing;
  const T spread = smoothing / static_cast<T>(n), sure = T{1} - smoothing;
  detail::for_rows(executor, problem.logits.extent(0), n, [&](index_t row) {
    const index_t target = problem.targets[row];
    const T* x = problem.logits.data() + row * problem.logits.stride(0);
    T* d = problem.d_logits ? problem.d_logits.data() + row * problem.d_logits.stride(0) : nullptr;
    if (target < 0) {
      problem.losses[row] = T{0};
      if (d != nullptr) std::fill_n(d, n, T{0});
      return;
    }
    const V lowest = V::all(-std::numeric_limits<T>::infinity());
    V largest_lanes = lowest;
    index_t j = 0;
    for (; j + V::kLanes <= n; j += V::kLanes) largest_lanes = max(V::load(x + j), largest_lanes);
    T largest = max_lane(largest_lanes);
    for (; j < n; ++j) largest = x[j] > largest ? x[j] : largest;
    V total = V::all(T{0});
    T rest = 0;
    for (j = 0; j + V::kLanes <= n; j += V::kLanes) {
      total = total + exp(V::load(x + j) - V::all(largest));
    }
    for (; j < n; ++j) rest += std::exp(x[j] - largest);
    const T log_sum = std::log(sum(total) + rest);
    // -log p(c) = log_sum - (x[c] - largest)
    const T of_target = weights == nullptr ? T{1} : weights[target];
    const T loss = sure * of_target * (log_sum - (x[target] - largest));
    T smooth = 0;
    if (smoothing > T{0}) {
      V all = V::all(T{0});
      each_vector<T>(n, [&](index_t k, auto lanes) {
        // Lanes past the end are discarded below.
        V part = V::all(log_sum) - (load(x + k, lanes) - V::all(largest));
        if (weights != nullptr) part = part * load(weights + k, lanes);
        if constexpr (std::is_same_v<decltype(lanes), Whole>) {
          all = all + part;
        } else {
          T kept[V::kLanes] = {};
          store(part, kept, lanes);
          all = all + V::load(kept);
        }
      });
      smooth = spread * sum(all);
    }
    problem.losses[row] = loss + smooth;
    if (d == nullptr) return;
    // d_x(c) = scale ((sure w(t) + spread W) p(c) - sure w(t) [c = t] - spread w(c))
    const T of_p = problem.scale * (sure * of_target + spread * problem.total_weight);
    const V shift = V::all(largest + log_sum), off = V::all(problem.scale * spread);
    each_vector<T>(n, [&](index_t k, auto lanes) {
      V g = exp(load(x + k, lanes) - shift) * V::all(of_p);
      if (smoothing > T{0}) {
        g = weights == nullptr ? g - off : fnma(off, load(weights + k, lanes), g);
      }
      store(g, d + k, lanes);
    });
    d[target] -= problem.scale * sure * of_target;
  });
}

template <class T>
struct TargetTable<detail::Backend<family::Losses, T, T>> {
  static constexpr detail::Backend<family::Losses, T, T> kTable{
      .cross_entropy = detail::kKernel<cross_entropy_rows<T>>};
};
