// The derivatives of a score_mod by its score and of a prob_mod by its weight, as loops over a row of them.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attn/attention/dual.hpp"
#include "attn/attention/functors.hpp"

ATTN_NAMESPACE_BEGIN

namespace detail {

/// The loop over a row of scores that the derivative of a functor F is compiled into.
template <class T, class F>
struct SlopeLoop {
  decltype(RowFunctor<T>::apply) apply;
};

}  // namespace detail

ATTN_NAMESPACE_END

#define ATTN_KERNEL_TEXT_IN_PROGRAM
#define ATTN_KERNEL_TEXT "attn/attention/functors_backward.inc.hpp"
#include "attn/simd/foreach_isa.hpp"
#undef ATTN_KERNEL_TEXT_IN_PROGRAM

ATTN_NAMESPACE_BEGIN

namespace detail {

/// row = f'(row), of a functor that must outlive the call.
template <class T, template <class> class Mod, class F>
RowFunctor<T> slope_of(Isa isa, const Mod<F>& functor) {
  static_assert(std::is_invocable_v<const F&, Dual<T>, int, int, int, int>,
                "backward calls a score_mod or prob_mod with a Dual: its first argument must be of "
                "any type, as in score_mod([](auto score, int b, int h, int i, int j) { .. })");
  return {&functor.f, row_of<SlopeLoop<T, F>>(isa).apply};
}

}  // namespace detail

ATTN_NAMESPACE_END
