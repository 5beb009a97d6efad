// scaled_dot_product_attention_backward_jvp: gradients of attention and their tangents.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attn/attention/jvp/sdpa_jvp.hpp"
#include "attn/attention/sdpa_backward.hpp"
#include "attn/core/dual/dual_view.hpp"

ATTN_NAMESPACE_BEGIN

namespace detail {

/// Throws ValueError for options whose gradients have no tangent here.
template <class T, class... Functors>
void refuse_without_second_derivative(std::string_view function,
                                      const AttentionOptions<T>& options) {
  const std::pair<std::string_view, bool> refused[] = {
      {"qv", static_cast<bool>(options.qv)},
      {"masked_row", options.masked_row == MaskedRow::mean},
      {"dropout", options.dropout.p > 0},
      {"gather", static_cast<bool>(options.gather)},
      {"score_mod", (is_mod<ScoreMod, Functors> || ...)},
      {"prob_mod", (is_mod<ProbMod, Functors> || ...)}};
  for (const auto& [name, given] : refused) {
    if (!given) continue;
    throw ValueError(message(function, name, "not be given: it has no second derivative", "one"));
  }
  if (options.precision != AttentionPrecision::exact) {
    throw ValueError(message(function, "precision", "be exact", "another one"));
  }
}

/// Checks that the tangent has the shape of its tensor and innermost stride 1.
template <class T, int Rank>
void check_tangent(std::string_view name, const DualView<T, Rank>& x) {
  constexpr std::string_view kFunction = "scaled_dot_product_attention_backward_jvp";
  check_shape(kFunction, name, x.value.shape(), x.tangent.shape());
  if (Rank == 4 && x.tangent.extent(Rank - 1) > 1 && x.tangent.stride(Rank - 1) != 1) {
    throw_shape(kFunction, name, "have innermost stride 1 (these are the strides)",
                x.tangent.strides());
  }
}

}  // namespace detail

/// The gradients of scaled_dot_product_attention(q, k, v, out, options, functors...) and their
/// tangents: adds to d_q, d_k and d_v what scaled_dot_product_attention_backward() computes, and to
/// their tangents its derivative along the tangents of d_out, q, k and v.
///
/// Shapes are those of the backward call, of tensors and tangents alike; innermost strides are 1.
/// out, lse and their tangents are those that scaled_dot_product_attention_jvp() returned for the
/// same options. Takes masks (of positions, lengths, documents, dense and functors), biases and
/// ALiBi slopes, which are constant, sinks, scale, softcap, packed sequences and grouped heads.
/// Refuses qv, MaskedRow::mean, dropout, gathered keys, pages, score_mod, prob_mod and precision
/// other than exact. Keys and values that a query does not see must be finite, unless no query of
/// the block sees them. No matrix of scores is stored. The bits are the same on any number of
/// threads. Throws ShapeError, DTypeError or ValueError before anything is written.
///
/// With t(x) the tangent of x, weights p, d_p = d_out v^T, D = d_out . out and d_s = p (d_p - D):
/// t(p) = p (t(s) - t(lse)), t(d_s) = d_s (t(s) - t(lse)) + p (t(d_p) - t(D)), and products such as
/// d_q = scale d_s k have the tangent scale (t(d_s) k + d_s t(k)).
template <std::floating_point T, class... Functors>
void scaled_dot_product_attention_backward_jvp(
    const std::type_identity_t<DualView<const T, 4>>& d_out,
    const std::type_identity_t<DualView<const T, 4>>& q,
    const std::type_identity_t<DualView<const T, 4>>& k,
    const std::type_identity_t<DualView<const T, 4>>& v,
    const std::type_identity_t<DualView<const T, 4>>& out,
    const std::type_identity_t<DualView<const T, 3>>& lse, const DualView<T, 4>& d_q,
    const std::type_identity_t<DualView<T, 4>>& d_k,
    const std::type_identity_t<DualView<T, 4>>& d_v,
    const std::type_identity_t<AttentionOptions<T>>& options = {}, const Functors&... functors) {
  detail::refuse_without_second_derivative<T, Functors...>(
      "scaled_dot_product_attention_backward_jvp", options);
  const detail::BackwardProblem<T> value =
      detail::make_backward_problem<T>(d_out.value, q.value, k.value, v.value, out.value, lse.value,
                                       d_q.value, d_k.value, d_v.value, options, {}, functors...);
  detail::check_tangent("tangent of d_out", d_out);
  detail::check_tangent("tangent of q", q);
  detail::check_tangent("tangent of k", k);
  detail::check_tangent("tangent of v", v);
  detail::check_tangent("tangent of out", out);
  detail::check_tangent("tangent of lse", lse);
  detail::check_tangent("tangent of d_q", d_q);
  detail::check_tangent("tangent of d_k", d_k);
  detail::check_tangent("tangent of d_v", d_v);
  // BackwardProblem holds it for reading only.
  const TensorView4<T> d_of_out(const_cast<T*>(out.tangent.data()), out.tangent.shape(),
                                out.tangent.strides());
  const detail::AttentionProblem<T>& forward = value.forward;
  const detail::BackwardProblem<T> tangent{
      .forward = {.q = q.tangent,
                  .k = k.tangent,
                  .v = v.tangent,
                  .out = d_of_out,
                  .options = options,
                  .scale = forward.scale,
                  .scores = forward.scores,
                  .heads_per_kv_head = forward.heads_per_kv_head},
      .d_out = d_out.tangent,
      .lse = lse.tangent,
      .d_q = d_q.tangent,
      .d_k = d_k.tangent,
      .d_v = d_v.tangent};
  detail::backend<family::AttentionTangents, T>(options.execution)
      .backward_jvp({value, tangent}, options.execution);
}

ATTN_NAMESPACE_END
