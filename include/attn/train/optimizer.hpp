// Sgd, Adam: optimizers with PyTorch's formulas and defaults.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>

#include "attn/train/parameters.hpp"
#include "attn/train/update.hpp"

ATTN_NAMESPACE_BEGIN

struct SgdOptions {
  double momentum = 0;    ///< 0: no momentum buffer
  bool nesterov = false;  ///< Nesterov momentum
  /// L2 penalty: adds weight_decay * parameter to the gradient; unused if `groups` is given.
  double weight_decay = 0;
  /// Parameter groups; empty: all parameters with weight_decay.
  std::vector<ParameterGroup> groups = {};
};

struct AdamOptions {
  double beta1 = 0.9;       ///< decay of the running mean of gradients
  double beta2 = 0.999;     ///< decay of the running mean of squared gradients
  double eps = 1e-8;        ///< added to the root of the mean square
  double weight_decay = 0;  ///< of all parameters; unused if `groups` is given
  /// AdamW: parameters shrink by rate * weight_decay; otherwise an L2 penalty as in Sgd.
  bool decoupled = false;
  /// Parameter groups; empty: all parameters with weight_decay.
  std::vector<ParameterGroup> groups = {};
};

namespace detail {

/// Throws ValueError unless `holds`.
inline void check_number(bool holds, std::string_view function, std::string_view name,
                         std::string_view what, double found) {
  if (!holds) throw ValueError(message(function, name, what, std::to_string(found)));
}
/// Throws ValueError unless x, a rate or decay, is finite and at least 0.
inline void check_not_negative(std::string_view function, std::string_view name, double x) {
  check_number(x >= 0 && std::isfinite(x), function, name, "be finite and at least 0", x);
}

/// Base of the optimizers: the parameters, their groups, and states of their sizes by PyTorch's
/// names.
template <class T>
class OptimizerState {
 public:
  using Element = T;  ///< type of the parameters and states

  OptimizerState(std::string_view optimizer, std::vector<TrainedParameter<T>> parameters,
                 std::vector<ParameterGroup> groups, double weight_decay,
                 std::vector<std::string> state_names)
      : optimizer_(optimizer),
        parameters_(std::move(parameters)),
        groups_(std::move(groups)),
        names_(std::move(state_names)) {
    check_not_negative(optimizer_, "weight_decay", weight_decay);
    for (const ParameterGroup& group : groups_) {
      check_not_negative(optimizer_, "a group's learning_rate", group.learning_rate);
      check_not_negative(optimizer_, "a group's weight_decay", group.weight_decay);
    }
    if (groups_.empty()) {
      groups_.push_back(
          {.takes = [](std::string_view) { return true; }, .weight_decay = weight_decay});
    }
    for (const TrainedParameter<T>& parameter : parameters_) {
      const auto group = std::find_if(groups_.begin(), groups_.end(),
                                      [&](const auto& one) { return one.takes(parameter.name); });
      group_of_.push_back(group == groups_.end() ? nullptr : &*group);
      for (std::size_t n = 0; n < names_.size(); ++n) {
        states_.emplace_back(Shape<1>{group == groups_.end() ? 0 : parameter.size});
      }
    }
  }
  OptimizerState(const OptimizerState&) = delete;
  OptimizerState& operator=(const OptimizerState&) = delete;

  index_t steps() const { return steps_; }

  /// Calls f(name, view) for each state, for checkpoints. Names combine the parameter's name and
  /// PyTorch's: blocks.norm.weight.exp_avg.
  template <class F>
  void visit_state(const F& f) {
    each_state([&](std::size_t, const std::string& name, const auto& view) { f(name, view); });
  }
  /// Calls f(number of the parameter, name, view) for each state.
  template <class F>
  void each_state(const F& f) {
    for (std::size_t n = 0; n < states_.size(); ++n) {
      const std::size_t parameter = n / names_.size();
      if (group_of_[parameter] == nullptr) continue;
      f(parameter, parameters_[parameter].name + "." + names_[n % names_.size()],
        states_[n].view());
    }
  }
  /// Calls f(group) for each parameter; nullptr for one that is in no group.
  template <class F>
  void each_group(const F& f) const {
    for (const ParameterGroup* group : group_of_) f(group);
  }
  void set_steps(index_t steps) { steps_ = steps; }

