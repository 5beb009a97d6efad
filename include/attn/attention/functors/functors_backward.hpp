// Derivatives of score_mod and prob_mod.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attn/attention/functors.hpp"
#include "attn/core/dual/dual.hpp"

ATTN_NAMESPACE_BEGIN

namespace detail {

/// For each target, the loop over a row that contains the derivative of functor F.
template <class T, class F>
struct DerivativeLoop {
  decltype(RowFunctor<T>::apply) apply;
};

/// For each target, the loop over a row that contains the derivative of F with respect to parameter
/// K.
template <class T, class F, std::size_t K>
struct ParameterDerivativeLoop {
  decltype(RowFunctor<T>::apply) apply;
};

}  // namespace detail

ATTN_NAMESPACE_END

#define ATTN_KERNEL_TEXT_IN_PROGRAM
#define ATTN_KERNEL_TEXT "attn/attention/functors/functors_backward.inc.hpp"
#include "attn/simd/foreach_isa.hpp"
#undef ATTN_KERNEL_TEXT_IN_PROGRAM

ATTN_NAMESPACE_BEGIN

namespace detail {

template <class T, class F>
inline constexpr bool takes_dual = std::is_invocable_v<const F&, Dual<T>, int, int, int, int>;

/// The derivative of a functor: turns a row of scores or weights x into f'(x). The functor must
/// outlive the call.
template <class T, template <class> class Mod, class F>
RowFunctor<T> derivative_of(Isa isa, const Mod<F>& functor) {
  static_assert(takes_dual<T, F>,
                "backward calls a score_mod or prob_mod with a Dual: its first argument must be of "
                "any type, as in score_mod([](auto score, int b, int h, int i, int j) { .. }), and "
                "so must its parameters");
  if constexpr (takes_dual<T, F>) {
    return {&functor.f, table_of<DerivativeLoop<T, F>>(isa).apply};
  } else {
    return {};  // the assertion above ensures this
  }
}

/// Derivatives of the score functor with respect to the parameters whose gradient or tangent is in
/// `wanted`; each takes a row of scores.
template <class T, class F, class View>
std::array<RowFunctor<T>, kMaxScoreParameters> parameter_derivatives_of(
    Isa isa, const ScoreMod<F>& functor, const std::array<View, kMaxScoreParameters>& wanted) {
  std::array<RowFunctor<T>, kMaxScoreParameters> result{};
  if constexpr (is_bound_score<F> && takes_dual<T, F>) {
    const auto add = [&]<std::size_t K>(std::integral_constant<std::size_t, K>) {
      if (wanted[K])
        result[K] = {&functor.f, table_of<ParameterDerivativeLoop<T, F, K>>(isa).apply};
    };
    [&]<std::size_t... K>(std::index_sequence<K...>) {
      (add(std::integral_constant<std::size_t, K>{}), ...);
    }(std::make_index_sequence<F::kCount>{});
  }
  return result;
}

}  // namespace detail

ATTN_NAMESPACE_END
