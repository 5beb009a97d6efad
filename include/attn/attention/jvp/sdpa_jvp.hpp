// scaled_dot_product_attention_jvp: attention and its tangent in one pass (forward mode).
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attn/attention/functors/functors_backward.hpp"
#include "attn/attention/jvp/driver.hpp"
#include "attn/attention/sdpa.hpp"

ATTN_NAMESPACE_BEGIN

namespace detail {

/// Throws ValueError for outputs on request that have no tangent, and for int8 products.
template <class T>
void refuse_without_tangent(std::string_view function, const AttentionOptions<T>& options) {
  refuse_requested_outputs(function, "not be given, because it has no tangent", options);
  if (options.precision.is_int8()) {
    throw ValueError(message(function, "precision", "be exact", "int8"));
  }
}

/// The options of JvpProblem::of_queries: tangents of biases instead of biases and boolean masks.
template <class E, class KV, class T>
AttentionOptions<T> tangent_options(std::string_view function, const AttentionOptions<T>& options,
                                    const AttentionTangents<E, KV>& tangents) {
  const auto check = [&](std::string_view name, const auto& of, const auto& tangent) {
    if (!tangent) return;
    if (!of) {
      throw ValueError(message(function, name, "be given only together with its option", "alone"));
    }
    check_shape(function, name, of.shape(), tangent.shape());
  };
  check("tangents.sinks", options.sinks, tangents.sinks);
  check("tangents.alibi_slopes", options.alibi_slopes, tangents.alibi_slopes);
  check("tangents.batch_alibi_slopes", options.batch_alibi_slopes, tangents.batch_alibi_slopes);
  check("tangents.relative_bias", options.relative_bias, tangents.relative_bias);
  check("tangents.qv", options.qv, tangents.qv);
  check("tangents.d_lse", options.lse, tangents.d_lse);
  if (const auto& bias = tangents.relative_bias; bias && bias.stride(1) != 1) {
    throw_shape(function, "tangents.relative_bias",
                "have innermost stride 1 (these are the strides)", bias.strides());
  }
  AttentionOptions<T> result = options;
  result.softcap = 0;
  result.sinks = {};
  result.lse = {};
  result.alibi_slopes = tangents.alibi_slopes;
  result.batch_alibi_slopes = tangents.batch_alibi_slopes;
  result.relative_bias = tangents.relative_bias;
  result.mask.num_dense = 0;
  std::size_t part = 0;
  for (int at = 0; at < options.mask.num_dense; ++at) {
    Mask::Dense dense = options.mask.dense[static_cast<std::size_t>(at)];
    if (dense.kind != Mask::Dense::Kind::add) continue;
    const TensorView4<const T>& tangent = tangents.bias[part++];
    if (!tangent) continue;
    check_shape(function, "tangents.bias", dense.shape, tangent.shape());
    dense.data = tangent.data();
    for (std::size_t axis = 0; axis < 4; ++axis) {
      dense.strides[axis] = dense.shape[axis] == 1 ? 0 : tangent.strides()[axis];
    }
    result.mask.dense[static_cast<std::size_t>(result.mask.num_dense++)] = dense;
  }
  for (; part < tangents.bias.size(); ++part) {
    if (!tangents.bias[part]) continue;
    throw ValueError(message(function, "tangents.bias",
                             "have one view for each additive part of the mask", "more of them"));
  }
  return result;
}

/// The tangent if it is given, otherwise zeros: `zero_row` holds as many zeros as a row has
/// elements.
template <class E>
TensorView4<const E> tangent_or_zero(std::string_view name, const TensorView4<const E>& tangent,
                                     const Shape<4>& shape, const void* zero_row) {
  constexpr std::string_view kFunction = "scaled_dot_product_attention_jvp";
  if (!tangent) return {static_cast<const E*>(zero_row), shape, {0, 0, 0, 1}};
  check_shape(kFunction, name, shape, tangent.shape());
  if (tangent.extent(3) > 1 && tangent.stride(3) != 1) {
    throw_shape(kFunction, name, "have innermost stride 1 (these are the strides)",
                tangent.strides());
  }
  return tangent;
}

/// Binds the tangents of a functor's parameters and its derivatives.
template <class T, class Functor, class Views>
void bind_derivatives(Isa isa, const Functor& functor, const Views& tangents,
                      JvpProblem<T>& problem) {
  if constexpr (is_mod<ScoreMod, Functor>) {
    constexpr std::string_view kFunction = "scaled_dot_product_attention_jvp";
    const auto parameters = parameter_extents(functor.f, problem.forward.num_heads());
    for (std::size_t n = 0; n < kMaxScoreParameters; ++n) {
      problem.score_parameters[n] = tangents[n];
      if (!tangents[n]) continue;
      if (parameters[n] == 0) {
        throw ValueError(message(kFunction, "tangents.score_parameters",
                                 "have one view for each parameter of the score_mod",
                                 "more of them"));
      }
      check_shape(kFunction, "tangents.score_parameters", Shape<1>{parameters[n]},
                  tangents[n].shape());
    }
    problem.score_derivative = derivative_of<T>(isa, functor);
    problem.parameter_derivatives = parameter_derivatives_of<T>(isa, functor, tangents);
  } else if constexpr (is_mod<ProbMod, Functor>) {
    problem.prob_derivative = derivative_of<T>(isa, functor);
  }
}

template <class E, class KV, class T, class... Functors>
void attention_jvp(const TensorView4<const E>& q, const TensorView4<const KV>& k,
                   const TensorView4<const KV>& v, const AttentionTangents<E, KV>& tangents,
                   const TensorView4<E>& out, const TensorView4<E>& d_out,
                   const AttentionOptions<T>& options, const Functors&... functors) {
  constexpr std::string_view kFunction = "scaled_dot_product_attention_jvp";
  const AttentionProblem<T> forward = make_problem_with<T>(q, k, v, out, options, functors...);
  refuse_without_tangent(kFunction, options);
  AttentionOptions<T> of_queries = tangent_options(kFunction, options, tangents), of_keys = options;
  of_keys.lse = {};
  check_shape(kFunction, "d_out", out.shape(), d_out.shape());
  if (d_out.extent(3) > 1 && d_out.stride(3) != 1) {
    throw_shape(kFunction, "d_out", "have innermost stride 1 (these are the strides)",
                d_out.strides());
  }
  const index_t width = (std::max)(q.extent(3), v.extent(3));
  const Scratch<double> zeros(options.execution.scratch(), width);
  std::fill_n(zeros.data(), width, 0.0);
  const auto d_q = tangent_or_zero<E>("tangents.q", tangents.q, q.shape(), zeros.data());
  const auto d_k = tangent_or_zero<KV>("tangents.k", tangents.k, k.shape(), zeros.data());
  const auto d_v = tangent_or_zero<KV>("tangents.v", tangents.v, v.shape(), zeros.data());
  if (options.qv) {
    of_queries.qv =
        tangent_or_zero<T>("tangents.qv", tangents.qv, options.qv.shape(), zeros.data());
  }
  const auto problem_of =
      [&](const StoredView<const void>& queries, const StoredView<const void>& keys,
          const StoredView<const void>& values, const AttentionOptions<T>& with) {
        AttentionProblem<T> result{.q = queries,
                                   .k = keys,
                                   .v = values,
                                   .out = d_out,
                                   .options = with,
                                   .scale = forward.scale,
                                   .scores = forward.scores,
                                   .heads_per_kv_head = forward.heads_per_kv_head};
        // Tangents need no mask functor, but the blocks that it keeps.
        result.functors.mask.object = forward.functors.mask.object;
        result.functors.classify = forward.functors.classify;
        result.functors.blocks = forward.functors.blocks;
        result.gathered = forward.gathered;
        return result;
      };
  const bool has_v = static_cast<bool>(tangents.v);
  JvpProblem<T> problem{.forward = forward,
                        .of_queries = problem_of(d_q, k, v, of_queries),
                        .of_keys = problem_of(q, d_k, d_v, of_keys),
                        .has_query_tangents = tangents.q || tangents.qv,
                        .has_key_tangents = tangents.k || (has_v && options.qv),
                        .has_value_tangents = has_v,
                        .sinks = tangents.sinks,
                        .d_lse = tangents.d_lse};
  if (tangents.alibi_slopes) {
    const auto& slopes = tangents.alibi_slopes;
    problem.of_queries.alibi_slopes = {
        slopes.data(), {forward.batch(), forward.num_heads()}, {0, slopes.stride(0)}};
  } else if (tangents.batch_alibi_slopes) {
    problem.of_queries.alibi_slopes = tangents.batch_alibi_slopes;
  }
  [[maybe_unused]] const Isa isa = options.execution.instruction_set();
  (bind_derivatives(isa, functors, tangents.score_parameters, problem), ...);
  const auto more = [](const auto& view) { return static_cast<bool>(view); };
  if (!problem.score_derivative && std::ranges::any_of(tangents.score_parameters, more)) {
    throw ValueError(message(kFunction, "tangents.score_parameters",
                             "be given only together with a score_mod", "alone"));
  }
  backend<family::AttentionTangents, KV, T>(options.execution).jvp(problem, options.execution);
}

}  // namespace detail

