// Kernel text: rows of scores between attention's two products.
// SPDX-License-Identifier: Apache-2.0

template <class T>
inline void score_panel(index_t d, const T* queries, index_t queries_stride, const T* panel,
                        T scale, T* scores, index_t stride, const void* to_prefetch) {
  using Shape = RowTileShape<T>;
  // Scales the product instead of the queries: each score is rounded once more, instead of each
  // factor.
  tile<T, Shape::MR, Shape::NV, ALayout::rows, TileUpdate::scale, false>(
      d, queries, queries_stride, panel, Shape::NR, scores, stride, &scale, 0,
      {static_cast<const char*>(to_prefetch)});
}

template <class T>
inline void softcap(index_t n, T* s, T cap) {
  using V = Vec<T>;
  const V to = V::all(cap), by = V::all(T{1} / cap);
  each_vector<T>(
      n, [&](index_t j, auto lanes) { store(capped(load(s + j, lanes), to, by), s + j, lanes); });
}

template <class T>
inline void add_bias(index_t n, T* s, const T* bias, index_t stride) {
  using V = Vec<T>;
  const V masked = V::all(detail::kMinusInf<T>), lowest = V::all(std::numeric_limits<T>::lowest());
  if (stride != 0 && stride != 1) {
    for (index_t j = 0; j < n; ++j) {
      const T b = bias[j * stride];
      if (b < std::numeric_limits<T>::lowest()) s[j] = b;
      if (s[j] >= std::numeric_limits<T>::lowest()) s[j] += b;
    }
    return;
  }
  each_vector<T>(n, [&](index_t j, auto lanes) {
    const V b = stride == 0 ? V::all(bias[0]) : load(bias + j, lanes);
    // Selected, not added: the score of a masked key may be NaN, and so may another bias.
    const V x = select(less(b, lowest), masked, load(s + j, lanes));
    store(select(less(x, lowest), x, x + b), s + j, lanes);
  });
}

template <class T>
inline void mask_out(index_t n, T* s, const bool* mask, index_t stride, bool masked) {
  using V = Vec<T>;
  const V minus_inf = V::all(detail::kMinusInf<T>);
  index_t j = 0;
  if (stride == 1) {
    for (; j + V::kLanes <= n; j += V::kLanes) {
      const auto set = are_set<T>(mask + j);
      const V x = V::load(s + j);
      (masked ? select(set, minus_inf, x) : select(set, x, minus_inf)).store(s + j);
    }
  }
  for (; j < n; ++j) {
    if (mask[j * stride] == masked) s[j] = detail::kMinusInf<T>;
  }
}

template <class T>
inline void add_alibi(index_t n, T* s, T slope, index_t distance) {
  using V = Vec<T>;
  T steps[V::kLanes];
  for (int x = 0; x < V::kLanes; ++x) steps[x] = static_cast<T>(x);
  const V zero = V::all(T{0}), by = V::all(slope), apart = V::all(T{V::kLanes});
  const auto add = [&](T * at, V away, auto lanes) __attribute__((always_inline)) {
    store(fnma(by, max(away, zero - away), load(at, lanes)), at, lanes);
  };
  // Counts distances down instead of converting integers: exact up to 2^24 keys in float. Two
  // counters, because each subtraction depends on the previous one.
  V even = V::all(static_cast<T>(distance)) - V::load(steps), odd = even - apart;
  index_t j = 0;
  for (; j + 2 * V::kLanes <= n; j += 2 * V::kLanes) {
    add(s + j, even, Whole{});
    add(s + j + V::kLanes, odd, Whole{});
    even = even - (apart + apart);
    odd = odd - (apart + apart);
  }
  each_vector<T>(n - j, [&](index_t at, auto lanes) {
    add(s + j + at, even, lanes);
    even = odd;
  });
}

/// A vector of 0, then a vector of -inf. A static member, because g++ exports variable templates
/// even with -fvisibility=hidden.
template <class T>
struct KeptThenMasked {
  static constexpr auto kLanes = [] {
    std::array<T, 2 * Vec<T>::kLanes> x{};
    for (std::size_t i = Vec<T>::kLanes; i < x.size(); ++i) x[i] = detail::kMinusInf<T>;
    return x;
  }();
};

