// Kernel text: linear attention by blocks of state columns.
// SPDX-License-Identifier: Apache-2.0
//
// The columns of S are independent: column c depends on element c of v only and gives element c of
// out. So each block of columns passes through the whole sequence before the next one: 128 rows of
// 4 vectors are 16 KB with AVX2 and 32 KB with AVX-512, which fit L1 or nearly; the whole state of
// a head (64 KB for 128 x 128) does not.

/// A block is 4 vectors wide: 4 independent sums hide the latency of the FMAs.
template <class T>
struct StateColumns {
  static constexpr int kVectors = 4, kWidth = kVectors * Vec<T>::kLanes;
  using V = Vec<T>;

  index_t key_dim, width;  ///< the first `width` of kWidth columns exist; the others stay 0
  T* state;                ///< (key_dim, kWidth)

  static ATTN_INLINE V load_part(const T* p, index_t left) {
    return left >= V::kLanes ? V::load(p) : left > 0 ? V::load(p, left) : V::all(T{0});
  }
  static ATTN_INLINE void store_part(V v, T* p, index_t left) {
    if (left >= V::kLanes) {
      v.store(p);
    } else if (left > 0) {
      v.store(p, left);
    }
  }
  ATTN_INLINE void load_row(const T* from, V (&row)[kVectors]) const {
    ATTN_UNROLL
    for (int r = 0; r < kVectors; ++r) {
      row[r] = load_part(from + r * V::kLanes, width - r * V::kLanes);
    }
  }
  ATTN_INLINE void store_row(const V (&row)[kVectors], T* to) const {
    ATTN_UNROLL
    for (int r = 0; r < kVectors; ++r) {
      store_part(row[r], to + r * V::kLanes, width - r * V::kLanes);
    }
  }

  /// `from` points to the first of these columns, or is nullptr.
  void begin(const T* from, index_t stride) {
    for (index_t d = 0; d < key_dim; ++d) {
      V row[kVectors] = {V::all(T{0}), V::all(T{0}), V::all(T{0}), V::all(T{0})};
      if (from != nullptr) load_row(from + d * stride, row);
      ATTN_UNROLL
      for (int r = 0; r < kVectors; ++r) row[r].store(state + d * kWidth + r * V::kLanes);
    }
  }
  void end(T* to, index_t stride) const {
    for (index_t d = 0; d < key_dim; ++d) {
      V row[kVectors];
      ATTN_UNROLL
      for (int r = 0; r < kVectors; ++r) row[r] = V::load(state + d * kWidth + r * V::kLanes);
      store_row(row, to + d * stride);
    }
  }

  // Copy sums, pointers and lengths to locals: the compiler must assume that stores to the state
  // change what is read through a reference.

  /// result = S^T x. Scales row by row with `factors` first, unless nullptr.
  void scale_and_read(const T* factors, const T* x, V (&result)[kVectors]) const {
    V sums[kVectors];
    ATTN_UNROLL
    for (int r = 0; r < kVectors; ++r) sums[r] = V::all(T{0});
    T* row = state;
    for (index_t d = 0, n = key_dim; d < n; ++d, row += kWidth) {
      const V xd = V::all(x[d]);
      ATTN_UNROLL
      for (int r = 0; r < kVectors; ++r) {
        V s = V::load(row + r * V::kLanes);
        if (factors != nullptr) {
          s = s * V::all(factors[d]);
          s.store(row + r * V::kLanes);
        }
        sums[r] = fma(xd, s, sums[r]);
      }
    }
    ATTN_UNROLL
    for (int r = 0; r < kVectors; ++r) result[r] = sums[r];
  }

  /// S += x v^T
  void write(const T* x, const V (&v)[kVectors]) {
    V values[kVectors];
    ATTN_UNROLL
    for (int r = 0; r < kVectors; ++r) values[r] = v[r];
    T* row = state;
    for (index_t d = 0, n = key_dim; d < n; ++d, row += kWidth) {
      const V xd = V::all(x[d]);
      ATTN_UNROLL
      for (int r = 0; r < kVectors; ++r) {
        fma(xd, values[r], V::load(row + r * V::kLanes)).store(row + r * V::kLanes);
      }
    }
  }
};