/// out = scaled_dot_product_attention(q, k, v, options, functors...), and d_out, its tangent: the
/// derivative of out along the given tangents of q, k and v, and of biases, slopes, sinks, qv and
/// score parameters (see AttentionTangents).
///
/// Shapes: tangents have the shapes of their inputs, d_out that of out. The call takes every option
/// of scaled_dot_product_attention() except weights, scores and their sums, which have no tangent,
/// and precision other than exact. out has the bits of the forward call, except where that call
/// multiplies pairs of bfloat16: there it is equal up to rounding. One pass over the keys computes
/// both (two passes with a prob_mod), without a matrix of scores in memory; the bits are the same
/// on any number of threads and in any batch. d_out is computed in the precision of the sums and
/// rounded once. A fully masked query has tangent 0, or with MaskedRow::mean the tangent of the
/// mean; masked keys and tangents of masked keys are not read. A score_mod and a prob_mod are
/// called with a Dual and must be generic over their first argument, a score_mod also over its
/// parameters. d_out must not overlap other tensors. Throws what the forward call throws, and
/// ShapeError or ValueError for wrong tangents, before anything is written.
///
/// With weights p and the tangent d_s of the scores, row by row: d_lse = sum of p d_s, d_out = sum
/// of p (d_v + d_s v) - d_lse out.
template <TensorLike Q, TensorLike K, TensorLike V, TensorLike Out, TensorLike DOut,
          class... Functors>
void scaled_dot_product_attention_jvp(
    const Q& q, const K& k, const V& v, const AttentionTangents<scalar_t<Q>, scalar_t<K>>& tangents,
    Out&& out, DOut&& d_out, const AttentionOptions<Accumulator<scalar_t<Q>>>& options = {},
    const Functors&... functors) {
  detail::assert_call_types<Q, K, V, Out, Functors...>();
  ATTN_ASSERT_OUTPUT_LIKE(DOut, Q, "attention's jvp: d_out", "q");
  if constexpr (detail::CallTypes<Q, K, V, Out, Functors...>::is_good &&
                detail::CallTypes<Q, K, V, DOut, Functors...>::is_good) {
    using E = scalar_t<Q>;
    using KV = scalar_t<K>;
    detail::attention_jvp<E, KV>(const_view(q), const_view(k), const_view(v), tangents,
                                 view_of(out), view_of(d_out), options, functors...);
  }
}

ATTN_NAMESPACE_END
