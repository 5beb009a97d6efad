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
    const Execution& execution = problem.options.execution;
    const Isa isa = execution.instruction_set();
#if defined(ATTN_COMPILED_LIBRARY)
    const auto codes = &CodeProducts<T>::on;
    const auto parts = &pair_products<T>;
#else
    const auto codes = problem.options.precision.code_products();
    const auto parts = execution.matmul_precision.tables().attention;
#endif
    if (problem.has_codes()) return codes(isa);
    if (takes_pairs(problem, isa)) {
      if (float_parts(problem) > 0) return parts(isa);
      if constexpr (std::same_as<In, bfloat16>) return pair_products<T>(isa);
    }
  }
  return {.tile_rows = rows.tile_rows, .make_path = make_path<ExactPath<T>, T>};
}

}  // namespace detail

ATTN_NAMESPACE_END
