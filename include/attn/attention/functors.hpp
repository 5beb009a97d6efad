// score_mod, mask_mod, prob_mod: scalar functors, compiled into a loop over a row of scores.
// SPDX-License-Identifier: Apache-2.0
//
// What FlexAttention does with a compiler at run time. A functor is called for whole rows of a
// tile, in loops that are compiled once per instruction set, so that the compiler inlines it and
// makes vectors of it; the kernels call those loops by pointer, 1 call per row and block, and may
// themselves lie in a library.
#pragma once

#include "attn/attention/problem.hpp"
#include "attn/attention/score_parameters.hpp"
#include "attn/simd/rows.hpp"

ATTN_NAMESPACE_BEGIN

/// Which keys or queries: [begin, end).
using IndexRange = detail::KeyRange;

namespace detail {

template <class F>
struct ScoreMod {
  F f;
};
template <class F>
struct ProbMod {
  F f;
};
template <class F>
struct MaskMod {
  F f;
};

template <template <class> class Mod, class X>
inline constexpr bool is_mod = false;
template <template <class> class Mod, class F>
inline constexpr bool is_mod<Mod, Mod<F>> = true;

template <class X>
inline constexpr bool is_functor = is_mod<ScoreMod, X> || is_mod<ProbMod, X> || is_mod<MaskMod, X>;

/// Throws ShapeError unless the parameters of a score_mod fit the heads of a call.
template <class Functor>
void check_parameters(const Functor& functor, index_t num_heads) {
  if constexpr (is_mod<ScoreMod, Functor>) parameter_extents(functor.f, num_heads);
}

template <class F>
concept Classifies = requires(const F& f, index_t n, IndexRange r) {
  { f.classify(n, n, r, r) } -> std::same_as<Visibility>;
};

/// What a mask that says nothing of blocks would say: partial.
template <class F>
Visibility visibility(const F& f, index_t batch, index_t h, IndexRange queries, IndexRange keys) {
  if constexpr (Classifies<F>) {
    return f.classify(batch, h, queries, keys);
  } else {
    return Visibility::partial;
  }
}

/// Both: visible where both are.
template <class A, class B>
struct MaskAnd {
  A a;
  B b;
  bool operator()(int batch, int h, int i, int j) const {
    // Not &&: a branch would keep the loop from becoming vectors.
    return (static_cast<int>(a(batch, h, i, j)) & static_cast<int>(b(batch, h, i, j))) != 0;
  }
  Visibility classify(index_t batch, index_t h, IndexRange queries, IndexRange keys) const
    requires(Classifies<A> || Classifies<B>)
  {
    const Visibility x = visibility(a, batch, h, queries, keys),
                     y = visibility(b, batch, h, queries, keys);
    if (x == Visibility::empty || y == Visibility::empty) return Visibility::empty;
    return x == y ? x : Visibility::partial;
  }
};

/// Either: visible where one of them is.
template <class A, class B>
struct MaskOr {
  A a;
  B b;
  bool operator()(int batch, int h, int i, int j) const {
    return (static_cast<int>(a(batch, h, i, j)) | static_cast<int>(b(batch, h, i, j))) != 0;
  }
  Visibility classify(index_t batch, index_t h, IndexRange queries, IndexRange keys) const
    requires(Classifies<A> || Classifies<B>)
  {
    const Visibility x = visibility(a, batch, h, queries, keys),
                     y = visibility(b, batch, h, queries, keys);
    if (x == Visibility::full || y == Visibility::full) return Visibility::full;
    return x == y ? x : Visibility::partial;
  }
};

}  // namespace detail

/// score = f(score, b, h, i, j) of the scaled score of query i and key j, rows of q and k in batch
/// row b (of packed sequences: in sequence b, each from 0 on). Positions are passed as int, which
/// vectors of float convert at once. `f` must be callable at the same time from many threads.
/// Compilers make vectors of it at -O2 where it has no branches: std::abs(i - j) rather than i > j
/// ? i - j : j - i.
template <class F>
detail::ScoreMod<F> score_mod(F f) {
  return {std::move(f)};
}

/// score = f(score, b, h, i, j, parameters...), of up to 4 parameters that backward gives gradients
/// of: numbers, or tensors and views (num_heads), of which f is handed that of head h, and which
/// must outlive the call. All are handed over in the type of the score.
template <class F, class... P>
  requires(sizeof...(P) > 0 && !(TemporaryTensor<P> || ...))
auto score_mod(F f, P&&... parameters) {
  using Bound = detail::BoundScore<F, detail::Held<std::remove_cvref_t<P>>...>;
  return detail::ScoreMod<Bound>{Bound(std::move(f), detail::held(parameters)...)};
}
template <class F, class... P>
  requires(TemporaryTensor<P> || ...)
void score_mod(F f, P&&... parameters) = delete;  // it would view a tensor that is gone

/// Visible where f(b, h, i, j). A functor may have a member classify(b, h, IndexRange queries,
/// IndexRange keys), which is asked about blocks: Visibility::empty, no pair is visible, and the
/// block is skipped; full, all are, and f is not asked; partial, f decides. Joined by & or |,
/// either functor's answer counts as far as it decides the whole.
template <class F>
detail::MaskMod<F> mask_mod(F f) {
  return {std::move(f)};
}

/// weight = f(weight, b, h, i, j) after softmax, not normalised again; weights of 0 stay 0,
/// whatever f says. Needs a second pass over the scores, since it acts on final weights.
template <class F>
detail::ProbMod<F> prob_mod(F f) {
  return {std::move(f)};
}

namespace detail {

// In the namespace of their operands, where a caller outside of attn finds them.
template <class A, class B>
auto operator&(const MaskMod<A>& a, const MaskMod<B>& b) {
  return mask_mod(MaskAnd<A, B>{a.f, b.f});
}
template <class A, class B>
auto operator|(const MaskMod<A>& a, const MaskMod<B>& b) {
  return mask_mod(MaskOr<A, B>{a.f, b.f});
}

/// A functor over a row of scores or weights, compiled for a target.
template <class T, class Functor>
struct FunctorLoop {
  decltype(RowFunctor<T>::apply) apply;
};

}  // namespace detail

ATTN_NAMESPACE_END

#define ATTN_KERNEL_TEXT_IN_PROGRAM
#define ATTN_KERNEL_TEXT "attn/attention/functors.inc.hpp"
#include "attn/simd/foreach_isa.hpp"
#undef ATTN_KERNEL_TEXT_IN_PROGRAM

ATTN_NAMESPACE_BEGIN

namespace detail {

/// Hangs a functor, which must outlive the call, into `functors`.
template <class T, class Functor>
void bind(Isa isa, const Functor& functor, RowFunctors<T>& functors) {
  if constexpr (is_mod<MaskMod, Functor> && Classifies<decltype(functor.f)>) {
    functors.classify = [](const void* object, index_t b, index_t h, IndexRange queries,
                           IndexRange keys) {
      using F = std::remove_cvref_t<decltype(functor.f)>;
      return static_cast<const F*>(object)->classify(b, h, queries, keys);
    };
  }
  RowFunctor<T>& bound = is_mod<ScoreMod, Functor>  ? functors.score
                         : is_mod<MaskMod, Functor> ? functors.mask
                                                    : functors.prob;
  bound = {&functor.f, row_of<FunctorLoop<T, Functor>>(isa).apply};
}

}  // namespace detail

ATTN_NAMESPACE_END
