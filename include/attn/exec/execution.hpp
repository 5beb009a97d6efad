// Execution: how one call runs: its threads, its scratch memory, its instruction set.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>

#include "attn/exec/executor.hpp"
#include "attn/exec/workspace.hpp"
#include "attn/simd/isa.hpp"

ATTN_NAMESPACE_BEGIN

/// Last argument of every function; each field may be left out.
struct Execution {
  const Executor* executor = nullptr;  ///< default_executor()
  Workspace* workspace = nullptr;      ///< one per thread
  std::optional<Isa> isa = {};  ///< active_isa(); throws ValueError for one the machine lacks

  const Executor& threads() const { return executor != nullptr ? *executor : default_executor(); }
  Workspace& scratch() const { return workspace != nullptr ? *workspace : default_workspace(); }
  Isa instruction_set() const { return isa ? require_isa(*isa) : active_isa(); }
};

ATTN_NAMESPACE_END
