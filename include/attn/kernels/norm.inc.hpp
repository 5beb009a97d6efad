// Kernel text: layer normalisation of rows, in two passes (the one-pass variance cancels).

template <class T>
inline void layer_norm_rows(TensorView2<const T> x, const T* weight, const T* bias, T eps,
                            TensorView2<T> out) {
  using V = Vec<T>;
  const index_t n = x.extent(1);
  for (index_t i = 0; i < x.extent(0); ++i) {
    const T* from = x.data() + i * x.stride(0);
    T* to = out.data() + i * out.stride(0);
    V total = V::all(T{0});
    for (index_t j = 0; j < n; j += V::kLanes) total = total + V::load(from + j, n - j);
    const T mean = sum(total) / static_cast<T>(n);
    V squares = V::all(T{0});
    index_t j = 0;
    for (; j + V::kLanes <= n; j += V::kLanes) {
      const V d = V::load(from + j) - V::all(mean);
      squares = fma(d, d, squares);
    }
    T square = sum(squares);
    for (; j < n; ++j) square += (from[j] - mean) * (from[j] - mean);
    const T scale = T{1} / std::sqrt(square / static_cast<T>(n) + eps);
    for (j = 0; j < n; j += V::kLanes) {
      const index_t left = n - j;
      V y = (V::load(from + j, left) - V::all(mean)) * V::all(scale);
      if (weight != nullptr) y = y * V::load(weight + j, left);
      if (bias != nullptr) y = y + V::load(bias + j, left);
      y.store(to + j, left);
    }
  }
}
