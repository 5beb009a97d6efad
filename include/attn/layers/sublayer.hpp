// Sublayers: attention or feed-forward with residual and norm.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attn/exec/row_ranges.hpp"
#include "attn/layers/feed_forward.hpp"
#include "attn/layers/multi_head_attention.hpp"

ATTN_NAMESPACE_BEGIN

namespace detail {

/// Norms and factor around an attention or feed-forward f, with the result of forward_sublayer():
///
///   norm_first                   residual + scale f(norm(x)), pre-norm
///   norm_first and behind        residual + scale behind(f(norm(x))), Gemma 2
///   behind alone                 residual + scale behind(f(x)), OLMo 2
///   norm_first without a norm    residual + scale f(x), the first attention of ModernBERT
///   neither                      norm(residual + f(x)), post-norm
///
/// `norm` and `behind` are none if they have no weight.
template <class T>
struct SublayerNorms {
  const Norm<T>* norm;
  const Norm<T>* behind;
  bool norm_first;
  double scale;

  bool has_behind() const { return behind != nullptr && behind->weight; }
  bool is_pre_norm() const { return norm_first && norm->weight; }
  bool is_post_norm() const { return !norm_first && !has_behind(); }
  /// Whether the residual is added after f instead of by f itself.
  bool adds_residual() const { return has_behind() || scale != 1; }
};

/// out = residual + scale x; out may be the residual.
template <class T>
void add_scaled(const TensorView3<const T>& residual, double scale, const TensorView3<const T>& x,
                const TensorView3<T>& out, const Execution& execution) {
  const index_t seq = out.extent(1), dim = out.extent(2);
  const auto factor = static_cast<Accumulator<T>>(scale);
  for_rows(execution.threads(), out.extent(0) * seq, dim, [&](index_t row) {
    const T* from = residual.at_index({row / seq, row % seq, 0});
    const T* branch = x.at_index({row / seq, row % seq, 0});
    T* to = out.at_index({row / seq, row % seq, 0});
    for (index_t i = 0; i < dim; ++i) {
      const Accumulator<T> sum = from[i * residual.stride(2)], y = branch[i * x.stride(2)];
      to[i * out.stride(2)] = static_cast<T>(sum + factor * y);
    }
  });
}

/// See SublayerNorms. run(from, residual, to) computes to = f(from) + residual, of which the
/// residual may be empty and may be `to`. out may be x or the residual.
template <class T, class F>
void forward_sublayer(const SublayerNorms<T>& norms, const TensorView3<const T>& x,
                      const TensorView3<const T>& residual, const TensorView3<T>& out,
                      const Execution& execution, F run) {
  Scratch<T> memory(execution.scratch(), (norms.adds_residual() ? 2 : 1) * x.size());
  const TensorView3<T> between(memory.data(), x.shape());
  if (norms.is_post_norm()) {
    run(x, residual, between);
    norms.norm->forward(between, out, execution);
    return;
  }
  TensorView3<const T> from = x;
  if (norms.is_pre_norm()) {
    norms.norm->forward(x, between, execution);
    from = between;
  }
  if (!norms.adds_residual()) return run(from, residual, out);
  const TensorView3<T> branch(memory.data() + x.size(), x.shape());
  run(from, TensorView3<const T>(), branch);
  if (norms.has_behind()) norms.behind->forward(branch, branch, execution);
  add_scaled<T>(residual, norms.scale, branch, out, execution);
}

}  // namespace detail

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
  detail::CallGuard guard(call);
  detail::forward_sublayer<T>(
      {.norm = &norm, .behind = nullptr, .norm_first = norm_first, .scale = 1}, x, x, out,
      options.execution, [&](const auto& from, const auto& residual, const auto& to) {
        const auto normed = [&](const TensorView3<const T>& input) -> TensorView3<const T> {
          return detail::is_same_view(input, x) ? from : input;
        };
        call.residual = residual;
        attention.forward(from, normed(key), normed(value), to, options, call, functors...);
      });
  guard.commit();
}

/// out = norm(x + feed_forward(x)); with norm_first x + feed_forward(norm(x)). out may be x.
/// Throws ShapeError.
template <class T>
void feed_forward_sublayer(const FeedForward<T>& feed_forward, const Norm<T>& norm, bool norm_first,
                           TensorView3<const T> x, TensorView3<T> out,
                           const Execution& execution = {}) {
  check_shape("feed_forward_sublayer", "out", x.shape(), out.shape());
  detail::forward_sublayer<T>(
      {.norm = &norm, .behind = nullptr, .norm_first = norm_first, .scale = 1}, x, x, out,
      execution, [&](const auto& from, const auto& residual, const auto& to) {
        feed_forward.forward(from, to, residual, execution);
      });
}

ATTN_NAMESPACE_END
