// LossScale: dynamic loss scaling for float16, as torch.amp.GradScaler.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

#include "attn/core/error.hpp"
#include "attn/core/shape.hpp"

ATTN_NAMESPACE_BEGIN

/// Options and defaults of PyTorch's GradScaler.
struct LossScaleOptions {
  double initial = 65536;          ///< initial factor
  double growth = 2;               ///< multiplies the factor after growth_interval finite steps
  double backoff = 0.5;            ///< multiplies the factor after non-finite gradients
  index_t growth_interval = 2000;  ///< consecutive steps with finite gradients
};

/// The factor on the loss's gradient that keeps gradients of activations from underflowing in
/// float16, whose smallest number is 6e-8. Gradients of parameters are too large by that factor,
/// and an optimizer's step() takes its inverse. A step whose gradients are not finite is skipped,
/// and the factor decreases; after many finite steps it grows again. Unlike the factor of
/// GradScaler, which may reach 0 and then skip every step, it stays a normal float.
///
///   cross_entropy_backward(rows, targets, rows, {.gradient_scale = scale.factor()});
///   backward(model, logits, saved, gradients);
///   const double once = 1 / scale.factor(), norm = once * gradient_norm(parameters);
///   if (scale.update(norm)) adam.step(rate, {}, once * clip_factor(norm, 1));
///
/// Source: Micikevicius et al., "Mixed Precision Training" (2018), section 3.2.
class LossScale {
 public:
  /// The state that a checkpoint saves. A factor of 0: no loss scale.
  struct Position {
    double factor = 0;
    index_t finite_steps = 0;  ///< consecutive, since the factor changed
    bool operator==(const Position&) const = default;
  };

  /// Throws ValueError unless initial is positive and finite, growth above 1, backoff between 0 and
  /// 1, and growth_interval at least 1.
  explicit LossScale(const LossScaleOptions& options = {}) : options_(options) {
    const auto require = [](bool holds, std::string_view name, std::string_view what,
                            double found) {
      if (!holds) throw ValueError(message("LossScale", name, what, std::to_string(found)));
    };
    require(options.growth > 1 && std::isfinite(options.growth), "growth", "be finite and above 1",
            options.growth);
    require(options.backoff > 0 && options.backoff < 1, "backoff", "lie between 0 and 1",
            options.backoff);
    require(options.growth_interval >= 1, "growth_interval", "be at least 1",
            static_cast<double>(options.growth_interval));
    move_to({.factor = options.initial});
  }

  double factor() const { return position_.factor; }
  const Position& position() const { return position_; }

  /// Continues from a saved position. Throws ValueError for a factor that is not positive and
  /// finite, and for negative steps.
  void move_to(const Position& position) {
    if (!(position.factor > 0) || !std::isfinite(position.factor)) {
      throw ValueError(message("LossScale", "the factor", "be positive and finite",
                               std::to_string(position.factor)));
    }
    if (position.finite_steps < 0) {
      throw ValueError(message("LossScale", "finite_steps", "be at least 0",
                               std::to_string(position.finite_steps)));
    }
    position_ = position;
  }

  /// Call it after backward with gradient_norm(), which is finite if and only if all gradients are.
  /// Returns whether to take the step, and sets factor() for the next one.
  bool update(double norm) {
    if (!std::isfinite(norm)) {
      constexpr double kMinFactor = (std::numeric_limits<float>::min)();
      position_ = {.factor = (std::max)(position_.factor * options_.backoff, kMinFactor)};
      return false;
    }
    if (++position_.finite_steps >= options_.growth_interval) {
      const double grown = position_.factor * options_.growth;
      position_ = {.factor = std::isfinite(static_cast<float>(grown)) ? grown : position_.factor};
    }
    return true;
  }

 private:
  LossScaleOptions options_;
  Position position_;
};

ATTN_NAMESPACE_END
