// Kernel text: a user functor over a row of scores.
// SPDX-License-Identifier: Apache-2.0

/// row[x] = f(row[x], x). g++ -O2 vectorises only loops of a fixed length whose stores cannot alias
/// what the functor refers to: hence chunks, written to a local array first.
template <class T, class F>
inline void apply_in_chunks(index_t n, T* row, F f) {
  constexpr int kChunk = 16;
  T out[kChunk];
  index_t j = 0;
  for (; j + kChunk <= n; j += kChunk) {
    for (int x = 0; x < kChunk; ++x) out[x] = f(row[j + x], static_cast<int>(j) + x);
    for (int x = 0; x < kChunk; ++x) row[j + x] = out[x];
  }
  for (; j < n; ++j) row[j] = f(row[j], static_cast<int>(j));
}

template <class T, class F>
inline void apply_score_mod(const void* object, index_t n, T* row, index_t b, index_t h, index_t i,
                            index_t first_key) {
  const F& f = *static_cast<const F*>(object);
  const int batch = static_cast<int>(b), head = static_cast<int>(h), query = static_cast<int>(i),
            first = static_cast<int>(first_key);
  apply_in_chunks(n, row, [&](T score, int x) {
    return static_cast<T>(f(score, batch, head, query, first + x));
  });
}

template <class T, class F>
inline void apply_mask_mod(const void* object, index_t n, T* row, index_t b, index_t h, index_t i,
                           index_t first_key) {
  const F& f = *static_cast<const F*>(object);
  const int batch = static_cast<int>(b), head = static_cast<int>(h), query = static_cast<int>(i),
            first = static_cast<int>(first_key);
  apply_in_chunks(n, row, [&](T score, int x) {
    return f(batch, head, query, first + x) ? score : -std::numeric_limits<T>::infinity();
  });
}

template <class T, class F>
inline void apply_prob_mod(const void* object, index_t n, T* row, index_t b, index_t h, index_t i,
                           index_t first_key) {
  const F& f = *static_cast<const F*>(object);
  const int batch = static_cast<int>(b), head = static_cast<int>(h), query = static_cast<int>(i),
            first = static_cast<int>(first_key);
  apply_in_chunks(n, row, [&](T weight, int x) {
    const T changed = static_cast<T>(f(weight, batch, head, query, first + x));
    return weight == T{0} ? T{0} : changed;
  });
}

template <class T, class F>
struct TargetTable<detail::FunctorLoop<T, detail::ScoreMod<F>>> {
  static constexpr detail::FunctorLoop<T, detail::ScoreMod<F>> kTable{apply_score_mod<T, F>};
};
template <class T, class F>
struct TargetTable<detail::FunctorLoop<T, detail::ProbMod<F>>> {
  static constexpr detail::FunctorLoop<T, detail::ProbMod<F>> kTable{apply_prob_mod<T, F>};
};
template <class T, class F>
struct TargetTable<detail::FunctorLoop<T, detail::MaskMod<F>>> {
  static constexpr detail::FunctorLoop<T, detail::MaskMod<F>> kTable{apply_mask_mod<T, F>};
};
