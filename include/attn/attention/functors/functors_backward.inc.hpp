// Kernel text: derivative of a user functor over a row.
// SPDX-License-Identifier: Apache-2.0

template <class T, class F>
inline void apply_derivative(const void* object, index_t n, T* row, index_t b, index_t h, index_t i,
                             index_t first_key) {
  const F& f = *static_cast<const F*>(object);
  const int batch = static_cast<int>(b), head = static_cast<int>(h), query = static_cast<int>(i),
            first = static_cast<int>(first_key);
  apply_in_chunks(n, row, [&](T score, int x) {
    return Dual<T>(f(Dual<T>(score, T{1}), batch, head, query, first + x)).derivative;
  });
}

template <class T, class F, std::size_t K>
inline void apply_parameter_derivative(const void* object, index_t n, T* row, index_t b, index_t h,
                                       index_t i, index_t first_key) {
  const F& f = *static_cast<const F*>(object);
  const int batch = static_cast<int>(b), head = static_cast<int>(h), query = static_cast<int>(i),
            first = static_cast<int>(first_key);
  apply_in_chunks(n, row, [&](T score, int x) {
    return f.template derivative_by<K>(Dual<T>(score), batch, head, query, first + x).derivative;
  });
}

template <class T, class F>
struct TargetTable<detail::DerivativeLoop<T, F>> {
  static constexpr detail::DerivativeLoop<T, F> kTable{apply_derivative<T, F>};
};
template <class T, class F, std::size_t K>
struct TargetTable<detail::ParameterDerivativeLoop<T, F, K>> {
  static constexpr detail::ParameterDerivativeLoop<T, F, K> kTable{
      apply_parameter_derivative<T, F, K>};
};
