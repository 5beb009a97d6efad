// row_of(): a table's row of one target, the one switch between targets.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attn/simd/isa.hpp"

ATTN_NAMESPACE_BEGIN

/// Row<Table>::kTable is what a target's kernel text offers for a table: a struct of pointers to
/// its functions and of its tile sizes. Kernel text specialises it.
#define ATTN_TARGET_ENTRY(name, base, is_compiled, is_there) \
  namespace name {                                           \
  template <class Table>                                     \
  struct Row;                                                \
  }
#include "attn/simd/targets.inc"
#undef ATTN_TARGET_ENTRY

namespace detail {

/// Whether a table's kernel text is compiled for targets that extend others:
/// `static constexpr bool kExtended = true`.
template <class Table>
concept ExtendedTable = Table::kExtended;

/// `isa` is one that is_available(): require_isa() and active_isa() let no other through.
template <class Table>
const Table& row_of(Isa isa) {
  switch (ExtendedTable<Table> ? isa : base(isa)) {
#define ATTN_TARGET_ENTRY(name, base, is_compiled, is_there)                              \
  case Isa::name:                                                                         \
    if constexpr (is_compiled != 0 && (Isa::name == Isa::base || ExtendedTable<Table>)) { \
      return name::Row<Table>::kTable;                                                    \
    }                                                                                     \
    break;
#include "attn/simd/targets.inc"
#undef ATTN_TARGET_ENTRY
  }
  __builtin_unreachable();
}

}  // namespace detail

ATTN_NAMESPACE_END
