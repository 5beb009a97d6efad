// Kernel text: dropout of elements by index.
// SPDX-License-Identifier: Apache-2.0

/// Element e uses word e % 4 of counter (e / 4, place, step, layer); it is kept if and only if
/// (word >> 8) 2^-24 >= p.
template <class T>
inline void drop_elements(const detail::DropoutProblem<T>& problem, const Executor& executor,
                          Workspace&) {
  constexpr index_t kLanes = Philox::kCounters, kGroup = 4 * kLanes;
  const detail::DropoutPlace& place = problem.place;
  const DropoutFactors<T> factors(place.p);
  const auto low = [](index_t x) { return x & index_t{0xffffffff}; };
  detail::for_rows(executor, (problem.n + kGroup - 1) / kGroup, 4 * kGroup, [&](index_t group) {
    const Philox random(place.at.seed, group * kLanes, low(place.place), low(place.at.step),
                        low(place.at.layer));
    T of_word[4][kLanes], factor[kGroup];
    for (index_t w = 0; w < 4; ++w) factors.write(random.word[w], of_word[w]);
    for (index_t x = 0; x < kLanes; ++x) {
      for (index_t w = 0; w < 4; ++w) factor[4 * x + w] = of_word[w][x];
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
struct TargetTable<detail::Backend<family::Dropout, T, T>> {
  static constexpr detail::Backend<family::Dropout, T, T> kTable{
      .drop = detail::kKernel<drop_elements<T>>};
};
