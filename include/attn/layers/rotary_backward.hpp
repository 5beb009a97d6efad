// Backward of rotary_embedding: turning back.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attn/layers/rotary.hpp"

ATTN_NAMESPACE_BEGIN

/// Of rotary_embedding(x, cos, sin, position_ids): d_x is d_out turned by the negatives of the same
/// angles, since a rotation's transpose is its inverse. Shapes and errors as there; d_x may be
/// d_out.
template <TensorLike D, TensorLike Cos, TensorLike Sin, TensorLike Ids, TensorLike DX>
  requires std::same_as<scalar_t<Ids>, index_t>
void rotary_embedding_backward(const D& d_out, const Cos& cos, const Sin& sin,
                               const Ids& position_ids, DX&& d_x,
                               RotaryPairs pairs = RotaryPairs::halves,
                               const Execution& execution = {}) {
  using T = scalar_t<D>;
  const detail::RotaryProblem<T> problem{const_view(d_out),
                                         const_view(cos),
                                         const_view(sin),
                                         const_view(position_ids),
                                         pairs,
                                         view_of(d_x),
                                         true};
  detail::check_rotary(problem);
  detail::backend<family::Rotary, T>(execution).rotary(problem, execution);
}

ATTN_NAMESPACE_END
