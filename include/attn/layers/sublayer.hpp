// Sublayers: attention or feed-forward with residual and norm.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attn/layers/feed_forward.hpp"
#include "attn/layers/multi_head_attention.hpp"

ATTN_NAMESPACE_BEGIN

/// out = norm(x + attention(x, key, value)); with norm_first x + attention(norm(x), ..). If key or
/// value is x, it also becomes norm(x). out may be x, not another key or value. Sets call.residual.
/// Throws ShapeError or ValueError as MultiHeadAttention::forward(). Source: "Attention Is All You
/// Need" (2017), section 3.1.
template <class T, class... Functors>
void attention_sublayer(const MultiHeadAttention<T>& attention, const Norm<T>& norm,
                        bool norm_first, TensorView3<const T> x, TensorView3<const T> key,
                        TensorView3<const T> value, TensorView3<T> out,
                        const AttentionOptions<Accumulator<T>>& options = {},
                        MultiHeadAttentionCall<T> call = {}, const Functors&... functors) {
  check_shape("attention_sublayer", "out", x.shape(), out.shape());
  call.residual = x;
  Scratch<T> memory(options.execution.scratch(), x.size());
  const TensorView3<T> between(memory.data(), x.shape());
  if (norm_first) {
    norm.forward(x, between, options.execution);
    const auto normed = [&](const TensorView3<const T>& input) -> TensorView3<const T> {
      return detail::is_same_view(input, x) ? between : input;
    };
    attention.forward(between, normed(key), normed(value), out, options, call, functors...);
  } else {
    detail::CallGuard guard(call);
    attention.forward(x, key, value, between, options, call, functors...);
    norm.forward(between, out, options.execution);
    guard.commit();
  }
}

/// out = norm(x + feed_forward(x)); with norm_first x + feed_forward(norm(x)). out may be x.
/// Throws ShapeError.
template <class T>
void feed_forward_sublayer(const FeedForward<T>& feed_forward, const Norm<T>& norm, bool norm_first,
                           TensorView3<const T> x, TensorView3<T> out,
                           const Execution& execution = {}) {
  check_shape("feed_forward_sublayer", "out", x.shape(), out.shape());
  Scratch<T> memory(execution.scratch(), x.size());
  const TensorView3<T> between(memory.data(), x.shape());
  if (norm_first) {
    norm.forward(x, between, execution);
    feed_forward.forward(between, out, x, execution);
  } else {
    feed_forward.forward(x, between, x, execution);
    norm.forward(between, out, execution);
  }
}

ATTN_NAMESPACE_END
