// scaled_dot_product_attention: the public attention function.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attn/attention/block_mask.hpp"
#include "attn/attention/call/argument_types.hpp"
#include "attn/attention/call/problem_checks.hpp"
#include "attn/attention/forward/forward.hpp"
#include "attn/attention/functors.hpp"
#include "attn/attention/paths/code_path.hpp"

ATTN_NAMESPACE_BEGIN

namespace detail {

/// Calls make_problem() with functors, which must outlive the call.
template <class T, class... Functors>
AttentionProblem<T> make_problem_with(const StoredView<const void>& q,
                                      const StoredView<const void>& k,
                                      const StoredView<const void>& v, const StoredView<void>& out,
                                      const AttentionOptions<T>& options,
                                      const Functors&... functors) {
  AttentionProblem<T> problem = make_problem<T>(q, k, v, out, options);
  static_assert((0 + ... + is_mod<ScoreMod, Functors>) <= 1, "one score_mod a call");
  static_assert((0 + ... + is_mod<MaskMod, Functors>) <= 1,
                "one mask_mod or BlockMask a call: join mask_mods by & or |");
  static_assert((0 + ... + is_mod<ProbMod, Functors>) <= 1, "one prob_mod a call");
  if constexpr (sizeof...(Functors) > 0) {
    if (problem.gathered) throw_value("functors", "not be given with gather", "both");
    check_positions(problem.scores, options.first_key);
    const Isa isa = options.execution.instruction_set();
    (bind(isa, functors, problem.functors), ...);
    (check_functor(functors, problem.scores, options.first_key), ...);
  }
  return problem;
}

}  // namespace detail

/// out = softmax(scale q k^T + masks) v, head by head.
///
/// Shapes: q (batch, num_heads, q_len, head_dim), k (batch, num_kv_heads, kv_len, head_dim), v
/// (batch, num_kv_heads, kv_len, head_dim_v), out (batch, num_heads, q_len, head_dim_v); any
/// strides with a unit innermost one. num_heads is a multiple of num_kv_heads: head h reads
/// key/value head h / (num_heads / num_kv_heads). A fully masked query has output 0. A call without
/// queries writes only the outputs on request. out must not overlap q, k or v. Throws ShapeError,
/// DTypeError or ValueError before anything is written. Source: Vaswani et al., "Attention Is All
/// You Need" (2017), equation 1; computed block by block as in Dao et al., "FlashAttention" (2022),
/// without a score matrix in memory.
///
/// Functors follow the options, in any order: score_mod(f), mask_mod(f) or a BlockMask,
/// prob_mod(f), at most one of each; see functors.hpp.
template <TensorLike Q, TensorLike K, TensorLike V, TensorLike Out, class... Functors>
void scaled_dot_product_attention(const Q& q, const K& k, const V& v, Out&& out,
                                  const AttentionOptions<Accumulator<scalar_t<Q>>>& options = {},
                                  const Functors&... functors) {
  using T = Accumulator<scalar_t<Q>>;
  detail::assert_call_types<Q, K, V, Out, Functors...>();
  if constexpr (detail::CallTypes<Q, K, V, Out, Functors...>::is_good) {
    detail::backend<family::Attention, scalar_t<K>, T>(options.execution)
        .forward(detail::make_problem_with<T>(const_view(q), const_view(k), const_view(v),
                                              view_of(out), options, functors...),
                 options.execution);
  }
}

/// Returns the output as a new tensor.
template <TensorLike Q, TensorLike K, TensorLike V, class... Functors>
Tensor4<scalar_t<Q>> scaled_dot_product_attention(
    const Q& q, const K& k, const V& v,
    const AttentionOptions<Accumulator<scalar_t<Q>>>& options = {}, const Functors&... functors) {
  using Out = Tensor4<scalar_t<Q>>;
  Out out;
  detail::assert_call_types<Q, K, V, Out&, Functors...>();
  if constexpr (detail::CallTypes<Q, K, V, Out&, Functors...>::is_good) {
    const Shape<4> shape = const_view(q).shape();
    out = Out::uninitialized({shape[0], shape[1], shape[2], const_view(v).extent(3)});
    scaled_dot_product_attention(q, k, v, out, options, functors...);
  }
  return out;
}

namespace detail {

template <class X>
inline constexpr bool is_options = false;
template <class T>
inline constexpr bool is_options<AttentionOptions<T>> = true;

/// Whether T is neither an output nor options: a functor in the wrong place.
template <class X>
concept NoOptions = !TensorLike<X> && !is_options<X>;

}  // namespace detail

/// Deleted: functors follow the options, and a mask is a field of them. Exists for its error
/// message.
template <TensorLike Q, TensorLike K, TensorLike V, detail::NoOptions F, class... Others>
void scaled_dot_product_attention(const Q&, const K&, const V&, const F&, const Others&...) {
  static_assert(!std::is_same_v<F, F>,
                "attention: functors follow the options, of which masks are: "
                "scaled_dot_product_attention(q, k, v, {.mask = causal()}, score_mod(f))");
}

/// Deleted: q, k and v must be tensors. Exists for its error message.
template <class Q, class K, class V, class... Others>
  requires(!TensorLike<Q> || (TensorLike<K> && !TensorLike<V>))
void scaled_dot_product_attention(const Q&, const K&, const V&, const Others&...) {
  static_assert(!std::is_same_v<Q, Q>,
                "attention: q, k and v come first, and each is a tensor, a view or an Eigen "
                "matrix; TensorView4<const float>(pointer, {batch, heads, seq, dim}) is a view");
}

/// Returns the number of bytes that scaled_dot_product_attention(q, k, v, out, options,
/// functors...) takes from its workspace. A call of these shapes with a Workspace(bytes) made
/// beforehand allocates nothing, on as many threads as options.execution has. Throws what the call
/// itself throws.
template <TensorLike Q, TensorLike K, TensorLike V, TensorLike Out, class... Functors>
std::size_t workspace_bytes(const Q& q, const K& k, const V& v, Out&& out,
                            const AttentionOptions<Accumulator<scalar_t<Q>>>& options = {},
                            const Functors&... functors) {
  using T = Accumulator<scalar_t<Q>>;
  detail::assert_call_types<Q, K, V, Out, Functors...>();
  if constexpr (detail::CallTypes<Q, K, V, Out, Functors...>::is_good) {
    return AttentionPlan(detail::make_problem_with<T>(const_view(q), const_view(k), const_view(v),
                                                      view_of(out), options, functors...),
                         options.execution.threads())
        .workspace_bytes;
  } else {
    return 0;
  }
}

ATTN_NAMESPACE_END
