// scaled_dot_product_attention_backward: gradients of attention from output and lse.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attn/attention/backward/driver.hpp"
#include "attn/attention/functors/functors_backward.hpp"
#include "attn/attention/sdpa.hpp"
#include "attn/kernels/rows/convert.hpp"
#include "attn/kernels/rows/in_floats.hpp"

ATTN_NAMESPACE_BEGIN

namespace detail {

/// Throws ValueError for outputs on request that have no gradient: otherwise a loss that uses them
/// would silently lose its gradient.
template <class T>
void refuse_without_gradient(std::string_view function, const AttentionOptions<T>& options) {
  refuse_requested_outputs(function, "not be given to backward, because it has no gradient",
                           options);
}

/// `parameters`: the extent of each parameter of the score_mod.
template <class T>
void check_backward(const BackwardProblem<T>& problem,
                    const std::array<index_t, kMaxScoreParameters>& parameters) {
  constexpr std::string_view kFunction = "scaled_dot_product_attention_backward";
  const AttentionProblem<T>& forward = problem.forward;
  const AttentionOptions<T>& options = forward.options;
  const auto check = [&](std::string_view name, const auto& expected, const auto& view) {
    check_shape(kFunction, name, expected, view.shape());
    if (view.extent(3) > 1 && view.stride(3) != 1) {
      throw_shape(kFunction, name, "have innermost stride 1 (these are the strides)",
                  view.strides());
    }
  };
  if (forward.paged()) {
    throw ValueError(
        message(kFunction, "block_table", "not be given: pages have no gradient", "one"));
  }
  refuse_without_gradient(kFunction, options);
  check("d_out", forward.out.shape(), problem.d_out);
  check("d_q", forward.q.shape(), problem.d_q);
  check("d_k", forward.k.shape(), problem.d_k);
  check("d_v", forward.v.shape(), problem.d_v);
  const Shape<3> rows{forward.q.extent(0), forward.q.extent(1), forward.q.extent(2)};
  check_shape(kFunction, "lse", rows, problem.lse.shape());
  const AttentionBackwardCall<T>& call = problem.call;
  if (call.d_lse) check_shape(kFunction, "d_lse", rows, call.d_lse.shape());
  std::size_t part = 0;
  for (int at = 0; at < options.mask.num_dense; ++at) {
    const Mask::Dense& dense = options.mask.dense[static_cast<std::size_t>(at)];
    if (dense.kind != Mask::Dense::Kind::add) continue;
    const TensorView4<T>& d_bias = call.d_bias[part++];
    if (d_bias) check_shape(kFunction, "d_bias", dense.shape, d_bias.shape());
  }
  for (; part < call.d_bias.size(); ++part) {
    if (!call.d_bias[part]) continue;
    throw ValueError(message(kFunction, "d_bias",
                             "have one view for each additive part of the mask", "more of them"));
  }
  const auto check_with = [&](std::string_view name, const auto& of, const auto& gradient) {
    if (!gradient) return;
    if (!of)
      throw ValueError(message(kFunction, name, "be given only together with its option", "alone"));
    check_shape(kFunction, name, of.shape(), gradient.shape());
  };
  check_with("d_sinks", options.sinks, call.d_sinks);
  check_with("d_alibi_slopes", options.alibi_slopes, call.d_alibi_slopes);
  check_with("d_batch_alibi_slopes", options.batch_alibi_slopes, call.d_batch_alibi_slopes);
  check_with("d_relative_bias", options.relative_bias, call.d_relative_bias);
  check_with("d_qv", options.qv, call.d_qv);
  if (call.d_qv) check("d_qv", options.qv.shape(), call.d_qv);
  for (std::size_t n = 0; n < parameters.size(); ++n) {
    const TensorView1<T>& d = call.d_score_parameters[n];
    if (d && parameters[n] == 0) {
      throw ValueError(message(kFunction, "d_score_parameters",
                               "have one view for each parameter of the score_mod",
                               "more of them"));
    }
    if (d) check_shape(kFunction, "d_score_parameters", Shape<1>{parameters[n]}, d.shape());
  }
}

/// Whether all tensors have elements of type T.
template <class T, class... X>
inline constexpr bool is_of_element = (std::same_as<scalar_t<X>, T> && ...);

/// Checks every argument of a backward call; all tensors have elements of type T.
template <class T, class... Functors>
BackwardProblem<T> make_backward_problem(
    const TensorView4<const T>& d_out, const TensorView4<const T>& q, const TensorView4<const T>& k,
    const TensorView4<const T>& v, const TensorView4<const T>& out, const TensorView3<const T>& lse,
    const TensorView4<T>& d_q, const TensorView4<T>& d_k, const TensorView4<T>& d_v,
    const AttentionOptions<T>& options, const AttentionBackwardCall<T>& call,
    const Functors&... functors) {
  // BackwardProblem holds it for reading only.
  const TensorView4<T> result(const_cast<T*>(out.data()), out.shape(), out.strides());
  BackwardProblem<T> problem{.forward = make_problem_with<T>(q, k, v, result, options, functors...),
                             .d_out = d_out,
                             .lse = lse,
                             .d_q = d_q,
                             .d_k = d_k,
                             .d_v = d_v,
                             .call = call};
  std::array<index_t, kMaxScoreParameters> parameters{};
  [[maybe_unused]] const auto bind_derivatives = [&](const auto& functor) {
    using Functor = std::remove_cvref_t<decltype(functor)>;
    const Isa isa = options.execution.instruction_set();
    if constexpr (is_mod<ScoreMod, Functor>) {
      parameters = parameter_extents(functor.f, problem.forward.num_heads());
      auto& wanted = problem.call.d_score_parameters;
      add_gradients_held(functor.f, wanted);
      problem.score_derivative = derivative_of<T>(isa, functor);
      problem.parameter_derivatives = parameter_derivatives_of<T>(isa, functor, wanted);
    } else if constexpr (is_mod<ProbMod, Functor>) {
      problem.prob_derivative = derivative_of<T>(isa, functor);
    }
  };
  (bind_derivatives(functors), ...);
  check_backward(problem, parameters);
  return problem;
}

}  // namespace detail