/// Sets s[n] and the following scores to -inf, up to a whole vector.
template <class T>
ATTN_INLINE void mask_out_beyond(index_t n, T* s) {
  constexpr index_t kLanes = Vec<T>::kLanes;
  const index_t kept = n % kLanes;
  if (kept == 0) return;
  T* last = s + n - kept;
  const T* added = KeptThenMasked<T>::kLanes.data() + kLanes - kept;
  (Vec<T>::load(last, kept) + Vec<T>::load(added)).store(last);
}

template <class T>
inline void online_softmax(index_t height, index_t n, T* s, index_t stride,
                           detail::QueryRow<T>* rows, T* rescale) {
  using V = Vec<T>;
  constexpr index_t kPair = 2 * V::kLanes;
  static_assert(RowTileShape<T>::NR == kPair);
  const index_t whole = detail::round_up(n, V::kLanes);
  for (index_t r = 0; r < height; ++r, s += stride) {
    mask_out_beyond(n, s);
    detail::RowState<T>& state = rows[r].state;
    V m0 = V::all(state.row_max), m1 = m0;
    index_t first = 0;
    for (; first + kPair <= whole; first += kPair) {
      m0 = max(V::load(s + first), m0);
      m1 = max(V::load(s + first + V::kLanes), m1);
    }
    if (first < whole) m0 = max(V::load(s + first), m0);
    const T row_max = max_lane(max(m0, m1));
    // No key is visible yet: shift by 0, so that -inf - -inf never occurs; all weights become 0.
    const V shift = V::all(row_max == detail::kMinusInf<T> ? T{0} : row_max);
    // One vector at a time: two side by side would need more than the 16 registers of AVX2, and
    // out-of-order cores overlap them anyway.
    V total = V::all(T{0});
    for (index_t j = 0; j < whole; j += V::kLanes) {
      const V e = exp_flush(V::load(s + j) - shift);
      e.store(s + j);
      total = total + e;
    }
    // exp_flush of one value: a call of std::exp costs as much as eight vectors of scores. The
    // first block of a row has nothing to rescale.
    rescale[r] = state.row_sum == T{0} ? T{0} : max_lane(exp_flush(V::all(state.row_max) - shift));
    state = {row_max, state.row_sum * rescale[r] + sum(total)};
  }
}

template <class T>
inline void final_weights(index_t n, const T* s, const detail::RowState<T>& state, T* out) {
  using V = Vec<T>;
  const V row_max = V::all(state.row_max), factor = V::all(T{1} / state.row_sum);
  each_vector<T>(n, [&](index_t j, auto lanes) {
    store(exp_flush(load(s + j, lanes) - row_max) * factor, out + j, lanes);
  });
}

template <class T>
inline bool scale_rows(index_t height, index_t n, const detail::QueryRow<T>* rows, const T* x,
                       index_t x_stride, T* out, index_t out_stride) {
  using V = Vec<T>;
  V not_finite = V::all(T{0});  // y - y is 0, or NaN where y is not finite
  for (index_t r = 0; r < height; ++r, x += x_stride, out += out_stride) {
    const V factor = V::all(rows[r].output_scale);
    each_vector<T>(n, [&](index_t j, auto lanes) {
      const V y = load(x + j, lanes) * factor;
      store(y, out + j, lanes);
      not_finite = not_finite + (y - y);
    });
  }
  return sum(not_finite) == T{0};
}

static_assert(RowTileShape<float>::MR <= detail::kMaxTileRows);
static_assert(detail::kDecodeRowsAtOnce % kRowsAtOnce == 0);
static_assert((RowTileShape<float>::NR & (RowTileShape<float>::NR - 1)) == 0);

template <class T>
struct TargetTable<detail::RowKernels<T>> {
  static constexpr detail::RowKernels<T> kTable{
      .tile_rows = RowTileShape<T>::MR,
      .panel_width = RowTileShape<T>::NR,
      .pack_part = pack_part<T, RowTileShape<T>::NR>,
      .score_panel = score_panel<T>,
      .softcap = softcap<T>,
      .add_bias = add_bias<T>,
      .mask_out = mask_out<T>,
      .add_alibi = add_alibi<T>,
      .online_softmax = online_softmax<T>,
      .final_weights = final_weights<T>,
      .apply_dropout = apply_dropout<T>,
      .add_values_tile = tile_columns<T>,
      .scale_rows = scale_rows<T>,
  };
};
