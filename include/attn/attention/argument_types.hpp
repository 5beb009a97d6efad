// What the types of an attention call's arguments must be: one readable line each where they are not.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attn/attention/functors.hpp"
#include "attn/core/element.hpp"

ATTN_NAMESPACE_BEGIN

namespace detail {

/// What is wrong with the type of a functor.
enum class FunctorFault { none, is_mutable, takes_others };

/// Threads call one functor at the same time, as a const one.
template <class F, class... Arguments>
inline constexpr FunctorFault fault_of =
    std::is_invocable_v<const F&, Arguments...> ? FunctorFault::none
    : std::is_invocable_v<F&, Arguments...>     ? FunctorFault::is_mutable
                                                : FunctorFault::takes_others;

template <class T, class Functor>
inline constexpr FunctorFault functor_fault = FunctorFault::none;
template <class T, class F>
inline constexpr FunctorFault functor_fault<T, ScoreMod<F>> = fault_of<F, T, int, int, int, int>;
template <class T, class F>
inline constexpr FunctorFault functor_fault<T, ProbMod<F>> = fault_of<F, T, int, int, int, int>;
template <class T, class F>
inline constexpr FunctorFault functor_fault<T, MaskMod<F>> = fault_of<F, int, int, int, int>;

template <class Functor, class T>
void assert_functor() {
  constexpr FunctorFault fault = functor_fault<T, Functor>;
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

/// Of scaled_dot_product_attention(q, k, v, out, .., functors). Where is_good is false, the call is left uncompiled: what
/// it is made of would add pages of errors. The assertions stand apart: clang takes no constant from where one has failed.
template <class Q, class K, class V, class Out, class... Functors>
struct CallTypes {
  using In = scalar_t<Q>;
  using T = Accumulator<In>;  // what functors take
  static constexpr bool has_ranks =
      rank_v<Q> == 4 && rank_v<K> == 4 && rank_v<V> == 4 && rank_v<Out> == 4;
  static constexpr bool is_float =
      std::same_as<In, float> || std::same_as<In, double> || Float16Element<In>;
  /// Or float queries on keys and values of 16 bits.
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
  static_assert(Types::has_ranks,
                "attention: q, k, v and out must have four axes, (batch, heads, seq, dim)");
  static_assert(Types::is_float,
                "attention: the elements of q must be float, double, bfloat16 or float16");
  static_assert(Types::is_one_type,
                "attention: q, k, v and out must have one element type, but for float queries on "
                "keys and values of 16 bits");
  static_assert(Types::is_writable, "attention: out must not be const");
  (assert_functor<Functors, typename Types::T>(), ...);
}

}  // namespace detail

ATTN_NAMESPACE_END