  /// Call it after parameters were written other than by step(): marks packed copies stale and
  /// updates the 16-bit model of mixed precision.
  void publish(const Execution& execution = {}) {
    for (const TrainedParameter<T>& parameter : parameters_) {
      if (parameter.touch) parameter.touch();
    }
    for (const TrainedParameter<T>& parameter : parameters_) {
      if (parameter.publish) parameter.publish(execution);
      if (parameter.publish_frozen) parameter.publish_frozen(execution);
    }
  }

  /// The checks of step(), before anything is written.
  void check_step(double learning_rate, double gradient_scale) const {
    check_not_negative(optimizer_, "step's learning_rate", learning_rate);
    check_number(std::isfinite(gradient_scale), optimizer_, "step's gradient_scale", "be finite",
                 gradient_scale);
  }

 protected:
  /// Calls f(parameter, group, states), which updates the parameter, for each one that has a group.
  template <class F>
  void each(const Execution& execution, F f) {
    for (const TrainedParameter<T>& parameter : parameters_) {
      if (parameter.touch) parameter.touch();
    }
    for (std::size_t n = 0; n < parameters_.size(); ++n) {
      if (group_of_[n] == nullptr) continue;
      f(parameters_[n], *group_of_[n], states_.data() + n * names_.size());
      if (parameters_[n].publish) parameters_[n].publish(execution);
    }
  }

  index_t steps_ = 0;

 private:
  std::string_view optimizer_;  ///< for errors
  std::vector<TrainedParameter<T>> parameters_;
  std::vector<ParameterGroup> groups_;
  std::vector<const ParameterGroup*> group_of_;
  std::vector<std::string> names_;
  std::vector<Tensor1<T>> states_;
};

}  // namespace detail

/// Stochastic gradient descent: g += decay p; b = momentum b + g, at first g; p -= rate (g +
/// momentum b) with nesterov, else rate b. The formulas of torch.optim.SGD, without dampening.
template <class T>
class Sgd : public detail::OptimizerState<T> {
 public:
  using Options = SgdOptions;

  /// Refers to the parameters, which must not move. Throws ValueError for a negative momentum or
  /// decay, and for nesterov without momentum.
  explicit Sgd(std::vector<TrainedParameter<T>> parameters, const SgdOptions& options = {})
      : detail::OptimizerState<T>("Sgd", std::move(parameters), options.groups,
                                  options.weight_decay,
                                  options.momentum > 0 ? std::vector<std::string>{"momentum_buffer"}
                                                       : std::vector<std::string>{}),
        options_(options) {
    detail::check_not_negative("Sgd", "momentum", options.momentum);
    detail::check_number(!options.nesterov || options.momentum > 0, "Sgd", "momentum",
                         "be above 0 with nesterov", options.momentum);
  }

  /// One step, with gradients multiplied by gradient_scale as they are read: clip_factor() times 1
  /// / LossScale::factor(), which then need no separate pass. Throws ValueError for a rate that is
  /// negative or not finite, and for a scale that is not finite.
  void step(double learning_rate, const Execution& execution = {}, double gradient_scale = 1) {
    this->check_step(learning_rate, gradient_scale);
    const bool first = this->steps_++ == 0, has_momentum = options_.momentum > 0;
    this->each(execution,
               [&](const TrainedParameter<T>& p, const ParameterGroup& group, Tensor1<T>* states) {
                 detail::backend<family::Optimizers, T>(execution).sgd(
                     {.n = p.size,
                      .parameter = p.value,
                      .gradient = p.gradient,
                      .momentum = has_momentum ? states[0].data() : nullptr,
                      .gradient_scale = static_cast<T>(gradient_scale),
                      .rate = static_cast<T>(learning_rate * group.learning_rate),
                      .mu = static_cast<T>(options_.momentum),
                      .l2 = static_cast<T>(group.weight_decay),
                      .first = first,
                      .nesterov = options_.nesterov},
                     execution);
               });
  }

