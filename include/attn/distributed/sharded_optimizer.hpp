// ShardedOptimizer: each rank stores the optimizer's state of its part of the parameters.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <bit>
#include <memory>
#include <vector>

#include "attn/distributed/gradient_tree.hpp"
#include "attn/train/optimizer.hpp"

ATTN_NAMESPACE_BEGIN

/// Adam or Sgd on several ranks, with the bits of one process. The elements of all parameters, one
/// parameter after another, are cut into a part of equal size per rank. A rank stores the
/// optimizer's state of its part and updates this part, which it then broadcasts. Gradients are
/// those of GradientTree, equal on every rank.
///
///   ShardedOptimizer<Adam<float>> adam(comm, parameters, {.decoupled = true});
///   ..
///   tree.finish();
///   adam.step(rate, {}, clip_factor(gradient_norm(parameters), 1));
///
/// Checkpoints: attn/distributed/sharded_checkpoint.hpp. Source: Rajbhandari et al., "ZeRO: Memory
/// Optimizations Toward Training Trillion Parameter Models" (2020), section 5.1.
template <class Optimizer>
class ShardedOptimizer {
 public:
  using Element = typename Optimizer::Element;

  /// All ranks construct it, with equal parameters and options. Refers to communicator and
  /// parameters, which must not move. Throws what Optimizer throws, and ValueError on every rank if
  /// the parameters' names or sizes, their groups' rates and decays, or the options differ.
  ShardedOptimizer(Communicator& communicator, std::vector<TrainedParameter<Element>> parameters,
                   const typename Optimizer::Options& options = {})
      : communicator_(communicator), parameters_(std::move(parameters)) {
    detail::agree(communicator, "ShardedOptimizer", [&] {
      detail::AgreedFields fields;
      detail::add_parameters(fields, parameters_);
      for (const TrainedParameter<Element>& parameter : parameters_) {
        begins_.push_back(size_);
        size_ += parameter.size;
      }
      optimizer_ = std::make_unique<Optimizer>(own_parts(), options);
      optimizer_->visit_options(
          [&](std::string_view name, double number) { fields.add(name, number); });
      detail::Digest groups;
      optimizer_->each_group([&](const ParameterGroup* group) {
        const ParameterGroup none{.learning_rate = -1};  // that no group may have
        const ParameterGroup& rates = group != nullptr ? *group : none;
        groups.take(std::bit_cast<std::uint64_t>(rates.learning_rate));
        groups.take(std::bit_cast<std::uint64_t>(rates.weight_decay));
      });
      fields.add("the groups of the parameters", groups);
      return fields;
    });
  }

  Communicator& communicator() const { return communicator_; }
  index_t steps() const { return optimizer_->steps(); }
  void set_steps(index_t steps) { optimizer_->set_steps(steps); }

  /// One step of Optimizer on every rank. Throws what its step() throws, and ValueError on every
  /// rank if arguments or the number of steps differ.
  void step(double learning_rate, const Execution& execution = {}, double gradient_scale = 1) {
    detail::agree(communicator_, "ShardedOptimizer::step", [&] {
      optimizer_->check_step(learning_rate, gradient_scale);
      detail::AgreedFields fields;
      fields.add("learning_rate", learning_rate);
      fields.add("gradient_scale", gradient_scale);
      fields.add("the number of steps", steps());
      return fields;
    });
    detail::run_or_fail(communicator_, [&] {
      optimizer_->step(learning_rate, execution, gradient_scale);
      for (std::size_t n = 0; n < parameters_.size(); ++n) {
        for (int rank = 0; rank < communicator_.size(); ++rank) {
          const IndexRange part = part_of(rank, n);
          if (part.begin == part.end) continue;
          const std::span<Element> elements(parameters_[n].value + part.begin,
                                            static_cast<std::size_t>(part.end - part.begin));
          communicator_.broadcast(rank, std::as_writable_bytes(elements));
        }
        if (parameters_[n].publish) parameters_[n].publish(execution);
      }
    });
  }

  /// See Adam and Sgd.
  void publish(const Execution& execution = {}) {
    optimizer_->publish(execution);
    for (const TrainedParameter<Element>& parameter : parameters_) {
      if (parameter.publish) parameter.publish(execution);
    }
  }

  /// Calls f(name, size of the parameter, part of each rank, view) for each state by the names of
  /// Optimizer::visit_state(); the view has the elements of this rank's part.
  template <class F>
  void visit_parts(const F& f) {
    optimizer_->each_state([&](std::size_t n, const std::string& name, const auto& view) {
      f(
          name, parameters_[n].size, [&, n](int rank) { return part_of(rank, n); }, view);
    });
  }

 private:
  /// The elements of parameter n that a rank updates.
  IndexRange part_of(int rank, std::size_t n) const {
    const index_t ranks = communicator_.size(), share = (size_ + ranks - 1) / ranks;
    const auto within = [&](index_t element) {
      return std::clamp(element - begins_[n], index_t{0}, parameters_[n].size);
    };
    return {within(rank * share), within((rank + 1) * share)};
  }

  std::vector<TrainedParameter<Element>> own_parts() const {
    std::vector<TrainedParameter<Element>> parts = parameters_;
    for (std::size_t n = 0; n < parts.size(); ++n) {
      const IndexRange part = part_of(communicator_.rank(), n);
      parts[n].value += part.begin;
      parts[n].gradient += part.begin;
      parts[n].size = part.end - part.begin;
      parts[n].publish = nullptr;  // needs the parts of all ranks
    }
    return parts;
  }

  Communicator& communicator_;
  std::vector<TrainedParameter<Element>> parameters_;
  std::vector<index_t> begins_;  ///< of each parameter, among the elements of all
  index_t size_ = 0;             ///< elements of all parameters
  std::unique_ptr<Optimizer> optimizer_;
};

ATTN_NAMESPACE_END
