// Kernel text: gradients of softmax and of its logarithm, by rows.
// SPDX-License-Identifier: Apache-2.0

template <class T>
inline void softmax_backward_rows(const detail::SoftmaxBackwardProblem<T>& problem,
                                  const Executor& executor, Workspace&) {
  using V = Vec<T>;
  const index_t n = problem.out.extent(1);
  detail::for_rows(executor, problem.out.extent(0), n, [&](index_t row) {
    const T* dy = problem.d_out.data() + row * problem.d_out.stride(0);
    const T* y = problem.out.data() + row * problem.out.stride(0);
    T* dx = problem.d_x.data() + row * problem.d_x.stride(0);
    V total = V::all(T{0});
    if (problem.is_log) {
      each_vector<T>(n, [&](index_t k, auto lanes) { total = total + load(dy + k, lanes); });
      const V all = V::all(sum(total));
      each_vector<T>(n, [&](index_t k, auto lanes) {
        store(fnma(exp(load(y + k, lanes)), all, load(dy + k, lanes)), dx + k, lanes);
      });
      return;
    }
    each_vector<T>(n, [&](index_t k, auto lanes) {
      total = fma(load(dy + k, lanes), load(y + k, lanes), total);
    });
    const T all = sum(total);
    if (!std::isfinite(all)) {  // perhaps because of elements whose weight is 0
      T kept = 0;
      for (index_t k = 0; k < n; ++k) kept += y[k] == T{0} ? T{0} : dy[k] * y[k];
      for (index_t k = 0; k < n; ++k) dx[k] = y[k] == T{0} ? T{0} : y[k] * (dy[k] - kept);
      return;
    }
    const V along = V::all(all);
    each_vector<T>(n, [&](index_t k, auto lanes) {
      store(load(y + k, lanes) * (load(dy + k, lanes) - along), dx + k, lanes);
    });
  });
}

template <class T>
struct TargetTable<detail::Backend<family::SoftmaxBackward, T, T>> {
  static constexpr detail::Backend<family::SoftmaxBackward, T, T> kTable{
      .softmax = detail::kKernel<softmax_backward_rows<T>>};
};
