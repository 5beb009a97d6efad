// ShardedOptimizer: each rank stores the optimizer's state of its part of the parameters.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <memory>
#include <span>
#include <vector>

#include "attn/distributed/parameter_parts.hpp"
#include "attn/train/clipping.hpp"
#include "attn/train/optimizer.hpp"

ATTN_NAMESPACE_BEGIN

/// Adam or Sgd on several ranks, with the bits of one process. The elements of all parameters, one
/// parameter after another, are cut into a part of equal size per rank. A rank stores the
/// optimizer's state of its part, updates this part, and sends it to all ranks. A rank needs only
/// the gradients of its part, which GradientTree sums.
///
///   ShardedOptimizer<Adam<float>> adam(comm, parameters, {.decoupled = true});
///   ..
///   tree.finish(adam);
///   adam.step(rate, {}, clip_factor(adam.gradient_norm(), 1));
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
      : communicator_(communicator),
        parameters_(std::move(parameters)),
        parts_(parameters_, communicator.size()) {
    detail::agree(communicator, "ShardedOptimizer", [&] {
      detail::AgreedFields fields;
      detail::add_parameters(fields, parameters_);
      optimizer_ = std::make_unique<Optimizer>(own_parts(), options);
      optimizer_->visit_options(
          [&](std::string_view name, double number) { fields.add(name, number); });
      detail::Digest groups;
      optimizer_->each_group([&](const ParameterGroup* group) {
        const ParameterGroup none{.takes = {}, .learning_rate = -1};  // that no group may have
        const ParameterGroup& rates = group != nullptr ? *group : none;
        groups.take(std::bit_cast<std::uint64_t>(rates.learning_rate));
        groups.take(std::bit_cast<std::uint64_t>(rates.weight_decay));
      });
      fields.add("the groups of the parameters", groups);
      return fields;
    });
  }

  Communicator& communicator() const { return communicator_; }
  const std::vector<TrainedParameter<Element>>& parameters() const { return parameters_; }
  index_t steps() const { return optimizer_->steps(); }
  void set_steps(index_t steps) { optimizer_->set_steps(steps); }

  /// The norm of all gradients with the bits of the function gradient_norm(). Every rank calls it
  /// and reads the gradients of its part; it may overwrite gradients outside its part.
  double gradient_norm(const Execution& execution = {}) {
    const auto none = [] { return detail::AgreedFields(); };
    detail::agree(communicator_, "ShardedOptimizer::gradient_norm", none);
    std::vector<double> sums;  // of all chunks
    detail::run_or_fail(communicator_, [&] {
      complete_chunks();
      sums = sum_chunks(execution);
    });
    double sum = 0;
    for (const double chunk : sums) sum += chunk;
    return std::sqrt(sum);
  }

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
      detail::gather_parts(communicator_, parts_,
                           [&](std::size_t n) { return parameters_[n].value; });
      for (const TrainedParameter<Element>& parameter : parameters_) {
        if (parameter.publish) parameter.publish(execution);
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
          name, parameters_[n].size, [&, n](int rank) { return parts_.part_of(rank, n); }, view);
    });
  }

 private:
  /// The chunks of gradient_norm() in parameter n whose first element is in the part of `rank`.
  IndexRange chunks_of(int rank, std::size_t n) const {
    const auto [begin, end] = parts_.part_of(rank, n);
    return {detail::update_chunks(begin), detail::update_chunks(end)};
  }

  /// The elements in the part of `from` that complete the last chunk of `to`.
  std::span<std::byte> completion(int to, int from, std::size_t n) const {
    const auto [first, last] = chunks_of(to, n);
    if (first == last) return {};
    const auto [begin, end] = parts_.part_of(from, n);
    const index_t from_element = (std::max)(begin, parts_.part_of(to, n).end);
    const index_t size = (std::min)(end, last * detail::kUpdateChunk) - from_element;
    if (size <= 0) return {};
    return std::as_writable_bytes(
        std::span(parameters_[n].gradient + from_element, static_cast<std::size_t>(size)));
  }

  /// Receives the elements of this rank's chunks that are in the parts of later ranks.
  void complete_chunks() {
    detail::Requests requests;
    detail::each_peer(communicator_, [&](int to, int from) {
      for (std::size_t n = 0; n < parameters_.size(); ++n) {
        const auto own = completion(to, communicator_.rank(), n);
        const auto other = completion(communicator_.rank(), from, n);
        if (!own.empty()) requests.push_back(communicator_.send(to, own));
        if (!other.empty()) requests.push_back(communicator_.receive(from, other));
      }
    });
    detail::wait_for(requests);
  }

  /// The sums of squares of all chunks, in order.
  std::vector<double> sum_chunks(const Execution& execution) {
    std::vector<double> sums;
    for (int rank = 0; rank < communicator_.size(); ++rank) {
      const std::size_t begin = sums.size();
      for (std::size_t n = 0; n < parameters_.size(); ++n) {
        const auto [first, last] = chunks_of(rank, n);
        const std::size_t at = sums.size();
        sums.resize(at + static_cast<std::size_t>(last - first));
        if (rank != communicator_.rank() || first == last) continue;
        const index_t element = first * detail::kUpdateChunk,
                      end = (std::min)(last * detail::kUpdateChunk, parameters_[n].size);
        detail::backend<family::Optimizers, Element>(execution).square_sums(
            {.n = end - element, .x = parameters_[n].gradient + element, .sums = sums.data() + at},
            execution);
      }
      if (sums.size() == begin) continue;
      communicator_.broadcast(rank, std::as_writable_bytes(std::span(sums).subspan(begin)));
    }
    return sums;
  }

  std::vector<TrainedParameter<Element>> own_parts() const {
    std::vector<TrainedParameter<Element>> parts = parameters_;
    for (std::size_t n = 0; n < parts.size(); ++n) {
      const IndexRange part = parts_.part_of(communicator_.rank(), n);
      parts[n].value += part.begin;
      parts[n].gradient += part.begin;
      parts[n].size = part.end - part.begin;
      parts[n].publish = nullptr;  // needs the parts of all ranks
    }
    return parts;
  }

  Communicator& communicator_;
  std::vector<TrainedParameter<Element>> parameters_;
  detail::ParameterParts parts_;
  std::unique_ptr<Optimizer> optimizer_;
};

ATTN_NAMESPACE_END
