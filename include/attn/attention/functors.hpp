// score_mod, mask_mod, prob_mod: user functors, compiled into the loop over scores.
// SPDX-License-Identifier: Apache-2.0
//
// The functors of FlexAttention, compiled by the C++ compiler instead of at run time. The loop over
// a row of scores is compiled together with the functor, once per instruction set, so that the
// compiler inlines and vectorises it. Kernels call this loop through a pointer, once per row and
// key block, because they may be compiled in a library.
#pragma once

#include "attn/attention/call/problem.hpp"
#include "attn/attention/functors/score_parameters.hpp"
#include "attn/simd/tables.hpp"

ATTN_NAMESPACE_BEGIN

/// A range of keys or queries: [begin, end).
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

/// Throws ShapeError if the parameters of a score_mod do not fit the number of heads of the scores.
template <class Functor>
void check_functor(const Functor& functor, const Shape<4>& scores, index_t) {
  if constexpr (is_mod<ScoreMod, Functor>) parameter_extents(functor.f, scores[1]);
}

template <class F>
concept Classifies = requires(const F& f, index_t n, IndexRange r) {
  { f.classify(n, n, r, r) } -> std::same_as<Visibility>;
};

/// Returns f.classify(); partial for a mask without classify().
template <class F>
Visibility visibility(const F& f, index_t batch, index_t h, IndexRange queries, IndexRange keys) {
  if constexpr (Classifies<F>) {
    return f.classify(batch, h, queries, keys);
  } else {
    return Visibility::partial;
  }
}

/// a & b: visible where both keep the key.
template <class A, class B>
struct MaskAnd {
  A a;
  B b;
  bool operator()(int batch, int h, int i, int j) const {
    // Not &&: its branch would prevent vectorisation.
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

/// a | b: visible where at least one keeps the key.
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

/// score = f(score, b, h, i, j): f takes the scaled score of query i and key j of head h in batch
/// row b. With packed sequences b is the sequence, and i and j count from 0 in each sequence; with
/// a first_key, j is the position of the key. Indices are int, which vectors of float convert in
/// one instruction. Several threads call f at the same time. Compilers vectorise f at -O2 if it has
/// no branches: write std::abs(i - j), not i > j ? i - j : j - i.
template <class F>
detail::ScoreMod<F> score_mod(F f) {
  return {std::move(f)};
}

/// score = f(score, b, h, i, j, parameters...) with up to 4 parameters, whose gradients backward
/// can compute. A parameter is a number, or a tensor or view (num_heads) that outlives the call;
/// then f takes the element of head h. All parameters are converted to the type of the score.
template <class F, class... P>
  requires(sizeof...(P) > 0 && !(TemporaryTensor<P> || ...))
auto score_mod(F f, P&&... parameters) {
  using Bound = detail::BoundScore<F, detail::Held<std::remove_cvref_t<P>>...>;
  return detail::ScoreMod<Bound>{Bound(std::move(f), detail::held(parameters)...)};
}
template <class F, class... P>
  requires(TemporaryTensor<P> || ...)
void score_mod(F f, P&&... parameters) = delete;  // it would view a temporary tensor

/// Key j is visible to query i where f(b, h, i, j) is true. A functor may have a member classify(b,
/// h, IndexRange queries, IndexRange keys), which is called once per block. It returns
/// Visibility::empty where no key of the block is visible (the block is skipped), full where all
/// are (f is not called), or partial (f is called for each pair). & and | combine two mask_mods and
/// their classify().
template <class F>
detail::MaskMod<F> mask_mod(F f) {
  return {std::move(f)};
}

/// weight = f(weight, b, h, i, j) after softmax. The weights are not normalised again, and weights
/// of 0 stay 0 whatever f returns. Needs a second pass over the scores, because f takes final
/// weights.
template <class F>
detail::ProbMod<F> prob_mod(F f) {
  return {std::move(f)};
}

namespace detail {

// Defined in the namespace of the operands, so that argument-dependent lookup finds them.
template <class A, class B>
auto operator&(const MaskMod<A>& a, const MaskMod<B>& b) {
  return mask_mod(MaskAnd<A, B>{a.f, b.f});
}
template <class A, class B>
auto operator|(const MaskMod<A>& a, const MaskMod<B>& b) {
  return mask_mod(MaskOr<A, B>{a.f, b.f});
}

/// For each target, the loop over a row of scores or weights that contains the functor.
template <class T, class Functor>
struct FunctorLoop {
  decltype(RowFunctor<T>::apply) apply;
};

}  // namespace detail

ATTN_NAMESPACE_END

#define ATTN_KERNEL_TEXT_IN_PROGRAM
#define ATTN_KERNEL_TEXT "attn/attention/functors/functors.inc.hpp"
#include "attn/simd/foreach_isa.hpp"
#undef ATTN_KERNEL_TEXT_IN_PROGRAM

ATTN_NAMESPACE_BEGIN

namespace detail {

/// Adds a functor to `functors`. The functor must outlive the call.
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
  bound = {&functor.f, table_of<FunctorLoop<T, Functor>>(isa).apply};
}

}  // namespace detail

ATTN_NAMESPACE_END
