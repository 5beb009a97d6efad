// tiled_products(): selects how the tiled path multiplies.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attn/attention/paths/exact_path.hpp"
#include "attn/attention/paths/pair_path.hpp"

ATTN_NAMESPACE_BEGIN

namespace detail {

/// For keys and values of type In.
template <class In, class T>
ATTN_ONCE_A_CALL TiledProducts<T> tiled_products(const AttentionProblem<T>& problem,
                                                 const RowKernels<T>& rows) {
  if constexpr (std::same_as<T, float>) {
    const Isa isa = problem.options.execution.instruction_set();
    if (problem.has_codes()) {
#if defined(ATTN_COMPILED_LIBRARY)
      return CodeProducts<T>::on(isa);
#else
      return problem.options.precision.code_products()(isa);
#endif
    }
    if constexpr (std::same_as<In, bfloat16> || std::same_as<In, float>) {
      if (takes_pairs(problem, isa)) return pair_products<T>(isa);
    }
  }
  return {.tile_rows = rows.tile_rows, .make_path = make_path<ExactPath<T>, T>};
}

}  // namespace detail

ATTN_NAMESPACE_END
