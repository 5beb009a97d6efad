// Learning rates by step.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cmath>
#include <numbers>

#include "attn/core/shape.hpp"

ATTN_NAMESPACE_BEGIN

/// The learning rate at each step, counted from 1: grows linearly to `peak` at step warm_up, then
/// falls to `minimum` at step `steps`, and stays there.
struct Schedule {
  enum class Kind {
    constant,  ///< stays at peak
    linear,    ///< along a line
    cosine,    ///< along half a cosine. Source: Loshchilov, Hutter, "SGDR" (2017), equation 5
  };
  Kind kind = Kind::constant;
  double peak = 1e-3, minimum = 0;
  index_t warm_up = 0, steps = 0;

  double at(index_t step) const {
    if (step < warm_up) return peak * static_cast<double>(step) / static_cast<double>(warm_up);
    if (kind == Kind::constant || steps <= warm_up) return peak;
    const double part = std::clamp(
        static_cast<double>(step - warm_up) / static_cast<double>(steps - warm_up), 0.0, 1.0);
    const double left =
        kind == Kind::linear ? 1 - part : 0.5 * (1 + std::cos(std::numbers::pi * part));
    return minimum + (peak - minimum) * left;
  }
};

/// scale d_model^-0.5 min(step^-0.5, step warm_up^-1.5), steps from 1. Source: "Attention Is All
/// You Need" (2017), equation 3.
inline double paper_rate(index_t step, index_t d_model, index_t warm_up, double scale = 1) {
  const double t = static_cast<double>(step);
  return scale / std::sqrt(static_cast<double>(d_model)) *
         (std::min)(1 / std::sqrt(t), t * std::pow(static_cast<double>(warm_up), -1.5));
}

ATTN_NAMESPACE_END
