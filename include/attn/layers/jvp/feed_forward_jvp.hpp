// Tangent (JVP) of FeedForward.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attn/layers/feed_forward.hpp"
#include "attn/layers/jvp/linear_jvp.hpp"

ATTN_NAMESPACE_BEGIN

namespace detail {

template <class T>
void feed_forward_jvp(const FeedForward<T>& layer, const FeedForward<T>& tangents,
                      const std::type_identity_t<DualView<const T>>& x,
                      const std::type_identity_t<DualView<T>>& out,
                      const std::type_identity_t<DualView<const T>>& residual,
                      const Execution& execution) {
  Shape<3> shape = x.value.shape();
  shape[2] = layer.linear1.out_features();
  const DualScratch<T> memory(shape, execution);
  DualView<T> hidden = memory.view();
  linear_jvp(layer.linear1, tangents.linear1, x, hidden, {}, execution);
  if (layer.gated) {
    const index_t half = shape[2] / 2;
    const DualView<T> gate = hidden.slice(2, 0, half), up = hidden.slice(2, half, 2 * half);
    glu_jvp(layer.gated_unit(), gate.value, gate.tangent, up.value, up.tangent, gate.tangent,
            execution);
    glu(layer.gated_unit(), gate.value, up.value, gate.value, execution);
    hidden = gate;
  } else {
    activate_jvp(layer.activation, hidden.value, hidden.tangent, hidden.tangent, execution);
    activate(layer.activation, hidden.value, hidden.value, execution);
  }
  linear_jvp(layer.linear2, tangents.linear2, hidden, out, residual, execution);
}

}  // namespace detail

/// x, d_x, out and d_out (batch, seq, d_model). Throws ShapeError.
template <class T>
void jvp(const FeedForward<T>& layer, const std::type_identity_t<FeedForward<T>>& tangents,
         Input3<T> x, Input3<T> d_x, Output3<T> out, Output3<T> d_out,
         const Execution& execution = {}) {
  detail::feed_forward_jvp(layer, tangents, detail::dual_input<T>("FeedForward", x, d_x),
                           detail::dual_output<T>("FeedForward", out, d_out), {}, execution);
}

ATTN_NAMESPACE_END
