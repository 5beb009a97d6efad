// Kernel text: attention's forward pass on this target.
// SPDX-License-Identifier: Apache-2.0

template <class T>
inline void forward(const detail::AttentionProblem<T>& problem, const Executor& executor,
                    Workspace& workspace) {
  detail::forward_with(Row<detail::RowKernels<T>>::kTable, problem, executor, workspace);
}

template <class T>
struct Row<detail::Backend<family::Attention, T, T>> {
  static constexpr detail::Backend<family::Attention, T, T> kTable{
      .tile_rows = RowTileShape<T>::MR,
      .tile_keys = RowTileShape<T>::NR,
      .forward = detail::kKernel<forward<T>>};
};