/// d_q, d_k and d_v of scaled_dot_product_attention(q, k, v, out, options, functors...), from
/// d_out, the out that the call returned and the lse that options.lse requested. For gradients of
/// biases, slopes, sinks, qv and score parameters see AttentionBackwardCall.
///
/// Shapes are those of the forward call; d_q has the shape of q, d_k of k, d_v of v. Each is
/// overwritten; innermost strides are 1. Pass the same options to backward as to forward, but
/// without weights, scores, their sums and max_logits: these have no gradient and are refused; lse
/// is not written. Sums over queries, keys and heads are split by shape alone: the bits are the
/// same on any number of threads. Fully masked rows and masked keys have gradient 0. A score_mod
/// and a prob_mod are called with a Dual and must be generic over their first argument, a score_mod
/// also over its parameters. 16-bit tensors are widened in scratch memory; their gradients are
/// computed in float and rounded once. Throws ShapeError, DTypeError or ValueError (pages,
/// requested weights) before anything is written. With D = d_out . out - d_lse, row by row: d_s = p
/// (d_p - D), d_p = d_out v^T; d_q = scale d_s k, d_k = scale d_s^T q, d_v = p^T d_out.
/// Source: Dao, "FlashAttention-2" (2023), section 3.1.2.
template <TensorLike D, TensorLike Q, TensorLike K, TensorLike V, TensorLike Out, TensorLike DQ,
          TensorLike DK, TensorLike DV, class... Functors>
void scaled_dot_product_attention_backward(
    const D& d_out, const Q& q, const K& k, const V& v, const Out& out,
    std::type_identity_t<TensorView3<const Accumulator<scalar_t<Q>>>> lse, DQ&& d_q, DK&& d_k,
    DV&& d_v, const AttentionOptions<Accumulator<scalar_t<Q>>>& options = {},
    const AttentionBackwardCall<Accumulator<scalar_t<Q>>>& call = {}, const Functors&... functors) {
  using T = Accumulator<scalar_t<Q>>;
  const Execution& execution = options.execution;
  detail::assert_backward_types<D, Q, K, V, Out, DQ, DK, DV, Functors...>();
  if constexpr (!detail::BackwardTypes<D, Q, K, V, Out, DQ, DK, DV, Functors...>::is_good) {
    // The assertion above ensures this.
  } else if constexpr (!detail::is_of_element<T, D, Q, K, V, Out, DQ, DK, DV>) {
    using Wide = detail::WidenedTensor<4>;
    const Wide wide_d_out(const_view(d_out), execution), wide_q(const_view(q), execution),
        wide_k(const_view(k), execution), wide_v(const_view(v), execution),
        wide_out(const_view(out), execution);
    const Wide wide_d_q(view_of(d_q).shape(), execution), wide_d_k(view_of(d_k).shape(), execution),
        wide_d_v(view_of(d_v).shape(), execution);
    scaled_dot_product_attention_backward(
        wide_d_out.view(), wide_q.view(), wide_k.view(), wide_v.view(), wide_out.view(), lse,
        wide_d_q.view(), wide_d_k.view(), wide_d_v.view(), options, call, functors...);
    convert(wide_d_q.view(), d_q, execution);
    convert(wide_d_k.view(), d_k, execution);
    convert(wide_d_v.view(), d_v, execution);
  } else {
    detail::backend<family::AttentionBackward, T>(execution).backward(
        detail::make_backward_problem<T>(const_view(d_out), const_view(q), const_view(k),
                                         const_view(v), const_view(out), lse, view_of(d_q),
                                         view_of(d_k), view_of(d_v), options, call, functors...),
        execution);
  }
}

ATTN_NAMESPACE_END
