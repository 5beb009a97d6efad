// Assertions of argument types, each a one-line error message before other errors.
// SPDX-License-Identifier: Apache-2.0
//
// A public function asserts the type of each argument by a macro, because static_assert takes only
// literal messages. Then it converts the argument by view_as() to the asserted type, so that the
// body compiles with valid types and adds no errors of its own.
#pragma once

#include "attn/core/element.hpp"
#include "attn/core/view.hpp"

ATTN_NAMESPACE_BEGIN

namespace detail {

/// An Eigen vector counts as one axis and as two.
template <class X, int Rank>
inline constexpr bool has_axes =
    rank_v<X> == Rank ||
    std::convertible_to<const std::remove_reference_t<X>&, TensorView<const scalar_t<X>, Rank>>;

/// The number of axes that an assertion reports as found; 0 if it is correct.
template <class X, int Rank>
inline constexpr int axes_found = has_axes<X, Rank> ? 0 : rank_v<X>;

template <class X>
inline constexpr bool has_real_elements =
    std::same_as<scalar_t<X>, float> || std::same_as<scalar_t<X>, double>;

template <class X>
inline constexpr bool has_floating_elements = has_real_elements<X> || Float16Element<scalar_t<X>>;

template <class X, class T>
inline constexpr bool has_elements = std::same_as<scalar_t<X>, T>;

/// The element type of x, or float if kernels have no such type, which is then reported by an
/// assertion.
template <TensorLike X>
using real_t = std::conditional_t<has_real_elements<X>, scalar_t<X>, float>;

/// The element type of x for functions whose kernels also have 16-bit types: float if kernels have
/// no such type.
template <TensorLike X>
using floating_t = std::conditional_t<has_floating_elements<X>, scalar_t<X>, float>;

/// The element type of ids, or index_t if they are not integers, which is then reported by an
/// assertion.
template <TensorLike Ids>
using id_t = std::conditional_t<std::integral<scalar_t<Ids>>, scalar_t<Ids>, index_t>;

/// A view of x, whose type was asserted.
template <class T, int Rank, class X>
constexpr TensorView<T, Rank> view_as(X&& x) {
  constexpr bool is_view = std::convertible_to<view_t<X>, TensorView<T, Rank>>;
  constexpr bool converts = std::convertible_to<X&, TensorView<T, Rank>>;
  static_assert(is_view || converts, "an argument is of another type than its function takes");
  if constexpr (is_view) {
    return view_of(x);
  } else if constexpr (converts) {
    return x;
  } else {
    return {};
  }
}

template <class X, class T, int Rank>
inline constexpr bool is_viewed_as =
    has_axes<X, Rank> && std::convertible_to<typename view_t<X>::element_type*, T*>;

}  // namespace detail

/// A struct of options that reports its element type readably when passed to a call of another
/// type.
#define ATTN_REFUSE_OTHER_ELEMENTS(Options)                                                     \
  template <class U>                                                                            \
  operator Options<U>() const {                                                                 \
    static_assert(!std::same_as<U, U>, #Options                                                 \
                  "<T>: T must be the element type of the call (of attention's options float, " \
                  "where elements have 16 bits)");                                              \
    return {};                                                                                  \
  }

/// An optional view in a struct of options. A view of the wrong type in a braced call gives one
/// readable error instead of "no matching function".
template <class T, int Rank>
struct OptionView : TensorView<T, Rank> {
  using TensorView<T, Rank>::TensorView;

  /// Accepts any tensor-like argument with these elements and axes.
  template <TensorLike X>
  constexpr OptionView(X&& x)  // NOLINT(bugprone-forwarding-reference-overload): as views convert
      : TensorView<T, Rank>(viewed(x)) {}
  // Accepts temporaries too. Clang warns if the temporary is destroyed before the view: at the end
  // of the statement, or of the function that returns the options.
  template <TensorLike X>
    requires OwnsElements<X>
  constexpr OptionView(X&& x ATTN_LIFETIMEBOUND) : TensorView<T, Rank>(viewed(x)) {}
  template <class U, int OtherRank>
  constexpr OptionView(TensorView<U, OtherRank> x ATTN_LIFETIMEBOUND)
      : TensorView<T, Rank>(viewed(x)) {}

