// Kernel text: backward of linear attention by blocks of state columns.
// SPDX-License-Identifier: Apache-2.0
//
// The columns of S, and those of its gradient, are independent of each other; d_q, d_k and the
// gradients of the gates are sums over columns. A task owns all columns of one state and adds block
// by block, so that the order of the sums depends on the shape alone.
//
// A block keeps the states before each chunk of about sqrt(seq) tokens, and those of one chunk,
// after the decay: nothing is divided by a decay, which may be 0.

/// One block of columns of state h of batch row b.
template <class T>
struct LinearAttentionGradients {
  using Columns = StateColumns<T>;
  using V = Vec<T>;
  static constexpr int kVectors = Columns::kVectors;

  const detail::LinearAttentionBackwardProblem<T>& problem;
  index_t b, h, first;
  index_t width;    ///< of the kWidth columns, those that exist
  T* factors;       ///< (key_dim): e^decay of one token
  T* gradient;      ///< (key_dim, kWidth): of the state
  T* states;        ///< (chunks, key_dim, kWidth): before each chunk
  T* chunk_states;  ///< (chunk, key_dim + 1, kWidth): after the decay; then the row S'^T k

  index_t key_dim() const { return problem.forward.k.extent(3); }
  Columns columns(T* state) const { return {key_dim(), width, state}; }

  void load_factors(index_t t) const {
    const auto& decay = problem.forward.decay;
    decay_factors(key_dim(), decay.at_index({b, h, t, 0}), decay.stride(3), factors);
  }
  /// The vectors that token t writes, from those that it reads.
  ATTN_INLINE void written(index_t t, const V (&read)[kVectors], V (&u)[kVectors]) const {
    const auto& forward = problem.forward;
    columns(nullptr).load_row(forward.v.at_index({b, h, t, first}), u);
    if (!forward.beta) return;
    const V beta = V::all(forward.beta(b, h, t));
    ATTN_UNROLL
    for (int r = 0; r < kVectors; ++r) u[r] = beta * (u[r] - read[r]);
  }
  static ATTN_INLINE V total(const V (&x)[kVectors]) { return (x[0] + x[1]) + (x[2] + x[3]); }

  /// Computes token t by the steps of forward. Keeps its state after the decay and what it reads in
  /// `kept`, unless nullptr.
  void advance(index_t t, T* state, T* kept) const {
    const auto& forward = problem.forward;
    const T* k = forward.k.at_index({b, h, t, 0});
    Columns s = columns(state);
    V read[kVectors] = {V::all(T{0}), V::all(T{0}), V::all(T{0}), V::all(T{0})}, u[kVectors];
    if (forward.decay) load_factors(t);
    if (forward.decay || forward.beta) {
      s.scale_and_read(forward.decay ? factors : nullptr, k, read);
    }
    if (kept != nullptr) {
      const index_t elements = key_dim() * Columns::kWidth;
      std::copy_n(state, elements, kept);
      ATTN_UNROLL
      for (int r = 0; r < kVectors; ++r) read[r].store(kept + elements + r * V::kLanes);
    }
    written(t, read, u);
    s.write(k, u);
  }

  /// d_q of one head at token t; adds scale q d_out^T to the gradient of the state.
  void add_output(index_t t, index_t member, const T* kept, const V (&u)[kVectors]) const {
    const auto& forward = problem.forward;
    const T* q = forward.q.at_index({b, member, t, 0});
    const T* k = forward.k.at_index({b, h, t, 0});
    T* d_q = problem.d_q.at_index({b, member, t, 0});
    V d_out[kVectors], product[kVectors];
    columns(nullptr).load_row(problem.d_out.at_index({b, member, t, first}), d_out);
    ATTN_UNROLL
    for (int r = 0; r < kVectors; ++r) {
      d_out[r] = V::all(forward.scale) * d_out[r];
      product[r] = u[r] * d_out[r];
    }
    const T of_written = sum(total(product));
    const T* s = kept;
    T* g = gradient;
    for (index_t d = 0, n = key_dim(); d < n; ++d, s += Columns::kWidth, g += Columns::kWidth) {
      const V qd = V::all(q[d]);
      V part[kVectors];
      ATTN_UNROLL
      for (int r = 0; r < kVectors; ++r) {
        fma(qd, d_out[r], V::load(g + r * V::kLanes)).store(g + r * V::kLanes);
        part[r] = V::load(s + r * V::kLanes) * d_out[r];
      }
      d_q[d] += sum(total(part)) + k[d] * of_written;
    }
  }

