// Kernel text: attention's forward pass on this instruction set.

template <class T>
inline void forward(const detail::AttentionProblem<T>& problem, const Executor& executor,
                    Workspace& workspace) {
  detail::forward_with(kRowKernels<T>, problem, executor, workspace);
}
