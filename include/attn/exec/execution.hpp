// Execution: how a call runs: executor, workspace, instruction set.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>

#include "attn/exec/executor.hpp"
#include "attn/exec/workspace.hpp"
#include "attn/simd/isa.hpp"

ATTN_NAMESPACE_BEGIN

/// How a call runs: the last argument of every function.
struct Execution {
  const Executor* executor = nullptr;  ///< threads; default_executor() if null
  Workspace* workspace = nullptr;      ///< scratch memory; one per thread if null
  /// Instruction set; active_isa() if not given, ValueError if the machine lacks it.
  std::optional<Isa> isa = {};

  const Executor& threads() const { return executor != nullptr ? *executor : default_executor(); }
  Workspace& scratch() const { return workspace != nullptr ? *workspace : default_workspace(); }
  Isa instruction_set() const { return isa ? require_isa(*isa) : active_isa(); }
};

ATTN_NAMESPACE_END
