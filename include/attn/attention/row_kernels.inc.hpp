// Kernel text: rows of scores between the two products of attention, and the table of all that attention uses.
// SPDX-License-Identifier: Apache-2.0

template <class T>
inline void score_panel(index_t d, const T* queries, index_t queries_stride, const T* panel,
                        T scale, T* scores, index_t stride, const void* ahead) {
  using Shape = RowTileShape<T>;
  // The scale goes onto the product and not into the queries: one rounding of each score, not of each factor.
  tile<T, Shape::MR, Shape::NV, ALayout::rows, Start::product, false>(
      d, queries, queries_stride, panel, Shape::NR, scores, stride, &scale, 0,
      {static_cast<const char*>(ahead)});
}

template <class T>
inline void softcap(index_t n, T* s, T cap) {
  using V = Vec<T>;
  const V to = V::all(cap), by = V::all(T{1} / cap);
  each_vector<T>(
      n, [&](index_t j, auto lanes) { store(to * tanh(load(s + j, lanes) * by), s + j, lanes); });
}

template <class T>
inline void add_bias(index_t n, T* s, const T* bias, index_t stride) {
  using V = Vec<T>;
  const V hidden = V::all(detail::kMinusInf<T>), lowest = V::all(std::numeric_limits<T>::lowest());
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
    // Selected, not added: the score of a hidden key may be NaN, as may be what another bias that hides it.
    const V x = select(less(b, lowest), hidden, load(s + j, lanes));
    store(select(less(x, lowest), x, x + b), s + j, lanes);
  });
}

