// Kernel text: forward attention.
// SPDX-License-Identifier: Apache-2.0

/// For keys and values of type In, queries and outputs of type In or T.
template <class In, class T>
inline detail::ForwardKernels<T> forward_kernels(const detail::AttentionProblem<T>& problem) {
  const detail::ElementKernels<T>& own = ElementTable<T, T>::kTable;
  const detail::ElementKernels<T>& in = ElementTable<T, In>::kTable;
  const detail::RowKernels<T>& rows = TargetTable<detail::RowKernels<T>>::kTable;
  return {.rows = rows,
          .own = own,
          .of_queries = problem.widens_queries() ? in : own,
          .of_keys = in,
          .products = detail::tiled_products<In>(problem, rows)};
}

template <class In, class T>
inline void forward(const detail::AttentionProblem<T>& problem, const Executor& executor,
                    Workspace& workspace) {
  detail::forward_with<T>(forward_kernels<In, T>(problem), problem, executor, workspace);
}

template <class In, class T>
struct TargetTable<detail::Backend<family::Attention, In, T>> {
  static constexpr detail::Backend<family::Attention, In, T> kTable{
      .tile_rows = RowTileShape<T>::MR,
      .tile_keys = RowTileShape<T>::NR,
      .forward = detail::kKernel<forward<In, T>>};
};
