// ParameterParts: cuts the elements of all parameters into a part of equal size for each rank.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <span>
#include <vector>

#include "attn/distributed/agreement.hpp"
#include "attn/distributed/context_layout.hpp"
#include "attn/train/parameters.hpp"

ATTN_NAMESPACE_BEGIN

namespace detail {

/// Elements `range` of parameter `parameter`.
struct ParameterRange {
  std::size_t parameter;
  IndexRange range;

  index_t size() const { return range.end - range.begin; }
};

/// The elements of all parameters, one parameter after another, are cut into a part per rank.
class ParameterParts {
 public:
  template <class T>
  ParameterParts(const std::vector<TrainedParameter<T>>& parameters, int ranks) : ranks_(ranks) {
    for (const TrainedParameter<T>& parameter : parameters) {
      begins_.push_back(begins_.back() + parameter.size);
    }
  }

  std::size_t parameters() const { return begins_.size() - 1; }
  index_t size() const { return begins_.back(); }
  /// The first element of parameter n, among the elements of all.
  index_t begin(std::size_t n) const { return begins_[n]; }

  /// The elements of parameter n in the part of `rank`.
  IndexRange part_of(int rank, std::size_t n) const {
    const index_t share = (size() + ranks_ - 1) / ranks_;
    const auto within = [&](index_t element) {
      return std::clamp(element, begins_[n], begins_[n + 1]) - begins_[n];
    };
    return {within(rank * share), within((rank + 1) * share)};
  }

  /// The part of `rank` in order, as ranges of 1 .. most elements.
  std::vector<ParameterRange> ranges_of(int rank, index_t most) const {
    std::vector<ParameterRange> ranges;
    for (std::size_t n = 0; n < parameters(); ++n) {
      const auto [begin, end] = part_of(rank, n);
      for (index_t at = begin; at < end; at += most) {
        ranges.push_back({n, {at, (std::min)(at + most, end)}});
      }
    }
    return ranges;
  }

 private:
  index_t ranks_;
  std::vector<index_t> begins_ = {0};  ///< of each parameter, and the end
};

/// Adds the number, sizes and names of the parameters.
template <class T>
void add_parameters(AgreedFields& fields, const std::vector<TrainedParameter<T>>& parameters) {
  std::vector<index_t> sizes;
  Digest names;
  index_t sum = 0;
  for (const TrainedParameter<T>& parameter : parameters) {
    sizes.push_back(parameter.size);
    names.take(std::as_bytes(std::span(parameter.name)));
    sum += parameter.size;
  }
  fields.add("the number of parameters", static_cast<index_t>(parameters.size()));
  fields.add("the number of elements", sum);
  fields.add("the sizes of the parameters", TensorView1<const index_t>(sizes));
  fields.add("the names of the parameters", names);
}

/// Calls f(to, from) for the messages of each rank to each other one. At any time all ranks send to
/// different ones.
template <class F>
void each_peer(const Communicator& communicator, F f) {
  const int rank = communicator.rank(), size = communicator.size();
  for (int apart = 1; apart < size; ++apart) f((rank + apart) % size, (rank + size - apart) % size);
}

/// Each rank has its part of the elements at_parameter(n); afterwards every rank has all.
template <class F>
void gather_parts(Communicator& communicator, const ParameterParts& parts, F at_parameter) {
  Requests requests;
  const auto elements = [&](int rank, std::size_t n) {
    const auto [begin, end] = parts.part_of(rank, n);
    return std::as_writable_bytes(
        std::span(at_parameter(n) + begin, static_cast<std::size_t>(end - begin)));
  };
  each_peer(communicator, [&](int to, int from) {
    for (std::size_t n = 0; n < parts.parameters(); ++n) {
      const auto own = elements(communicator.rank(), n), other = elements(from, n);
      if (!own.empty()) requests.push_back(communicator.send(to, own));
      if (!other.empty()) requests.push_back(communicator.receive(from, other));
    }
  });
  wait_for(requests);
}

}  // namespace detail

ATTN_NAMESPACE_END
