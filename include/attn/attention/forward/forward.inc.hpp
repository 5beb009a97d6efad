// Kernel text: forward attention.
// SPDX-License-Identifier: Apache-2.0

/// For keys and values of type In, queries and outputs of type In or T.
template <class In, class T>
inline void forward(const detail::AttentionProblem<T>& problem, const Executor& executor,
                    Workspace& workspace) {
  const detail::ElementKernels<T>& own = ElementTable<T, T>::kTable;
  const detail::ElementKernels<T>& in = ElementTable<T, In>::kTable;
  detail::forward_with<T>(
      {TargetTable<detail::RowKernels<T>>::kTable, own, problem.widens_queries() ? in : own, in,
       detail::tiled_products<In>(problem, TargetTable<detail::RowKernels<T>>::kTable)},
      problem, executor, workspace);
}

template <class In, class T>
struct TargetTable<detail::Backend<family::Attention, In, T>> {
  static constexpr detail::Backend<family::Attention, In, T> kTable{
      .tile_rows = RowTileShape<T>::MR,
      .tile_keys = RowTileShape<T>::NR,
      .forward = detail::kKernel<forward<In, T>>};
};
