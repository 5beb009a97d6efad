// Kernel text: dropout of elements by their number.
// SPDX-License-Identifier: Apache-2.0

/// Element e takes word e % 4 of counter (e / 4, place, step, layer); it stays iff (word >> 8)
/// 2^-24 >= p.
template <class T>
inline void drop_elements(const detail::DropoutProblem<T>& problem, const Executor& executor,
                          Workspace&) {
  constexpr index_t kGroup = 4 * Philox::kCounters;
  const detail::DropoutPlace& place = problem.place;
  const T kept = T(1 / (1 - place.p));
  const auto least = static_cast<std::int32_t>(std::ceil(place.p * 16777216));
  const auto low = [](index_t x) { return x & index_t{0xffffffff}; };
  detail::for_rows(executor, (problem.n + kGroup - 1) / kGroup, 4 * kGroup, [&](index_t group) {
    const Philox random(place.at.seed, group * Philox::kCounters, low(place.place),
                        low(place.at.step), low(place.at.layer));
    T factor[kGroup];
    for (index_t x = 0; x < Philox::kCounters; ++x) {
      for (index_t w = 0; w < 4; ++w) {
        factor[4 * x + w] =
            static_cast<std::int32_t>(random.word[w][x] >> 8) >= least ? kept : T{0};
      }
    }
    const index_t first = group * kGroup;
    each_vector<T>(std::min(kGroup, problem.n - first), [&](index_t k, auto lanes) {
      Vec<T> y = load(problem.x + first + k, lanes) * load(factor + k, lanes);
      if (problem.residual != nullptr) y = y + load(problem.residual + first + k, lanes);
      store(y, problem.out + first + k, lanes);
    });
  });
}

template <class T>
struct Row<detail::Backend<family::Dropout, T, T>> {
  static constexpr detail::Backend<family::Dropout, T, T> kTable{
      .drop = detail::kKernel<drop_elements<T>>};
};
