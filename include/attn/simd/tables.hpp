// table_of(): the kernel table of a target; the only switch over targets.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attn/simd/isa.hpp"

ATTN_NAMESPACE_BEGIN

/// TargetTable<Table>::kTable, in each target's namespace, is that target's Table: a struct of
/// pointers to kernels and of tile sizes. Kernel text specialises it.
#define ATTN_TARGET_ENTRY(name, base, is_compiled, is_there) \
  namespace name {                                           \
  template <class Table>                                     \
  struct TargetTable;                                        \
  }
#include "attn/simd/targets.inc"
#undef ATTN_TARGET_ENTRY

namespace detail {

/// Whether a table's kernel text is compiled for targets that extend others:
/// `static constexpr bool kExtended = true`.
template <class Table>
concept ExtendedTable = Table::kExtended;

/// The Table of `isa`, for which is_available() is true: require_isa() and active_isa() throw for
/// others.
template <class Table>
const Table& table_of(Isa isa) {
  switch (ExtendedTable<Table> ? isa : base(isa)) {
#define ATTN_TARGET_ENTRY(name, base, is_compiled, is_there)                              \
  case Isa::name:                                                                         \
    if constexpr (is_compiled != 0 && (Isa::name == Isa::base || ExtendedTable<Table>)) { \
      return name::TargetTable<Table>::kTable;                                            \
    }                                                                                     \
    break;
#include "attn/simd/targets.inc"
#undef ATTN_TARGET_ENTRY
  }
  __builtin_unreachable();
}

}  // namespace detail

ATTN_NAMESPACE_END