template <class T>
inline void hide(index_t n, T* s, const bool* shown, index_t stride, bool hidden) {
  using V = Vec<T>;
  const V minus_inf = V::all(detail::kMinusInf<T>);
  index_t j = 0;
  if (stride == 1) {
    for (; j + V::kLanes <= n; j += V::kLanes) {
      const auto set = are_set<T>(shown + j);
      const V x = V::load(s + j);
      (hidden ? select(set, minus_inf, x) : select(set, x, minus_inf)).store(s + j);
    }
  }
  for (; j < n; ++j) {
    if (shown[j * stride] == hidden) s[j] = detail::kMinusInf<T>;
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
  // Counted down and not converted anew: exact up to 2^24 keys in float. Two counts, since each waits for its last.
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

/// 0 for each lane of a vector, then -inf for each. A member, which g++ hides from other libraries where it is told to hide
/// what is not exported; a variable template it does not.
template <class T>
struct ShownThenHidden {
  static constexpr auto kLanes = [] {
    std::array<T, 2 * Vec<T>::kLanes> x{};
    for (std::size_t i = Vec<T>::kLanes; i < x.size(); ++i) x[i] = detail::kMinusInf<T>;
    return x;
  }();
};

/// s[n..] = -inf up to a whole vector.
template <class T>
ATTN_INLINE void hide_beyond(index_t n, T* s) {
  constexpr index_t kLanes = Vec<T>::kLanes;
  const index_t shown = n % kLanes;
  if (shown == 0) return;
  T* last = s + n - shown;
  const T* added = ShownThenHidden<T>::kLanes.data() + kLanes - shown;
  (Vec<T>::load(last, shown) + Vec<T>::load(added)).store(last);
}

template <class T>
inline void online_softmax(index_t height, index_t n, T* s, index_t stride,
                           detail::QueryRow<T>* rows, T* shrink) {
  using V = Vec<T>;
  constexpr index_t kPair = 2 * V::kLanes;
  static_assert(RowTileShape<T>::NR == kPair);
  const index_t whole = detail::round_up(n, V::kLanes);
  for (index_t r = 0; r < height; ++r, s += stride) {
    hide_beyond(n, s);
    detail::RowState<T>& state = rows[r].state;
    V m0 = V::all(state.most), m1 = m0;
    index_t first = 0;
    for (; first + kPair <= whole; first += kPair) {
      m0 = max(V::load(s + first), m0);
      m1 = max(V::load(s + first + V::kLanes), m1);
    }
    if (first < whole) m0 = max(V::load(s + first), m0);
    const T most = max_lane(max(m0, m1));
    // Nothing visible yet: shift by 0, so that -inf - -inf never occurs; all weights come out 0.
    const V shift = V::all(most == detail::kMinusInf<T> ? T{0} : most);
    // One vector at a time: two side by side would take more than the 16 registers of AVX2, and cores overlap them anyway.
    V total = V::all(T{0});
    for (index_t j = 0; j < whole; j += V::kLanes) {
      const V e = exp_flush(V::load(s + j) - shift);
      e.store(s + j);
      total = total + e;
    }
    // By vectors too: a call of std::exp costs as much as eight vectors of scores. There is nothing to shrink at first.
    shrink[r] = state.total == T{0} ? T{0} : max_lane(exp_flush(V::all(state.most) - shift));
    state = {most, state.total * shrink[r] + sum(total)};
  }
}

template <class T>
inline void weigh(index_t n, const T* s, const detail::RowState<T>& state, T* out) {
  using V = Vec<T>;
  const V most = V::all(state.most), factor = V::all(T{1} / state.total);
  each_vector<T>(n, [&](index_t j, auto lanes) {
    store(exp_flush(load(s + j, lanes) - most) * factor, out + j, lanes);
  });
}

/// Philox 4x32-10 of 16 counters: word[w][x] is word w of counter (first + x, i, h, b), `first` a multiple of 16.
/// Numbers stand in the low halves of 64 bits, where one instruction multiplies them. Two vectors at a time hide its
/// latency: even counters and odd ones, whose words interleave to 32 bits in order.
struct Philox {
  static constexpr int kCounters = 16;
  std::uint32_t word[4][kCounters];

  Philox(std::uint64_t seed, index_t first, index_t i, index_t h, index_t b) {
    using V = Vec<std::uint64_t>;
    constexpr std::uint64_t kSteps[kCounters] = {0, 2, 4, 6, 8, 10, 12, 14,
                                                 1, 3, 5, 7, 9, 11, 13, 15};
    const V times0 = V::all(0xD2511F53), times2 = V::all(0xCD9E8D57);
    const auto all = [](index_t x) { return V::all(static_cast<std::uint64_t>(x)); };
    for (int x = 0; x < kCounters / 2; x += V::kLanes) {
      V w[2][4];
      ATTN_UNROLL
      for (int odd = 0; odd < 2; ++odd) {
        w[odd][0] = all(first) ^ V::load(kSteps + odd * kCounters / 2 + x);
        w[odd][1] = all(i);
        w[odd][2] = all(h);
        w[odd][3] = all(b);
      }
      auto key0 = static_cast<std::uint32_t>(seed), key1 = static_cast<std::uint32_t>(seed >> 32);
      for (int round = 0; round < 10; ++round) {
        ATTN_UNROLL
        for (int odd = 0; odd < 2; ++odd) {
          const V p0 = low_product(w[odd][0], times0), p2 = low_product(w[odd][2], times2);
          w[odd][0] = p2.high() ^ w[odd][1] ^ V::all(key0);
          w[odd][1] = p2;
          w[odd][2] = p0.high() ^ w[odd][3] ^ V::all(key1);
          w[odd][3] = p0;
        }
        key0 += 0x9E3779B9u;
        key1 += 0xBB67AE85u;
      }
      ATTN_UNROLL
      for (int n = 0; n < 4; ++n) store_low(w[0][n], w[1][n], word[n] + 2 * x);
    }
  }
};

/// Key j takes word (j / 16) % 4 of counter 16 (j / 64) + j % 16; it stays iff (word >> 8) 2^-24 >= p.
template <class T>
inline void drop(index_t n, T* weights, const Dropout& dropout, index_t b, index_t h, index_t i,
                 index_t first_key) {
  constexpr index_t kLanes = Philox::kCounters, kGroup = 4 * kLanes;
  const T kept = T(1 / (1 - dropout.p));
  // (word >> 8) 2^-24 >= p for a word iff word >> 8 reaches this; both fit 24 bits, which signed comparisons take too.
  const auto least = static_cast<std::int32_t>(std::ceil(dropout.p * 16777216));
  for (index_t group = first_key / kGroup; group * kGroup < first_key + n; ++group) {
    const Philox random(dropout.seed, group * kLanes, i, h, b);
    for (index_t part = 0; part < 4; ++part) {
      const auto& word = random.word[part];
      const index_t at = group * kGroup + part * kLanes - first_key;
      T factor[kLanes];
      for (index_t x = 0; x < kLanes; ++x) {
        factor[x] = static_cast<std::int32_t>(word[x] >> 8) >= least ? kept : T{0};
      }
      if (at >= 0 && at + kLanes <= n) {
        for (index_t x = 0; x < kLanes; ++x) weights[at + x] *= factor[x];
      } else {
        const index_t end = std::min(at + kLanes, n);
        for (index_t j = std::max(at, index_t{0}); j < end; ++j) weights[j] *= factor[j - at];
      }
    }
  }
}

template <class T>
inline bool scale_rows(index_t height, index_t n, const detail::QueryRow<T>* rows, const T* x,
                       index_t x_stride, T* out, index_t out_stride) {
  using V = Vec<T>;
  V odd = V::all(T{0});  // y - y is 0, or NaN where y is not finite
  for (index_t r = 0; r < height; ++r, x += x_stride, out += out_stride) {
    const V factor = V::all(rows[r].factor);
    each_vector<T>(n, [&](index_t j, auto lanes) {
      const V y = load(x + j, lanes) * factor;
      store(y, out + j, lanes);
      odd = odd + (y - y);
    });
  }
  return sum(odd) == T{0};
}

static_assert(RowTileShape<float>::MR <= detail::kMostTileRows);
static_assert(detail::kFewRowsAtOnce % kRowsAtOnce == 0);
static_assert((RowTileShape<float>::NR & (RowTileShape<float>::NR - 1)) == 0);

template <class T>
struct Row<detail::RowKernels<T>> {
  static constexpr detail::RowKernels<T> kTable{
      .tile_rows = RowTileShape<T>::MR,
      .panel_width = RowTileShape<T>::NR,
      .pack_part = pack_part<T, RowTileShape<T>::NR>,
      .score_panel = score_panel<T>,
      .softcap = softcap<T>,
      .add_bias = add_bias<T>,
      .hide = hide<T>,
      .add_alibi = add_alibi<T>,
      .online_softmax = online_softmax<T>,
      .weigh = weigh<T>,
      .drop = drop<T>,
      .add_values_tile = tile_columns<T>,
      .scale_rows = scale_rows<T>,
  };
};

template <class T, class E>
inline void widen_rows(index_t count, index_t n, detail::StoredRows<T> rows, T* to,
                       index_t to_stride) {
  const E* from = static_cast<const E*>(rows.data);
  for (index_t r = 0; r < count; ++r, from += rows.stride, to += to_stride) {
    if constexpr (std::same_as<E, T>) {
      std::copy_n(from, n, to);
    } else {
      const Vec<T> factor = Vec<T>::all(rows.scales == nullptr ? T{1} : rows.scales[r]);
      each_vector<T>(
          n, [&](index_t j, auto lanes) { store(load(from + j, lanes) * factor, to + j, lanes); });
    }
  }
}

template <class T, class E>
inline void narrow_rows(index_t count, index_t n, const T* rows, index_t stride, void* to,
                        index_t to_stride) {
  E* out = static_cast<E*>(to);
  for (index_t r = 0; r < count; ++r, rows += stride, out += to_stride) {
    each_vector<T>(n, [&](index_t j, auto lanes) { store(load(rows + j, lanes), out + j, lanes); });
  }
}

/// Other elements are widened in pieces that stay in the first cache.
template <class T, class E>
inline void pack_rows(index_t width, index_t room, index_t k, detail::StoredRows<T> rows,
                      T* panel) {
  constexpr index_t NR = RowTileShape<T>::NR;
  const E* from = static_cast<const E*>(rows.data);
  if constexpr (std::same_as<E, T>) {
    pack_part<T, NR>(width, room, k, from, rows.stride, panel);
  } else {
    constexpr index_t kPiece = 64;
    T piece[NR * kPiece];
    for (index_t p = 0; p < k; p += kPiece) {
      const index_t n = std::min(k - p, kPiece);
      widen_rows<T, E>(width, n, {from + p, rows.stride, rows.scales}, piece, kPiece);
      pack_part<T, NR>(width, room, n, piece, kPiece, panel + p * NR);
    }
  }
}

template <class T>
inline void scale_columns(index_t height, index_t n, const T* factors, T* s, index_t stride) {
  for (index_t r = 0; r < height; ++r, s += stride) {
    each_vector<T>(n, [&](index_t j, auto lanes) {
      store(load(s + j, lanes) * load(factors + j, lanes), s + j, lanes);
    });
  }
}

/// Of rows of E, computed in T.
template <class T, class E>
struct ElementRow {
  static constexpr detail::ElementKernels<T> kTable = [] {
    detail::ElementKernels<T> table{
        .pack_rows = pack_rows<T, E>,
        .widen_rows = widen_rows<T, E>,
        .narrow_rows = nullptr,
        .score_rows = score_rows<T, E>,
        .add_values_rows = add_values_rows<T, E>,
        .scale_columns = scale_columns<T>,
    };
    if constexpr (std::floating_point<E> || Float16Element<E>)
      table.narrow_rows = narrow_rows<T, E>;
    return table;
  }();
};
