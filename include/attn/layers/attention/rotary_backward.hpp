// Backward of rotary_embedding.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attn/layers/attention/rotary.hpp"

ATTN_NAMESPACE_BEGIN

/// The gradient of rotary_embedding(x, cos, sin, position_ids): d_x is d_out rotated by the
/// negative angles, because the transpose of a rotation is its inverse. Shapes and errors as in
/// rotary_embedding(); d_x may be d_out.
template <TensorLike D, TensorLike Cos, TensorLike Sin, TensorLike Ids, TensorLike DX>
void rotary_embedding_backward(const D& d_out, const Cos& cos, const Sin& sin,
                               const Ids& position_ids, DX&& d_x,
                               RotaryPairs pairs = RotaryPairs::halves,
                               const Execution& execution = {}) {
  using T = detail::floating_t<D>;
  using Angle = Accumulator<T>;
  ATTN_ASSERT_FLOATING(D, "rotary_embedding_backward: d_out");
  ATTN_ASSERT_AXES(D, 4, "rotary_embedding_backward: d_out", "(batch, heads, seq, head_dim)");
  ATTN_ASSERT_INPUT(Cos, Angle, 2, "rotary_embedding_backward: cos",
                    "(max_position, rotary_dim / 2)", "d_out");
  ATTN_ASSERT_INPUT_LIKE(Sin, Cos, "rotary_embedding_backward: sin", "cos");
  ATTN_ASSERT_INPUT(Ids, index_t, 2, "rotary_embedding_backward: position_ids", "(batch, seq)",
                    "positions, index_t");
  ATTN_ASSERT_OUTPUT_LIKE(DX, D, "rotary_embedding_backward: d_x", "d_out");
  const detail::RotaryProblem<T> problem{
      .x = detail::view_as<const T, 4>(d_out),
      .cos = detail::view_as<const Angle, 2>(cos),
      .sin = detail::view_as<const Angle, 2>(sin),
      .positions = detail::view_as<const index_t, 2>(position_ids),
      .pairs = pairs,
      .out = detail::view_as<T, 4>(d_x),
      .turns_back = true};
  detail::check_rotary(problem);
  detail::rotary(problem, execution);
}

ATTN_NAMESPACE_END
