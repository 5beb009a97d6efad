// Kernel text: attention with tangents.
// SPDX-License-Identifier: Apache-2.0

/// For keys and values of type In, queries and outputs of type In or T. Multiplies in T, because
/// tangents of weights have any sign and size.
template <class In, class T>
inline void attention_jvp(const detail::JvpProblem<T>& problem, const Executor& executor,
                          Workspace& workspace) {
  const detail::RowKernels<T>& rows = TargetTable<detail::RowKernels<T>>::kTable;
  const detail::ElementKernels<T>& own = ElementTable<T, T>::kTable;
  const detail::ElementKernels<T>& in = ElementTable<T, In>::kTable;
  detail::jvp_with<T>({.rows = rows,
                       .own = own,
                       .of_queries = problem.forward.widens_queries() ? in : own,
                       .of_keys = in,
                       .products = {.tile_rows = rows.tile_rows,
                                    .make_path = detail::make_path<detail::ExactPath<T>, T>}},
                      kGradientKernels<T>, problem, executor, workspace);
}

template <class T>
inline void attention_backward_jvp(const detail::BackwardJvpProblem<T>& problem,
                                   const Executor& executor, Workspace& workspace) {
  detail::BackwardJvp<T>(TargetTable<detail::RowKernels<T>>::kTable, kGradientKernels<T>, problem,
                         executor, workspace)
      .run();
}

template <class In, class T>
struct TargetTable<detail::Backend<family::AttentionTangents, In, T>> {
  static constexpr detail::Backend<family::AttentionTangents, In, T> kTable{
      .jvp = detail::kKernel<attention_jvp<In, T>>,
      .backward_jvp = detail::kKernel<attention_backward_jvp<T>>};
};
