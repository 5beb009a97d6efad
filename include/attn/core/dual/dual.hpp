// Dual: a number with its derivative, which differentiates score functors.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <concepts>
#include <type_traits>

#include "attn/core/config.hpp"

ATTN_NAMESPACE_BEGIN

/// A dual number: value + derivative e with e^2 = 0. Numbers convert to it, with derivative 0. A
/// functor that calls functions of a score must find them for numbers and duals: `using std::tanh;
/// return tanh(score);`. Comparisons compare values.
template <class T>
struct Dual {
  T value{}, derivative{};

  constexpr Dual() = default;
  constexpr Dual(T v, T s) : value(v), derivative(s) {}
  template <class X>
    requires std::is_arithmetic_v<X>
  constexpr Dual(X x)  // NOLINT(google-explicit-constructor): numbers and duals mix
      : value(static_cast<T>(x)), derivative(0) {}

  friend constexpr Dual operator+(Dual a, Dual b) {
    return {a.value + b.value, a.derivative + b.derivative};
  }
  friend constexpr Dual operator-(Dual a, Dual b) {
    return {a.value - b.value, a.derivative - b.derivative};
  }
  friend constexpr Dual operator-(Dual a) { return {-a.value, -a.derivative}; }
  friend constexpr Dual operator*(Dual a, Dual b) {
    return {a.value * b.value, a.derivative * b.value + a.value * b.derivative};
  }
  friend constexpr Dual operator/(Dual a, Dual b) {
    return {a.value / b.value,
            (a.derivative * b.value - a.value * b.derivative) / (b.value * b.value)};
  }
  constexpr Dual& operator+=(Dual b) { return *this = *this + b; }
  constexpr Dual& operator-=(Dual b) { return *this = *this - b; }
  constexpr Dual& operator*=(Dual b) { return *this = *this * b; }
  constexpr Dual& operator/=(Dual b) { return *this = *this / b; }

  friend constexpr bool operator==(Dual a, Dual b) { return a.value == b.value; }
  friend constexpr bool operator<(Dual a, Dual b) { return a.value < b.value; }
  friend constexpr bool operator>(Dual a, Dual b) { return a.value > b.value; }
  friend constexpr bool operator<=(Dual a, Dual b) { return a.value <= b.value; }
  friend constexpr bool operator>=(Dual a, Dual b) { return a.value >= b.value; }

  friend Dual exp(Dual a) { return {std::exp(a.value), a.derivative * std::exp(a.value)}; }
  friend Dual log(Dual a) { return {std::log(a.value), a.derivative / a.value}; }
  friend Dual sqrt(Dual a) {
    const T root = std::sqrt(a.value);
    return {root, a.derivative / (2 * root)};
  }
  friend Dual tanh(Dual a) {
    const T t = std::tanh(a.value);
    return {t, a.derivative * (1 - t * t)};
  }
  friend Dual sin(Dual a) { return {std::sin(a.value), a.derivative * std::cos(a.value)}; }
  friend Dual cos(Dual a) { return {std::cos(a.value), -a.derivative * std::sin(a.value)}; }
  friend Dual abs(Dual a) { return a.value < 0 ? -a : a; }
  friend Dual pow(Dual a, T n) {
    return {std::pow(a.value, n), a.derivative * n * std::pow(a.value, n - 1)};
  }
  friend Dual(max)(Dual a, Dual b) { return a.value < b.value ? b : a; }
  friend Dual(min)(Dual a, Dual b) { return b.value < a.value ? b : a; }
};

ATTN_NAMESPACE_END
