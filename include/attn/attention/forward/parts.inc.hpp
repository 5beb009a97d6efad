// Kernel text: forward attention over a part of the keys.
// SPDX-License-Identifier: Apache-2.0

template <class In, class T>
inline void attention_part(const detail::AttentionPart<T>& part, const Executor& executor,
                           Workspace& workspace) {
  detail::run_part<T>(forward_kernels<In, T>(part.problem), part, executor, workspace);
}

template <class In, class T>
struct TargetTable<detail::Backend<family::AttentionParts, In, T>> {
  static constexpr detail::Backend<family::AttentionParts, In, T> kTable{
      .run = detail::kKernel<attention_part<In, T>>};
};
