// BackwardJvpProblem: a checked call of backward attention with tangents.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attn/attention/backward/problem.hpp"

ATTN_NAMESPACE_BEGIN

namespace detail {

template <class T>
struct BackwardJvpProblem {
  BackwardProblem<T> value;
  /// Tangents in place of q, k, v, out, lse and d_out; d_q, d_k and d_v are tangents, too.
  BackwardProblem<T> tangent;
};

}  // namespace detail

ATTN_NAMESPACE_END
