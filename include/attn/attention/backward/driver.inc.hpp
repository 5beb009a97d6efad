// Kernel text: backward attention.
// SPDX-License-Identifier: Apache-2.0

static_assert(detail::BackwardTiling::kBlockQ % RowTileShape<float>::MR == 0);

template <class T>
inline void attention_backward(const detail::BackwardProblem<T>& problem, const Executor& executor,
                               Workspace& workspace) {
  detail::Backward<T>(TargetTable<detail::RowKernels<T>>::kTable, kGradientKernels<T>, problem,
                      executor, workspace)
      .run();
}

template <class T>
struct TargetTable<detail::Backend<family::AttentionBackward, T, T>> {
  static constexpr detail::Backend<family::AttentionBackward, T, T> kTable{
      .backward = detail::kKernel<attention_backward<T>>};
};
