// Parameters of a score functor: numbers, one for all heads or one per head.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <concepts>
#include <tuple>
#include <type_traits>
#include <utility>

#include "attn/core/tensor.hpp"

ATTN_NAMESPACE_BEGIN

namespace detail {

inline constexpr std::size_t kMaxScoreParameters = 4;

/// A parameter and the view to which backward adds its gradient: see with_gradient().
template <class P, class T>
struct ParameterWithGradient {
  P parameter;
  TensorView1<T> gradient;
};
template <class P>
inline constexpr bool has_gradient = false;
template <class P, class T>
inline constexpr bool has_gradient<ParameterWithGradient<P, T>> = true;

/// A parameter as BoundScore stores it: a number or a view (num_heads), with or without its
/// gradient.
template <class P>
auto held(const P& parameter) {
  if constexpr (std::is_arithmetic_v<P> || has_gradient<P>) {
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

/// f with bound parameters: a score functor of (score, b, h, i, j). All parameters are converted to
/// the type of the score.
template <class F, class... P>
class BoundScore {
 public:
  static constexpr std::size_t kCount = sizeof...(P);
  static_assert(kCount <= kMaxScoreParameters, "score_mod: too many parameters");

  explicit BoundScore(F f, const P&... parameters) : f_(std::move(f)), parameters_(parameters...) {}

  template <class S>
    requires std::is_invocable_v<const F&, S, int, int, int, int, Always<P, S>...>
  auto operator()(S score, int b, int h, int i, int j) const {
    return [&]<std::size_t... N>(std::index_sequence<N...>) {
      return f_(score, b, h, i, j, parameter<S>(std::get<N>(parameters_), h)...);
    }(std::index_sequence_for<P...>{});
  }

  /// f with Dual parameters: the derivative of the result is that with respect to parameter K.
  template <std::size_t K, class D>
  D derivative_by(D score, int b, int h, int i, int j) const {
    return [&]<std::size_t... N>(std::index_sequence<N...>) {
      return D(f_(score, b, h, i, j,
                  D(parameter<D>(std::get<N>(parameters_), h).value, N == K ? 1 : 0)...));
    }(std::index_sequence_for<P...>{});
  }

  /// Extent of each parameter: 1, or num_heads for a view; 0 for parameters that do not exist.
  /// Throws ShapeError unless a view has an element for each head.
  std::array<index_t, kMaxScoreParameters> extents(index_t num_heads) const {
    std::array<index_t, kMaxScoreParameters> result{};
    std::size_t at = 0;
    const auto add = [&](const auto& with) {
      const auto& parameter = plain(with);
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

  /// to[n] = the gradient view of parameter n, if with_gradient() gave one.
  template <class T>
  void add_gradients_held(std::array<TensorView1<T>, kMaxScoreParameters>& to) const {
    std::size_t at = 0;
    const auto add = [&](const auto& parameter) {
      using X = std::remove_cvref_t<decltype(parameter)>;
      if constexpr (has_gradient<X>) {
        static_assert(
            std::same_as<decltype(parameter.gradient), TensorView1<T>>,
            "with_gradient: a gradient must be of the element that attention computes in");
        to[at] = parameter.gradient;
      }
      ++at;
    };
    std::apply([&](const auto&... all) { (add(all), ...); }, parameters_);
  }

 private:
  template <class X>
  static const auto& plain(const X& x) {
    if constexpr (has_gradient<X>) {
      return x.parameter;
    } else {
      return x;
    }
  }
  template <class S, class X>
  static S parameter(const X& x, int h) {
    if constexpr (has_gradient<X>) {
      return parameter<S>(x.parameter, h);
    } else if constexpr (std::is_arithmetic_v<X>) {
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

/// Defined for every score functor: see BoundScore::extents().
template <class F>
std::array<index_t, kMaxScoreParameters> parameter_extents(const F& f, index_t num_heads) {
  if constexpr (is_bound_score<F>) {
    return f.extents(num_heads);
  } else {
    return {};
  }
}

/// Defined for every score functor: see BoundScore::add_gradients_held().
template <class T, class F>
void add_gradients_held(const F& f, std::array<TensorView1<T>, kMaxScoreParameters>& to) {
  if constexpr (is_bound_score<F>) f.add_gradients_held(to);
}

}  // namespace detail

/// A parameter of a score_mod together with its gradient, to which backward adds: (1) for a number,
/// (num_heads) for a view. For layers, stacks and models, which pass the functor on: a parameter
/// shared by several layers gets the sum over them. Both must outlive the calls. Forward ignores
/// the gradient.
template <class P, TensorLike D>
  requires(!TemporaryTensor<P> && !TemporaryTensor<D>)
auto with_gradient(P&& parameter, D&& gradient) {
  using Parameter = detail::Held<std::remove_cvref_t<P>>;
  static_assert(rank_v<D> == 1, "with_gradient: a gradient must have one axis, (1) or (num_heads)");
  return detail::ParameterWithGradient<Parameter, scalar_t<D>>{detail::held(parameter),
                                                               view_of(gradient)};
}

ATTN_NAMESPACE_END
