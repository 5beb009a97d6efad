// GradientTree: sums gradients of micro-batches over ranks, with the bits of one process.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <vector>

#include "attn/core/buffer.hpp"
#include "attn/distributed/agreement.hpp"
#include "attn/distributed/context_layout.hpp"
#include "attn/train/parameters.hpp"

ATTN_NAMESPACE_BEGIN

namespace detail {

/// A node of the tree: the sum of micro-batches [index << level, (index + 1) << level), without
/// those past the last one.
struct TreeNode {
  index_t level, index;

  bool is_left_of(const TreeNode& other) const {
    return level == other.level && index % 2 == 0 && other.index == index + 1;
  }
};

/// Nodes in order; two adjacent siblings are replaced by their parent.
template <class Sum>
struct TreeStack {
  struct Entry {
    TreeNode node;
    Sum sum;
  };
  index_t count;  ///< micro-batches of the tree
  std::vector<Entry> entries = {};

  /// add(left, right): left += right.
  template <class Add>
  void push(const TreeNode& node, Sum sum, Add add) {
    entries.push_back({node, std::move(sum)});
    for (;;) {
      TreeNode& last = entries.back().node;
      // A left node without a right sibling becomes its own parent.
      while (last.index > 0 && last.index % 2 == 0 && (last.index + 1) << last.level >= count) {
        last = {last.level + 1, last.index / 2};
      }
      if (entries.size() < 2) return;
      Entry& left = entries[entries.size() - 2];
      if (!left.node.is_left_of(last)) return;
      add(left.sum, entries.back().sum);
      left.node = {last.level + 1, last.index / 2};
      entries.pop_back();
    }
  }
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

}  // namespace detail

/// Adds the gradients of micro-batches 0 .. count - 1 in a fixed binary tree: 0 + 1, 2 + 3, then
/// these pairs. Each rank computes a range of the micro-batches. The sums have the bits of one
/// process that computes all of them, for any number of ranks, and every rank takes the same
/// optimizer step.
///
///   GradientTree<float> tree(comm, parameters, 8);
///   for (index_t n = tree.micro_batches().begin; n < tree.micro_batches().end; ++n) {
///     ..forward and backward of micro-batch n..
///     tree.add(n, loss);
///   }
///   loss = tree.finish();
///   optimizer.step(..);
///
/// Scale each loss by 1 / count for the mean. Stores a copy of all gradients for each level of the
/// tree. Communication: each rank adds its share of the elements over all ranks, then every rank
/// gathers all shares.
template <class T>
class GradientTree {
 public:
  /// All ranks construct it, with parameters of the same names and sizes. Refers to communicator
  /// and gradients. Throws ValueError for count below 1, and on every rank if ranks differ.
  GradientTree(Communicator& communicator, const std::vector<TrainedParameter<T>>& parameters,
               index_t count)
      : communicator_(communicator), stack_{count} {
    detail::agree(communicator, "GradientTree", [&] {
      if (count < 1) {
        throw ValueError(message("GradientTree", "count", "be at least 1", to_string(count)));
      }
      for (const TrainedParameter<T>& parameter : parameters) {
        gradients_.push_back({parameter.gradient, {parameter.size}});
        size_ += parameter.size;
      }
      detail::AgreedFields fields;
      fields.add("count", count);
      detail::add_parameters(fields, parameters);
      return fields;
    });
    share_ = (size_ + communicator.size() - 1) / communicator.size();
    next_ = micro_batches().begin;
  }

  /// The micro-batches of this rank.
  IndexRange micro_batches() const { return micro_batches_of(communicator_.rank()); }

  /// Takes over the gradients of micro-batch n, and its loss, and sets the gradients to 0. Throws
  /// ValueError unless this rank adds its micro-batches in order, and std::bad_alloc; both leave
  /// gradients and tree unchanged.
  void add(index_t n, double loss = 0) {
    if (n != next_ || n >= micro_batches().end) {
      throw ValueError(message("GradientTree::add", "n",
                               next_ < micro_batches().end
                                   ? detail::join({"be ", to_string(next_), ", the next one"})
                                   : "not be given: all micro-batches of this rank were added",
                               to_string(n)));
    }
    // Padded with zeros, so that every rank has a share of the same size.
    auto sum = Buffer<T>::zeros(share_ * communicator_.size());
    stack_.entries.reserve(stack_.entries.size() + 1);
    losses_.push_back(loss);  // nothing below throws
    ++next_;
    T* to = sum.data();
    for (const TensorView1<T>& gradient : gradients_) {
      to = std::copy_n(gradient.data(), gradient.size(), to);
      std::fill_n(gradient.data(), gradient.size(), T{0});
    }
    stack_.push({0, n}, std::move(sum), add_to);
  }