 private:
  template <class X>
  static constexpr TensorView<T, Rank> viewed(X& x) {
    static_assert(detail::has_axes<X, Rank>, "an option is given a tensor of another rank");
    static_assert(!detail::has_axes<X, Rank> || detail::is_viewed_as<X, T, Rank>,
                  "an option is given a tensor of other elements, or a const one to write");
    if constexpr (detail::is_viewed_as<X, T, Rank>) {
      return detail::view_as<T, Rank>(x);
    } else {
      return {};
    }
  }
};

/// Asserts that X has `count` axes, a literal. `what` names function and argument, "gemm: a";
/// `axes` names the axes.
#define ATTN_ASSERT_AXES(X, count, what, axes)                      \
  static_assert(::attn::detail::axes_found<X, count> != 1,          \
                what " must have " #count " axes " axes ", has 1"); \
  static_assert(::attn::detail::axes_found<X, count> != 2,          \
                what " must have " #count " axes " axes ", has 2"); \
  static_assert(::attn::detail::axes_found<X, count> != 3,          \
                what " must have " #count " axes " axes ", has 3"); \
  static_assert(::attn::detail::axes_found<X, count> != 4,          \
                what " must have " #count " axes " axes ", has 4"); \
  static_assert(::attn::detail::axes_found<X, count> <= 4,          \
                what " must have " #count " axes " axes ", has more than 4")

/// Asserts that X has as many axes as Y, whose argument is called `whose`.
#define ATTN_ASSERT_AXES_OF(X, Y, what, whose) \
  static_assert(::attn::rank_v<X> == ::attn::rank_v<Y>, what " must have as many axes as " whose)

/// Asserts that X has elements of type T, the type of `whose`.
#define ATTN_ASSERT_ELEMENTS(X, T, what, whose) \
  static_assert(::attn::detail::has_elements<X, T>, what " must have the element type of " whose)

/// Asserts an element type of the kernels; see real_t.
#define ATTN_ASSERT_REAL(X, what)                     \
  static_assert(::attn::detail::has_real_elements<X>, \
                what " must have elements of float or double; convert() takes those of 16 bits")

/// Asserts a floating-point type; see floating_t.
#define ATTN_ASSERT_FLOATING(X, what)                     \
  static_assert(::attn::detail::has_floating_elements<X>, \
                what " must have elements of float, double, bfloat16 or float16")

#define ATTN_ASSERT_INTEGERS(X, what) \
  static_assert(std::is_integral_v<::attn::scalar_t<X>>, what " must have integers as elements")

/// Asserts the integer type of lengths and positions in masks.
#define ATTN_ASSERT_INDICES(X, what)                              \
  static_assert(::attn::detail::has_elements<X, ::attn::index_t>, \
                what " must have elements of attn::index_t (std::ptrdiff_t)")

#define ATTN_ASSERT_WRITABLE(X, what)                                       \
  static_assert(!std::is_const_v<typename ::attn::view_t<X>::element_type>, \
                what " must not be const: it is written")

/// Token ids, (batch, seq).
#define ATTN_ASSERT_IDS(X, what)                \
  ATTN_ASSERT_AXES(X, 2, what, "(batch, seq)"); \
  ATTN_ASSERT_INTEGERS(X, what)

/// Input: `count` axes of elements T.
#define ATTN_ASSERT_INPUT(X, T, count, what, axes, whose) \
  ATTN_ASSERT_AXES(X, count, what, axes);                 \
  ATTN_ASSERT_ELEMENTS(X, T, what, whose)

/// Output: `count` axes of elements T.
#define ATTN_ASSERT_OUTPUT(X, T, count, what, axes, whose) \
  ATTN_ASSERT_INPUT(X, T, count, what, axes, whose);       \
  ATTN_ASSERT_WRITABLE(X, what)

/// Input: axes and elements of Y.
#define ATTN_ASSERT_INPUT_LIKE(X, Y, what, whose) \
  ATTN_ASSERT_AXES_OF(X, Y, what, whose);         \
  ATTN_ASSERT_ELEMENTS(X, ::attn::scalar_t<Y>, what, whose)

/// Output: axes and elements of Y.
#define ATTN_ASSERT_OUTPUT_LIKE(X, Y, what, whose) \
  ATTN_ASSERT_INPUT_LIKE(X, Y, what, whose);       \
  ATTN_ASSERT_WRITABLE(X, what)

ATTN_NAMESPACE_END
