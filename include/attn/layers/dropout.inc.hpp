// Kernel text: dropout of elements by their number.
// SPDX-License-Identifier: Apache-2.0

/// Element e takes word (e / 16) % 4 of counter (16 (e / 64) + e % 16, place, step, layer), as key
/// j of attention does; it stays iff (word >> 8) 2^-24 >= p.
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
    for (index_t part = 0; part < 4; ++part) {
      const index_t first = group * kGroup + part * kLanes;
      if (first >= problem.n) break;
      T factor[kLanes];
      factors.write(random.word[part], factor);
      each_vector<T>(std::min(kLanes, problem.n - first), [&](index_t k, auto lanes) {
        Vec<T> y = load(problem.x + first + k, lanes) * load(factor + k, lanes);
        if (problem.residual != nullptr) y = y + load(problem.residual + first + k, lanes);
        store(y, problem.out + first + k, lanes);
      });
    }
  });
}

template <class T>
struct Row<detail::Backend<family::Dropout, T, T>> {
  static constexpr detail::Backend<family::Dropout, T, T> kTable{
      .drop = detail::kKernel<drop_elements<T>>};
};