  /// Calls f(name, number) for each option but the groups.
  template <class F>
  void visit_options(const F& f) const {
    const auto& [momentum, nesterov, weight_decay, groups] = options_;
    f("momentum", momentum);
    f("nesterov", nesterov);
    f("weight_decay", weight_decay);
  }

 private:
  SgdOptions options_;
};

/// Adam, and AdamW where decay is decoupled: m and v are running means of g and g^2, p -= rate m' /
/// (sqrt(v') + eps) with m' = m / (1 - beta1^t), v' = v / (1 - beta2^t). Sources: Kingma, Ba,
/// "Adam" (2015), algorithm 1; Loshchilov, Hutter, "Decoupled Weight Decay Regularization" (2019),
/// algorithm 2; torch.optim's formulas.
template <class T>
class Adam : public detail::OptimizerState<T> {
 public:
  using Options = AdamOptions;

  /// Refers to the parameters, which must not move. Throws ValueError for a beta outside [0, 1),
  /// and for a negative eps or decay.
  explicit Adam(std::vector<TrainedParameter<T>> parameters, const AdamOptions& options = {})
      : detail::OptimizerState<T>("Adam", std::move(parameters), options.groups,
                                  options.weight_decay, {"exp_avg", "exp_avg_sq"}),
        options_(options) {
    const auto check_beta = [](std::string_view name, double beta) {
      detail::check_number(beta >= 0 && beta < 1, "Adam", name, "be at least 0 and below 1", beta);
    };
    check_beta("beta1", options.beta1);
    check_beta("beta2", options.beta2);
    detail::check_not_negative("Adam", "eps", options.eps);
  }

  /// One step, with gradients multiplied by gradient_scale: see Sgd::step().
  void step(double learning_rate, const Execution& execution = {}, double gradient_scale = 1) {
    this->check_step(learning_rate, gradient_scale);
    const double t = static_cast<double>(++this->steps_);
    const AdamOptions& o = options_;
    this->each(execution, [&](const TrainedParameter<T>& p, const ParameterGroup& group,
                              Tensor1<T>* states) {
      const double rate = learning_rate * group.learning_rate, decay = group.weight_decay;
      detail::backend<family::Optimizers, T>(execution).adam(
          {.n = p.size,
           .parameter = p.value,
           .gradient = p.gradient,
           .moment1 = states[0].data(),
           .moment2 = states[1].data(),
           .gradient_scale = static_cast<T>(gradient_scale),
           .beta1 = static_cast<T>(o.beta1),
           .beta2 = static_cast<T>(o.beta2),
           .rest1 = static_cast<T>(1 - o.beta1),
           .rest2 = static_cast<T>(1 - o.beta2),
           .step_size = static_cast<T>(rate / (1 - std::pow(o.beta1, t))),
           .root_scale = static_cast<T>(1 / std::sqrt(1 - std::pow(o.beta2, t))),
           .eps = static_cast<T>(o.eps),
           .kept = static_cast<T>(o.decoupled ? 1 - rate * decay : 1),
           .l2 = static_cast<T>(o.decoupled ? 0 : decay)},
          execution);
    });
  }

  /// Calls f(name, number) for each option but the groups.
  template <class F>
  void visit_options(const F& f) const {
    const auto& [beta1, beta2, eps, weight_decay, decoupled, groups] = options_;
    f("beta1", beta1);
    f("beta2", beta2);
    f("eps", eps);
    f("weight_decay", weight_decay);
    f("decoupled", decoupled);
  }

 private:
  AdamOptions options_;
};

ATTN_NAMESPACE_END