  /// Sets the gradients of every rank to the sum over all micro-batches, and returns the sum of
  /// their losses. Every rank calls it after its last add(); the tree is then ready for the next
  /// step. Throws ValueError on every rank if a micro-batch is missing on one; add it and call
  /// finish() again.
  double finish() {
    detail::agree(communicator_, "GradientTree::finish", [&] {
      if (next_ != micro_batches().end) {
        throw ValueError(message("GradientTree::finish", "all micro-batches of this rank",
                                 "have been added", to_string(next_) + " as the next one"));
      }
      return detail::AgreedFields();
    });
    double loss = 0;
    detail::run_or_fail(communicator_, [&] {
      set_sums();
      loss = sum_losses();
    });
    stack_.entries.clear();
    losses_.clear();
    next_ = micro_batches().begin;
    return loss;
  }

 private:
  static void add_to(Buffer<T>& sum, const Buffer<T>& x) {
    for (index_t n = 0; n < sum.size(); ++n) sum.data()[n] += x.data()[n];
  }

  IndexRange micro_batches_of(index_t rank) const {
    const index_t ranks = communicator_.size();
    return {stack_.count * rank / ranks, stack_.count * (rank + 1) / ranks};
  }

  /// The nodes that a rank has after its last micro-batch.
  std::vector<detail::TreeNode> nodes_of(int rank) const {
    struct Nothing {};
    detail::TreeStack<Nothing> stack{stack_.count};
    for (index_t n = micro_batches_of(rank).begin; n < micro_batches_of(rank).end; ++n) {
      stack.push({0, n}, {}, [](Nothing&, const Nothing&) {});
    }
    std::vector<detail::TreeNode> nodes;
    for (const auto& entry : stack.entries) nodes.push_back(entry.node);
    return nodes;
  }

  void set_sums() {
    Buffer<T> own = add_share(), all(share_ * communicator_.size());
    communicator_.all_gather(detail::bytes_of(own), detail::bytes_of(all));
    const T* from = all.data();
    for (const TensorView1<T>& gradient : gradients_) {
      std::copy_n(from, gradient.size(), gradient.data());
      from += gradient.size();
    }
  }

  /// In the order of micro-batches.
  double sum_losses() {
    const index_t ranks = communicator_.size(), most = (stack_.count + ranks - 1) / ranks;
    std::vector<double> all(static_cast<std::size_t>(most * ranks));
    losses_.resize(static_cast<std::size_t>(most));
    communicator_.all_gather(std::as_bytes(std::span(losses_)),
                             std::as_writable_bytes(std::span(all)));
    double sum = 0;
    for (index_t rank = 0; rank < ranks; ++rank) {
      const IndexRange range = micro_batches_of(rank);
      for (index_t n = 0; n < range.end - range.begin; ++n) {
        sum += all[static_cast<std::size_t>(rank * most + n)];
      }
    }
    return sum;
  }

  /// This rank's share of the elements, added over all ranks.
  Buffer<T> add_share() {
    std::vector<std::unique_ptr<Request>> requests;
    for (auto& entry : stack_.entries) {
      for (int to = 0; to < communicator_.size(); ++to) {
        requests.push_back(
            communicator_.send(to, std::as_bytes(std::span(entry.sum.data() + to * share_,
                                                           static_cast<std::size_t>(share_)))));
      }
    }
    detail::TreeStack<Buffer<T>> shares{stack_.count};
    for (int from = 0; from < communicator_.size(); ++from) {
      for (const detail::TreeNode& node : nodes_of(from)) {
        Buffer<T> share(share_);
        communicator_.receive(from, detail::bytes_of(share))->wait();
        shares.push(node, std::move(share), add_to);
      }
    }
    for (const auto& request : requests) request->wait();
    return std::move(shares.entries.front().sum);
  }

  Communicator& communicator_;
  std::vector<TensorView1<T>> gradients_;
  std::vector<double> losses_;  ///< of this rank's micro-batches
  index_t size_ = 0, share_ = 0, next_ = 0;
  detail::TreeStack<Buffer<T>> stack_;
};

ATTN_NAMESPACE_END
