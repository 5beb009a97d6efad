// The threads of a call.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>

#include "attn/exec/execution.hpp"

namespace attn_python {

/// Number of threads of calls that are given none. Throws ValueError below 1.
void set_num_threads(int threads);
int num_threads();

/// The threads of one call, alive until it has ended.
class Threads {
 public:
  /// `threads`: the argument of the call. Throws ValueError below 1, and above 1 without OpenMP.
  explicit Threads(std::optional<int> threads);
  Threads(const Threads&) = delete;
  Threads& operator=(const Threads&) = delete;

  attn::Execution execution() const { return {.executor = &executor_}; }

 private:
#if defined(_OPENMP)
  attn::OpenMPExecutor executor_;
#else
  attn::SerialExecutor executor_;
#endif
};

}  // namespace attn_python
