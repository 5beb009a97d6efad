// takes_pairs(): whether a call multiplies bfloat16 pairs; float_parts().
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attn/attention/call/problem.hpp"

ATTN_NAMESPACE_BEGIN

namespace detail {

/// Number of bfloat16 parts into which the tiled path splits each float; 0: floats stay whole.
template <class T>
index_t float_parts(const AttentionProblem<T>& problem) {
  const bool are_floats = problem.q.element() == DType::F32 && problem.k.element() == DType::F32;
  if (!are_floats || problem.options.qv || problem.has_codes()) return 0;
  return problem.options.execution.matmul_precision_used().parts();
}

/// Whether q, k and v are bfloat16, or floats in parts of it, which some targets multiply in pairs.
template <class T>
bool has_pairs(const AttentionProblem<T>& problem) {
  const bool are_bfloat16 =
      problem.q.element() == DType::BF16 && problem.k.element() == DType::BF16;
  return (are_bfloat16 && !problem.options.qv) || float_parts(problem) > 0;
}

/// Whether a target with pair products uses them here, at least for weights times values.
template <class T>
bool may_take_pairs(const AttentionProblem<T>& problem) {
  return has_pairs(problem) || problem.has_codes();
}

/// Whether `isa` uses pair products for this call.
template <class T>
bool takes_pairs(const AttentionProblem<T>& problem, Isa isa) {
  return multiplies_pairs(isa) && may_take_pairs(problem);
}

}  // namespace detail

ATTN_NAMESPACE_END
