// Kernel text: rows of weights and score gradients between the products of backward attention.
// SPDX-License-Identifier: Apache-2.0

template <class T>
inline void score_near_panel(index_t d, const T* queries, index_t queries_stride, const T* panel,
                             T scale, T* scores, index_t stride) {
  using Shape = RowTileShape<T>;
  tile<T, Shape::MR, Shape::NV, ALayout::rows, TileUpdate::scale_b_in_l1, false>(
      d, queries, queries_stride, panel, Shape::NR, scores, stride, &scale, 0, {});
}

template <class T>
inline void add_product(index_t columns, index_t k, const T* a, index_t a_stride, const T* b,
                        index_t b_stride, T* c, index_t c_stride) {
  tile_columns<T, TileUpdate::add>(columns, k, a, a_stride, b, b_stride, c, c_stride, nullptr);
}

template <class T>
inline void score_gradient(index_t n, const T* p, T delta, T* d_p) {
  using V = Vec<T>;
  const V zero = V::all(T{0}), off = V::all(delta);
  each_vector<T>(n, [&](index_t j, auto lanes) {
    const V weight = load(p + j, lanes);
    // Selected, not multiplied: d_p of a masked key may overflow.
    store(select(less(zero, weight), weight * (load(d_p + j, lanes) - off), zero), d_p + j, lanes);
  });
}

template <class T>
inline void score_gradient_jvp(index_t n, const T* p, const T* d_s, T d_lse, T d_delta, T* d_scores,
                               const T* more_scores, T* d_d_p, const T* more_d_p) {
  using V = Vec<T>;
  const V zero = V::all(T{0}), off = V::all(d_lse), d_off = V::all(d_delta);
  each_vector<T>(n, [&](index_t j, auto lanes) {
    const V weight = load(p + j, lanes);
    const V moved = load(d_scores + j, lanes) + load(more_scores + j, lanes) - off;
    const V of_p = load(d_d_p + j, lanes) + load(more_d_p + j, lanes) - d_off;
    const V change = fma(load(d_s + j, lanes), moved, weight * of_p);
    store(select(less(zero, weight), weight * moved, zero), d_scores + j, lanes);
    store(select(less(zero, weight), change, zero), d_d_p + j, lanes);
  });
}

template <class T>
inline void capped_score_gradient_jvp(index_t n, const T* p, const T* d_s, const T* s, T cap,
                                      T d_lse, T d_delta, T* d_scores, const T* more_scores,
                                      T* d_d_p, const T* more_d_p) {
  using V = Vec<T>;
  const V zero = V::all(T{0}), one = V::all(T{1}), off = V::all(d_lse), d_off = V::all(d_delta);
  const V by = V::all(T{1} / cap), twice = V::all(T{2} / cap);
  each_vector<T>(n, [&](index_t j, auto lanes) {
    const V weight = load(p + j, lanes), tanh = load(s + j, lanes) * by;
    const V slope = fnma(tanh, tanh, one);
    const V scores = load(d_scores + j, lanes) + load(more_scores + j, lanes);
    const V moved = scores * slope - off;
    const V of_p = (load(d_d_p + j, lanes) + load(more_d_p + j, lanes) - d_off) * slope;
    // The derivative of the slope is -2 tanh / cap times the slope.
    const V change = fma(load(d_s + j, lanes), moved - twice * tanh * scores, weight * of_p);
    store(select(less(zero, weight), weight * moved, zero), d_scores + j, lanes);
    store(select(less(zero, weight), change, zero), d_d_p + j, lanes);
  });
}

template <class T>
inline void softcap_derivative(index_t n, const T* s, T cap, T* derivative) {
  using V = Vec<T>;
  const V by = V::all(T{1} / cap), one = V::all(T{1});
  each_vector<T>(n, [&](index_t j, auto lanes) {
    const V tanh = load(s + j, lanes) * by;
    store(load(derivative + j, lanes) * fnma(tanh, tanh, one), derivative + j, lanes);
  });
}

/// x y; 0 where x is 0, even if y is NaN.
template <class T>
inline Vec<T> product_where(Vec<T> x, Vec<T> y) {
  using V = Vec<T>;
  const V zero = V::all(T{0}), smallest = V::all(std::numeric_limits<T>::denorm_min());
  return select(less(max(x, zero - x), smallest), zero, x * y);  // a NaN in x stays NaN
}

template <class T>
inline void multiply(index_t n, T* x, const T* y) {
  each_vector<T>(n, [&](index_t j, auto lanes) {
    store(product_where<T>(load(x + j, lanes), load(y + j, lanes)), x + j, lanes);
  });
}

template <class T>
inline void add_scaled(index_t n, T a, const T* x, T* y) {
  const Vec<T> by = Vec<T>::all(a);
  each_vector<T>(n, [&](index_t j, auto lanes) {
    store(fma(by, load(x + j, lanes), load(y + j, lanes)), y + j, lanes);
  });
}

template <class T>
inline T dot_rows(index_t n, const T* x, const T* y) {
  using V = Vec<T>;
  V total = V::all(T{0});
  each_vector<T>(n, [&](index_t j, auto lanes) {
    total = fma(load(x + j, lanes), load(y + j, lanes), total);
  });
  return sum(total);
}

template <class T>
inline T dot_where(index_t n, const T* x, const T* y) {
  using V = Vec<T>;
  V total = V::all(T{0});
  each_vector<T>(n, [&](index_t j, auto lanes) {
    total = total + product_where<T>(load(x + j, lanes), load(y + j, lanes));
  });
  return sum(total);
}

template <class T>
inline bool all_finite(index_t rows, index_t n, const T* x, index_t stride) {
  using V = Vec<T>;
  V not_finite = V::all(T{0});  // y - y is 0, or NaN where y is not finite
  for (index_t r = 0; r < rows; ++r, x += stride) {
    each_vector<T>(n, [&](index_t j, auto lanes) {
      const V y = load(x + j, lanes);
      not_finite = not_finite + (y - y);
    });
  }
  return sum(not_finite) == T{0};
}

template <class T>
inline constexpr detail::GradientKernels<T> kGradientKernels{
    .score_panel = score_near_panel<T>,
    .add_product = add_product<T>,
    .add_transposed = add_transposed<T>,
    .score_gradient = score_gradient<T>,
    .score_gradient_jvp = score_gradient_jvp<T>,
    .capped_score_gradient_jvp = capped_score_gradient_jvp<T>,
    .softcap_derivative = softcap_derivative<T>,
    .multiply = multiply<T>,
    .add_scaled = add_scaled<T>,
    .dot = dot_rows<T>,
    .dot_where = dot_where<T>,
    .all_finite = all_finite<T>,
};
