// Execution: how one call runs, given by the caller: its threads, its scratch memory, its instruction set.
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
};

ATTN_NAMESPACE_END

// return set::call, for the set that this call runs on: the one switch between instruction sets, once per
// public call. require_isa() and active_isa() let nothing through that was not compiled.
#define ATTN_DISPATCH_SET(set, call) \
  case Isa::set:                     \
    return set::call;
#if defined(ATTN_PIN_ISA)
#define ATTN_DISPATCH_SETS(call) ATTN_DISPATCH_SET(ATTN_PIN_ISA, call)
#elif ATTN_ARCH_X86
#define ATTN_DISPATCH_SETS(call) \
  ATTN_DISPATCH_SET(scalar, call) ATTN_DISPATCH_SET(avx2, call) ATTN_DISPATCH_SET(avx512, call)
#else
#define ATTN_DISPATCH_SETS(call) ATTN_DISPATCH_SET(scalar, call)
#endif
#define ATTN_DISPATCH(execution, call)                                      \
  switch ((execution).isa ? require_isa(*(execution).isa) : active_isa()) { \
    ATTN_DISPATCH_SETS(call)                                                \
    default:                                                                \
      __builtin_unreachable();                                              \
  }
