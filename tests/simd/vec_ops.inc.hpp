// Kernel text: every operation of Vec as a function over arrays, for vec_test.cpp.

/// Calls with whole vectors while possible: partial loads of the baseline are calls of memcpy.
template <class T>
ATTN_INLINE Vec<T> load_up_to(const T* p, index_t n) {
  return n >= Vec<T>::kLanes ? Vec<T>::load(p) : Vec<T>::load(p, n);
}

template <class T, class F>
inline void for_each_vec(index_t n, T* out, F f) {
  constexpr index_t kLanes = Vec<T>::kLanes;
  for (index_t i = 0; i < n; i += kLanes) {
    const Vec<T> y = f(i, n - i);
    if (n - i >= kLanes) {
      y.store(out + i);
    } else {
      y.store(out + i, n - i);
    }
  }
}

/// out = op(a, b, c) for each element; `op` is a VecOp.
template <class T>
inline void vec_apply(VecOp op, index_t n, const T* a, const T* b, const T* c, T* out) {
  using V = Vec<T>;
  for_each_vec(n, out, [=](index_t i, index_t left) {
    const V x = load_up_to(a + i, left), y = load_up_to(b + i, left), z = load_up_to(c + i, left);
    switch (op) {
      case VecOp::add:
        return x + y;
      case VecOp::subtract:
        return x - y;
      case VecOp::multiply:
        return x * y;
      case VecOp::divide:
        return x / y;
      case VecOp::fma:
        return fma(x, y, z);
      case VecOp::fnma:
        return fnma(x, y, z);
      case VecOp::max:
        return max(x, y);
      case VecOp::min:
        return min(x, y);
      case VecOp::select_less:
        return select(less(x, y), x, z);
      case VecOp::sqrt:
        return sqrt(x);
      case VecOp::round:
        return round(x);
      case VecOp::pow2:
        return pow2(x);
      case VecOp::exponent:
        return exponent(x);
      case VecOp::exp2:
        return exp2(x);
      case VecOp::exp2_flush:
        return exp2_flush(x);
      case VecOp::exp:
        return exp(x);
      case VecOp::exp_flush:
        return exp_flush(x);
      case VecOp::tanh:
        return capped(x, Vec<T>::all(1), Vec<T>::all(1));
      case VecOp::silu:
        return times_sigmoid(x, x);
      case VecOp::gelu:
        return times_normal_cdf(x);
      case VecOp::log:
        return log(x);
    }
    return x;
  });
}

/// Whole vectors at any address.
template <class T>
inline void vec_copy(const T* from, T* to) {
  Vec<T>::load(from).store(to);
}

template <class T>
inline void vec_copy_part(const T* from, index_t n, T* to, index_t m) {
  Vec<T>::load(from, n).store(to, m);
}

template <class T>
inline T vec_sum(const T* x) {
  return sum(Vec<T>::load(x));
}

template <class T>
inline T vec_max_lane(const T* x) {
  return max_lane(Vec<T>::load(x));
}

template <class T>
inline void vec_all(T value, T* to) {
  Vec<T>::all(value).store(to);
}

/// The product, high halves of a, a ^ b, and each number as its low and high half; n is a multiple
/// of 8.
inline void vec_integers(index_t n, const std::uint64_t* a, const std::uint64_t* b,
                         std::uint32_t* product, std::uint32_t* high, std::uint32_t* either) {
  using V = Vec<std::uint64_t>;
  const auto store = [](V x, std::uint32_t* to) { store_low(x, x.high(), to); };
  for (index_t j = 0; j < n; j += V::kLanes) {
    const V x = V::load(a + j), y = V::load(b + j);
    store(low_product(x, y), product + 2 * j);
    store(x.high(), high + 2 * j);
    store(x ^ y, either + 2 * j);
  }
}

template <class T>
struct TargetTable<VecTable<T>> {
  static constexpr VecTable<T> kTable{.lanes = Vec<T>::kLanes,
                                      .apply = vec_apply<T>,
                                      .copy = vec_copy<T>,
                                      .copy_part = vec_copy_part<T>,
                                      .sum = vec_sum<T>,
                                      .max_lane = vec_max_lane<T>,
                                      .all = vec_all<T>};
};
template <>
struct TargetTable<VecTable<std::uint64_t>> {
  static constexpr VecTable<std::uint64_t> kTable{.apply = vec_integers};
};
