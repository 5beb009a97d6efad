// Kernel text: rotary embedding of rows.
// SPDX-License-Identifier: Apache-2.0

/// Rotates (u, v), also in place. `way` is 1, or -1 for the inverse.
template <class T>
ATTN_INLINE void turn(Vec<T>& u, Vec<T>& v, Vec<T> cos, Vec<T> sin, T way) {
  sin = sin * Vec<T>::all(way);
  const Vec<T> turned = fnma(v, sin, u * cos);
  v = fma(u, sin, v * cos);
  u = turned;
}

template <class T>
inline void rotate_halves(index_t pairs, const T* x, const T* cos, const T* sin, T way, T* out) {
  each_vector<T>(pairs, [&](index_t j, auto lanes) {
    Vec<T> u = load(x + j, lanes), v = load(x + pairs + j, lanes);
    turn(u, v, load(cos + j, lanes), load(sin + j, lanes), way);
    store(u, out + j, lanes);
    store(v, out + pairs + j, lanes);
  });
}

/// Vec has no shuffle: loops of a fixed length separate the pairs, and compilers turn them into
/// shuffles.
template <class T>
inline void rotate_interleaved(index_t pairs, const T* x, const T* cos, const T* sin, T way,
                               T* out) {
  constexpr int kLanes = Vec<T>::kLanes;
  T even[kLanes] = {}, odd[kLanes] = {};
  each_vector<T>(pairs, [&](index_t j, auto lanes) {
    int n = kLanes;
    if constexpr (std::is_same_v<decltype(lanes), index_t>) n = static_cast<int>(lanes);
    for (int i = 0; i < n; ++i) {
      even[i] = x[2 * (j + i)];
      odd[i] = x[2 * (j + i) + 1];
    }
    Vec<T> u = Vec<T>::load(even), v = Vec<T>::load(odd);
    turn(u, v, load(cos + j, lanes), load(sin + j, lanes), way);
    u.store(even);
    v.store(odd);
    for (int i = 0; i < n; ++i) {
      out[2 * (j + i)] = even[i];
      out[2 * (j + i) + 1] = odd[i];
    }
  });
}

template <class T>
inline void rotary_rows(const detail::RotaryProblem<T>& problem, const Executor& executor,
                        Workspace&) {
  const index_t heads = problem.x.extent(1), seq = problem.x.extent(2), dim = problem.x.extent(3);
  detail::for_rows(executor, problem.x.extent(0) * heads * seq, dim, [&](index_t row) {
    const index_t b = row / (heads * seq), h = row / seq % heads, i = row % seq;
    const index_t pairs = problem.cos.extent(1), position = problem.positions(b, i);
    const T* x = problem.x.at_index({b, h, i, 0});
    const T* cos = problem.cos.at_index({position, 0});
    const T* sin = problem.sin.at_index({position, 0});
    T* out = problem.out.at_index({b, h, i, 0});
    const T way = problem.turns_back ? T{-1} : T{1};
    if (problem.pairs == RotaryPairs::halves) {
      rotate_halves(pairs, x, cos, sin, way, out);
    } else {
      rotate_interleaved(pairs, x, cos, sin, way, out);
    }
    if (out != x) std::copy(x + 2 * pairs, x + dim, out + 2 * pairs);
  });
}

template <class T>
struct TargetTable<detail::Backend<family::Rotary, T, T>> {
  static constexpr detail::Backend<family::Rotary, T, T> kTable{
      .rotary = detail::kKernel<rotary_rows<T>>};
};
