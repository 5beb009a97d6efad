// Kernel text: what happens to one row of scores between the two products: bias, masks, softmax.

template <class T>
inline constexpr T kMinusInf = -std::numeric_limits<T>::infinity();

/// Scores of keys first_key .. first_key + n - 1 against one query.
template <class T>
struct ScoreRow {
  T* s;
  index_t first_key, n;
};

template <class T>
inline void add_bias(ScoreRow<T> row, const T* bias, index_t stride) {
  using V = Vec<T>;
  for (index_t j = 0; j < row.n; j += V::kLanes) {
    const index_t left = std::min(row.n - j, index_t{V::kLanes});
    T lanes[V::kLanes];
    if (stride != 1) {
      for (index_t x = 0; x < left; ++x) lanes[x] = bias[(j + x) * stride];
    }
    const V b = V::load(stride == 1 ? bias + j : lanes, left);
    // A bias of -inf hides: selected, not added, since the score of a hidden key may be NaN.
    const V hidden = V::all(kMinusInf<T>), lowest = V::all(std::numeric_limits<T>::lowest());
    select(less(b, lowest), hidden, V::load(row.s + j, left) + b).store(row.s + j, left);
  }
}

/// s = -inf where a boolean part hides.
template <class T>
inline void hide(ScoreRow<T> row, const bool* shown, index_t stride, bool hidden) {
  for (index_t j = 0; j < row.n; ++j) {
    if (shown[j * stride] == hidden) row.s[j] = kMinusInf<T>;
  }
}

/// score -= slope |position - key|
template <class T>
inline void apply_alibi(ScoreRow<T> row, T slope, index_t position) {
  for (index_t j = 0; j < row.n; ++j) {
    const index_t distance = position - (row.first_key + j);
    row.s[j] -= slope * static_cast<T>(distance < 0 ? -distance : distance);
  }
}

/// Everything that options say of query i of head h in batch row b, over the keys of `row`: first what is
/// added, then what hides, so that a NaN in a bias for a hidden key goes the way of the key.
template <class T>
inline void apply_masks(const detail::AttentionProblem<T>& problem, ScoreRow<T> row, index_t b,
                        index_t h, index_t i) {
  using Dense = Mask::Dense;
  const AttentionOptions<T>& options = problem.options;
  if (options.alibi_slopes) apply_alibi(row, options.alibi_slopes(h), problem.position(b, i));
  for (const bool adds : {true, false}) {
    for (int part = 0; part < options.mask.num_dense; ++part) {
      const Dense& dense = options.mask.dense[static_cast<std::size_t>(part)];
      if ((dense.kind == Dense::Kind::add) != adds) continue;
      const auto& s = dense.strides;
      const index_t offset = b * s[0] + h * s[1] + i * s[2] + row.first_key * s[3];
      if (adds) {
        add_bias(row, static_cast<const T*>(dense.data) + offset, s[3]);
      } else {
        hide(row, static_cast<const bool*>(dense.data) + offset, s[3],
             dense.kind == Dense::Kind::drop);
      }
    }
  }
}

/// Online softmax state of one row: largest score so far and the sum of e^(s - most).
template <class T>
struct RowState {
  T most, total;
};

/// s = e^(s - most) over n scores, n a multiple of two vectors; returns by what earlier sums shrink.
template <class T>
inline T online_softmax(index_t n, T* s, RowState<T>& state) {
  using V = Vec<T>;
  constexpr index_t kPair = 2 * V::kLanes;
  V m0 = V::all(state.most), m1 = m0;
  for (index_t j = 0; j < n; j += kPair) {
    m0 = max(V::load(s + j), m0);
    m1 = max(V::load(s + j + V::kLanes), m1);
  }
  const T most = max_lane(max(m0, m1));
  // Nothing visible yet: shift by 0, so that -inf - -inf never occurs; all weights come out 0.
  const V shift = V::all(most == kMinusInf<T> ? T{0} : most);
  V sum0 = V::all(T{0}), sum1 = sum0;
  for (index_t j = 0; j < n; j += kPair) {
    V e[2] = {V::load(s + j) - shift, V::load(s + j + V::kLanes) - shift};
    exp_flush(e);
    e[0].store(s + j);
    e[1].store(s + j + V::kLanes);
    sum0 = sum0 + e[0];
    sum1 = sum1 + e[1];
  }
  // By vectors too: a call of std::exp costs as much as eight vectors of scores.
  const T shrink = max_lane(exp_flush(V::all(state.most) - shift));
  state.most = most;
  state.total = state.total * shrink + sum(sum0 + sum1);
  return shrink;
}

/// out = e^(s - most) / total over n scores of a row whose state is final.
template <class T>
inline void weigh(index_t n, const T* s, const RowState<T>& state, T* out) {
  using V = Vec<T>;
  const V most = V::all(state.most), factor = V::all(T{1} / state.total);
  for (index_t j = 0; j < n; j += V::kLanes) {
    (exp_flush(V::load(s + j, n - j) - most) * factor).store(out + j, n - j);
  }
}