/// e^decay of one token.
template <class T>
inline void decay_factors(index_t key_dim, const T* decay, index_t stride, T* factors) {
  if (stride == 0) {
    std::fill_n(factors, key_dim, std::exp(*decay));
    return;
  }
  for (index_t d = 0; d < key_dim; ++d) factors[d] = decay[d * stride];
  each_vector<T>(key_dim, [&](index_t d, auto lanes) {
    store(exp(load(factors + d, lanes)), factors + d, lanes);
  });
}

/// Runs one block of columns of a state, which begins at `first`, through the whole sequence.
/// scratch: key_dim (kWidth + 1) elements.
template <class T>
inline void attend_columns(const detail::LinearAttentionProblem<T>& problem, index_t b, index_t h,
                           index_t first, T* scratch) {
  using Columns = StateColumns<T>;
  using V = Vec<T>;
  constexpr int kVectors = Columns::kVectors;
  const index_t seq = problem.k.extent(2), key_dim = problem.k.extent(3);
  const index_t heads_per_kv_head = problem.q.extent(1) / problem.k.extent(1);
  const index_t left = problem.v.extent(3) - first;
  Columns columns{key_dim, left < Columns::kWidth ? left : Columns::kWidth, scratch};
  T* factors = scratch + key_dim * Columns::kWidth;
  const auto& initial = problem.initial_state;
  columns.begin(initial ? initial.at_index({b, h, 0, first}) : nullptr, initial.stride(2));
  for (index_t t = 0; t < seq; ++t) {
    const T* k = problem.k.at_index({b, h, t, 0});
    V v[kVectors], old[kVectors];
    columns.load_row(problem.v.at_index({b, h, t, first}), v);
    if (problem.decay) {
      decay_factors(key_dim, problem.decay.at_index({b, h, t, 0}), problem.decay.stride(3),
                    factors);
    }
    if (problem.decay || problem.beta) {
      columns.scale_and_read(problem.decay ? factors : nullptr, k, old);
    }
    if (problem.beta) {
      const V beta = V::all(problem.beta(b, h, t));
      ATTN_UNROLL
      for (int r = 0; r < kVectors; ++r) v[r] = beta * (v[r] - old[r]);
    }
    columns.write(k, v);
    for (index_t member = h * heads_per_kv_head; member < (h + 1) * heads_per_kv_head; ++member) {
      V out[kVectors];
      columns.scale_and_read(nullptr, problem.q.at_index({b, member, t, 0}), out);
      ATTN_UNROLL
      for (int r = 0; r < kVectors; ++r) out[r] = V::all(problem.scale) * out[r];
      columns.store_row(out, problem.out.at_index({b, member, t, first}));
    }
  }
  const auto& last = problem.final_state;
  if (last) columns.end(last.at_index({b, h, 0, first}), last.stride(2));
}

template <class T>
inline void linear_attention_states(const detail::LinearAttentionProblem<T>& problem,
                                    const Executor& executor, Workspace& workspace) {
  constexpr index_t kWidth = StateColumns<T>::kWidth;
  const index_t heads = problem.k.extent(1), key_dim = problem.k.extent(3);
  const index_t value_dim = problem.v.extent(3), blocks = (value_dim + kWidth - 1) / kWidth;
  const Executor& threads = detail::threads_for(executor, problem.q.size() * value_dim);
  const index_t elements = key_dim * (kWidth + 1);
  Scratch<T> memory(workspace, elements * detail::worker_count(threads));
  threads.run(problem.k.extent(0) * heads * blocks, [&](index_t task, int worker) {
    const index_t state = task / blocks;
    attend_columns(problem, state / heads, state % heads, task % blocks * kWidth,
                   memory.data() + worker * elements);
  });
}

template <class T>
struct TargetTable<detail::Backend<family::LinearAttention, T, T>> {
  static constexpr detail::Backend<family::LinearAttention, T, T> kTable{
      .attend = detail::kKernel<linear_attention_states<T>>};
};
