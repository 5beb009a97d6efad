// Assertions of the argument types of an attention call.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attn/attention/block_mask.hpp"
#include "attn/core/argument_types.hpp"
#include "attn/core/element.hpp"

ATTN_NAMESPACE_BEGIN

namespace detail {

/// The error in the type of a functor.
enum class FunctorFault { none, is_mutable, takes_others, is_bare };

/// Functors must be callable as const, because several threads call one at the same time.
template <class F, class... Arguments>
inline constexpr FunctorFault fault_of =
    std::is_invocable_v<const F&, Arguments...> ? FunctorFault::none
    : std::is_invocable_v<F&, Arguments...>     ? FunctorFault::is_mutable
                                                : FunctorFault::takes_others;

template <class T, class Functor>
inline constexpr FunctorFault functor_fault = FunctorFault::is_bare;
template <class T, class F>
inline constexpr FunctorFault functor_fault<T, ScoreMod<F>> = fault_of<F, T, int, int, int, int>;
template <class T, class F>
inline constexpr FunctorFault functor_fault<T, ProbMod<F>> = fault_of<F, T, int, int, int, int>;
template <class T, class F>
inline constexpr FunctorFault functor_fault<T, MaskMod<F>> = fault_of<F, int, int, int, int>;
template <class T, class F>
inline constexpr FunctorFault functor_fault<T, BlockMask<F>> = functor_fault<T, MaskMod<F>>;

template <class Functor, class T>
void assert_functor() {
  constexpr FunctorFault fault = functor_fault<T, Functor>;
  static_assert(fault != FunctorFault::is_bare,
                "what follows the options must be score_mod(f), mask_mod(f) or prob_mod(f), which "
                "says what a functor is");
  constexpr bool is_const = fault != FunctorFault::is_mutable;
  static_assert(is_const, "functors are shared by threads: a lambda must not be `mutable`");
  constexpr bool is_callable = fault != FunctorFault::takes_others;
  static_assert(is_callable || !is_mod<ScoreMod, Functor>,
                "score_mod: the functor must be callable as f(score, b, h, i, j), and with its "
                "parameters behind them, of the type of the score");
  static_assert(is_callable || !is_mod<ProbMod, Functor>,
                "prob_mod: the functor must be callable as f(weight, b, h, i, j)");
  static_assert(is_callable || !is_mod<MaskMod, Functor>,
                "mask_mod: the functor must be callable as f(b, h, i, j)");
}

/// Checks of the argument types of scaled_dot_product_attention(q, k, v, out, .., functors). Where
/// is_good is false, the body of the call is not compiled, since it would add pages of errors. The
/// assertions are separate, because clang rejects constants of a class in which an assertion
/// failed.
template <class Q, class K, class V, class Out, class... Functors>
struct CallTypes {
  using In = scalar_t<Q>;
  using T = Accumulator<In>;  // the score type that functors take
  static constexpr bool has_ranks =
      rank_v<Q> == 4 && rank_v<K> == 4 && rank_v<V> == 4 && rank_v<Out> == 4;
  static constexpr bool is_float =
      std::same_as<In, float> || std::same_as<In, double> || Float16Element<In>;
  /// Whether element types are equal, or queries are float and keys and values 16-bit.
  static constexpr bool is_one_type =
      std::same_as<scalar_t<V>, scalar_t<K>> && std::same_as<scalar_t<Out>, In> &&
      (std::same_as<scalar_t<K>, In> || (std::same_as<In, float> && Float16Element<scalar_t<K>>));
  static constexpr bool is_writable = !std::is_const_v<typename view_t<Out>::element_type>;
  static constexpr bool is_good = has_ranks && is_float && is_one_type && is_writable &&
                                  ((functor_fault<T, Functors> == FunctorFault::none) && ...);
};

template <class Q, class K, class V, class Out, class... Functors>
void assert_call_types() {
  using Types = CallTypes<Q, K, V, Out, Functors...>;
  ATTN_ASSERT_AXES(Q, 4, "attention: q", "(batch, heads, seq, dim; split_heads() makes them)");
  ATTN_ASSERT_AXES(K, 4, "attention: k", "(batch, heads, seq, dim; split_heads() makes them)");
  ATTN_ASSERT_AXES(V, 4, "attention: v", "(batch, heads, seq, dim; split_heads() makes them)");
  ATTN_ASSERT_AXES(Out, 4, "attention: out", "(batch, heads, seq, dim; split_heads() makes them)");
  static_assert(Types::is_float,
                "attention: the elements of q must be float, double, bfloat16 or float16");
  static_assert(Types::is_one_type,
                "attention: q, k, v and out must have one element type, but for float queries on "
                "keys and values of 16 bits");
  ATTN_ASSERT_WRITABLE(Out, "attention: out");
  (assert_functor<Functors, typename Types::T>(), ...);
}

/// The same checks for scaled_dot_product_attention_backward(): all tensors have the element type
/// of q, but 16-bit tensors may be mixed with float.
template <class D, class Q, class K, class V, class Out, class DQ, class DK, class DV,
          class... Functors>
struct BackwardTypes {
  using T = Accumulator<scalar_t<Q>>;
  template <class X>
  static constexpr bool has_element =
      std::same_as<scalar_t<X>, T> || (std::same_as<T, float> && Float16Element<scalar_t<X>>);
  static constexpr bool fit_elements =
      has_element<D> && has_element<Out> && has_element<DQ> && has_element<DK> && has_element<DV>;
  template <class X>
  static constexpr bool is_gradient =
      rank_v<X> == 4 && !std::is_const_v<typename view_t<X>::element_type>;
  // out is read only.
  static constexpr bool is_good = CallTypes<Q, K, V, Tensor4<scalar_t<Q>>&, Functors...>::is_good &&
                                  fit_elements && rank_v<D> == 4 && rank_v<Out> == 4 &&
                                  is_gradient<DQ> && is_gradient<DK> && is_gradient<DV>;
};

template <class D, class Q, class K, class V, class Out, class DQ, class DK, class DV,
          class... Functors>
void assert_backward_types() {
  assert_call_types<Q, K, V, Tensor4<scalar_t<Q>>&, Functors...>();
  constexpr bool fit_elements =
      BackwardTypes<D, Q, K, V, Out, DQ, DK, DV, Functors...>::fit_elements;
  static_assert(fit_elements,
                "attention's backward: d_out, out and the gradients must have the element type of "
                "q, but for floats of 16 bits beside float");
  ATTN_ASSERT_AXES_OF(D, Q, "attention's backward: d_out", "q");
  ATTN_ASSERT_AXES_OF(Out, Q, "attention's backward: out", "q");
  ATTN_ASSERT_AXES_OF(DQ, Q, "attention's backward: d_q", "q");
  ATTN_ASSERT_AXES_OF(DK, Q, "attention's backward: d_k", "q");
  ATTN_ASSERT_AXES_OF(DV, Q, "attention's backward: d_v", "q");
  ATTN_ASSERT_WRITABLE(DQ, "attention's backward: d_q");
  ATTN_ASSERT_WRITABLE(DK, "attention's backward: d_k");
  ATTN_ASSERT_WRITABLE(DV, "attention's backward: d_v");
}

}  // namespace detail

ATTN_NAMESPACE_END