  /// The gradients of token t; turns the gradient of the state after it to that before it.
  void retreat(index_t t, const T* kept) const {
    const auto& forward = problem.forward;
    const index_t n = key_dim(), heads_per_kv_head = forward.q.extent(1) / forward.k.extent(1);
    const T* k = forward.k.at_index({b, h, t, 0});
    V read[kVectors], u[kVectors], d_v[kVectors], d_read[kVectors];
    ATTN_UNROLL
    for (int r = 0; r < kVectors; ++r) {
      read[r] = V::load(kept + n * Columns::kWidth + r * V::kLanes);
      d_read[r] = V::all(T{0});
    }
    written(t, read, u);
    for (index_t member = h * heads_per_kv_head; member < (h + 1) * heads_per_kv_head; ++member) {
      add_output(t, member, kept, u);
    }
    columns(gradient).scale_and_read(nullptr, k, d_v);  // d_u
    if (forward.beta) {
      const V beta = V::all(forward.beta(b, h, t));
      V v[kVectors];
      columns(nullptr).load_row(forward.v.at_index({b, h, t, first}), v);
      ATTN_UNROLL
      for (int r = 0; r < kVectors; ++r) {
        v[r] = d_v[r] * (v[r] - read[r]);
        d_v[r] = beta * d_v[r];
        d_read[r] = V::all(T{0}) - d_v[r];
      }
      if (problem.d_beta) problem.d_beta(b, h, t) += sum(total(v));
    }
    columns(nullptr).store_row(d_v, problem.d_v.at_index({b, h, t, first}));
    if (forward.decay) load_factors(t);
    const T* scales = forward.decay ? factors : nullptr;
    T* d_decay = problem.d_decay ? problem.d_decay.at_index({b, h, t, 0}) : nullptr;
    const index_t step = problem.d_decay.extent(3) > 1 ? 1 : 0;
    T* d_k = problem.d_k.at_index({b, h, t, 0});
    const T* s = kept;
    T* g = gradient;
    for (index_t d = 0; d < n; ++d, s += Columns::kWidth, g += Columns::kWidth) {
      const V kd = V::all(k[d]), scale = V::all(scales != nullptr ? scales[d] : T{1});
      V of_k[kVectors], of_decay[kVectors];
      ATTN_UNROLL
      for (int r = 0; r < kVectors; ++r) {
        const V stored = V::load(s + r * V::kLanes), before = V::load(g + r * V::kLanes);
        of_k[r] = fma(before, u[r], stored * d_read[r]);
        const V after = fma(kd, d_read[r], before);
        of_decay[r] = after * stored;
        (scale * after).store(g + r * V::kLanes);
      }
      d_k[d] += sum(total(of_k));
      if (d_decay != nullptr) d_decay[d * step] += sum(total(of_decay));
    }
  }

  void run(index_t chunk) const {
    const auto& forward = problem.forward;
    const index_t seq = forward.k.extent(2), elements = key_dim() * Columns::kWidth;
    const auto& initial = forward.initial_state;
    const auto& last = problem.d_final_state;
    const auto& d_initial = problem.d_initial_state;
    columns(states).begin(initial ? initial.at_index({b, h, 0, first}) : nullptr,
                          initial.stride(2));
    columns(gradient).begin(last ? last.at_index({b, h, 0, first}) : nullptr, last.stride(2));
    index_t begin = 0;
    for (T* state = states; begin + chunk < seq; begin += chunk, state += elements) {
      std::copy_n(state, elements, state + elements);
      for (index_t t = begin; t < begin + chunk; ++t) advance(t, state + elements, nullptr);
    }
    for (index_t end = seq; end > 0; end = begin, begin -= chunk) {
      T* state = states + begin / chunk * elements;
      const auto kept = [&](index_t t) {
        return chunk_states + (t - begin) * (elements + Columns::kWidth);
      };
      for (index_t t = begin; t < end; ++t) advance(t, state, kept(t));
      for (index_t t = end; t-- > begin;) retreat(t, kept(t));
    }
    if (!d_initial) return;
    for (index_t d = 0; d < key_dim(); ++d) {
      T* to = d_initial.at_index({b, h, d, first});
      for (index_t c = 0; c < width; ++c) to[c] += gradient[d * Columns::kWidth + c];
    }
  }
};

template <class T>
inline void linear_attention_gradients(const detail::LinearAttentionBackwardProblem<T>& problem,
                                       const Executor& executor, Workspace& workspace) {
  constexpr index_t kWidth = StateColumns<T>::kWidth;
  const auto& k = problem.forward.k;
  const index_t heads = k.extent(1), seq = k.extent(2), key_dim = k.extent(3);
  const index_t value_dim = problem.forward.v.extent(3);
  const index_t members = problem.forward.q.extent(1) / heads;
  index_t chunk = 1;
  while (chunk * chunk < seq) ++chunk;
  const index_t chunks = std::max(index_t{1}, (seq + chunk - 1) / chunk);
  const index_t block = key_dim * kWidth;
  const index_t elements = key_dim + block * (chunks + 1) + chunk * (block + kWidth);
  const Executor& threads = detail::threads_for(executor, 4 * problem.d_q.size() * value_dim);
  Scratch<T> memory(workspace, elements * detail::worker_count(threads));
  threads.run(k.extent(0) * heads, [&](index_t task, int worker) {
    const index_t b = task / heads, h = task % heads;
    for (index_t t = 0; t < seq; ++t) {
      std::fill_n(problem.d_k.at_index({b, h, t, 0}), key_dim, T{0});
      for (index_t m = h * members; m < (h + 1) * members; ++m) {
        std::fill_n(problem.d_q.at_index({b, m, t, 0}), key_dim, T{0});
      }
    }
    T* gradient = memory.data() + worker * elements;
    T* chunk_states = gradient + block;
    T* states = chunk_states + chunk * (block + kWidth);
    T* factors = states + chunks * block;
    for (index_t first = 0; first < value_dim; first += kWidth) {
      const index_t left = value_dim - first;
      const LinearAttentionGradients<T> columns{.problem = problem,
                                                .b = b,
                                                .h = h,
                                                .first = first,
                                                .width = left < kWidth ? left : kWidth,
                                                .factors = factors,
                                                .gradient = gradient,
                                                .states = states,
                                                .chunk_states = chunk_states};
      columns.run(chunk);
    }
  });
}

template <class T>
struct TargetTable<detail::Backend<family::LinearAttentionBackward, T, T>> {
  static constexpr detail::Backend<family::LinearAttentionBackward, T, T> kTable{
      .attend = detail::kKernel<linear_attention_gradients<T>>};
};
