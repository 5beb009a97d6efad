// ScoreParameters: numbers that a score functor takes after its indices, one for all heads or one for each.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <tuple>
#include <type_traits>
#include <utility>

#include "attn/core/tensor.hpp"

ATTN_NAMESPACE_BEGIN

namespace detail {

inline constexpr std::size_t kMostScoreParameters = 4;

/// A parameter as it is held: a number, or a view of one for each head.
template <class P>
auto held(const P& parameter) {
  if constexpr (std::is_arithmetic_v<P>) {
    return parameter;
  } else {
    static_assert(TensorLike<const P&> && rank_v<const P&> == 1,
                  "score_mod: a parameter must be a number or have one axis, (num_heads)");
    return const_view(parameter);
  }
}
template <class P>
using Held = decltype(held(std::declval<const P&>()));

template <class, class S>
using Always = S;

/// f with the parameters P.. bound: a score functor of (score, b, h, i, j). All parameters are
/// handed to f in the type of the score.
template <class F, class... P>
class BoundScore {
 public:
  static constexpr std::size_t kCount = sizeof...(P);
  static_assert(kCount <= kMostScoreParameters, "score_mod: too many parameters");

  explicit BoundScore(F f, const P&... parameters) : f_(std::move(f)), parameters_(parameters...) {}

  template <class S>
    requires std::is_invocable_v<const F&, S, int, int, int, int, Always<P, S>...>
  auto operator()(S score, int b, int h, int i, int j) const {
    return [&]<std::size_t... N>(std::index_sequence<N...>) {
      return f_(score, b, h, i, j, parameter<S>(std::get<N>(parameters_), h)...);
    }(std::index_sequence_for<P...>{});
  }

  /// The derivative by parameter K, with D a Dual.
  template <std::size_t K, class D>
  D along(D score, int b, int h, int i, int j) const {
    return [&]<std::size_t... N>(std::index_sequence<N...>) {
      return D(f_(score, b, h, i, j,
                  D(parameter<D>(std::get<N>(parameters_), h).value, N == K ? 1 : 0)...));
    }(std::index_sequence_for<P...>{});
  }

  /// How many numbers each parameter is; 0 behind the last. Throws ShapeError unless a view has one
  /// for each head.
  std::array<index_t, kMostScoreParameters> extents(index_t num_heads) const {
    std::array<index_t, kMostScoreParameters> result{};
    std::size_t at = 0;
    const auto add = [&](const auto& parameter) {
      if constexpr (std::is_arithmetic_v<std::remove_cvref_t<decltype(parameter)>>) {
        result[at++] = 1;
      } else {
        check_shape("score_mod", "a parameter", "a number or (num_heads)", Shape<1>{num_heads},
                    parameter.shape());
        result[at++] = num_heads;
      }
    };
    std::apply([&](const auto&... all) { (add(all), ...); }, parameters_);
    return result;
  }

 private:
  template <class S, class X>
  static S parameter(const X& x, int h) {
    if constexpr (std::is_arithmetic_v<X>) {
      return static_cast<S>(x);
    } else {
      return static_cast<S>(x.data()[h * x.stride(0)]);
    }
  }

  F f_;
  std::tuple<P...> parameters_;
};

template <class F>
inline constexpr bool is_bound_score = false;
template <class F, class... P>
inline constexpr bool is_bound_score<BoundScore<F, P...>> = true;

/// Of any score functor: see BoundScore::extents().
template <class F>
std::array<index_t, kMostScoreParameters> parameter_extents(const F& f, index_t num_heads) {
  if constexpr (is_bound_score<F>) {
    return f.extents(num_heads);
  } else {
    return {};
  }
}

}  // namespace detail

ATTN_NAMESPACE_END
