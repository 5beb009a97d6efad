// GradientTree: sums gradients of micro-batches over ranks, with the bits of one process.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <vector>

#include "attn/core/buffer.hpp"
#include "attn/distributed/parameter_parts.hpp"
#include "attn/distributed/tree_stack.hpp"

ATTN_NAMESPACE_BEGIN

template <class Optimizer>
class ShardedOptimizer;

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
/// For the mean, scale each loss by 1 / count. A rank stores a copy of all gradients for each sum
/// that waits for a later micro-batch of this rank, and none if it has one micro-batch. Each rank
/// receives the other ranks' sums for its part of the elements and adds them; finish() without an
/// optimizer then gathers all parts.
template <class T>
class GradientTree {
 public:
  /// All ranks construct it, with parameters of the same names and sizes. Refers to communicator
  /// and gradients. Throws ValueError for count below 1, and on every rank if ranks differ.
  GradientTree(Communicator& communicator, const std::vector<TrainedParameter<T>>& parameters,
               index_t count)
      : communicator_(communicator), parts_(parameters, communicator.size()), stack_{count} {
    detail::agree(communicator, "GradientTree", [&] {
      if (count < 1) {
        throw ValueError(message("GradientTree", "count", "be at least 1", to_string(count)));
      }
      for (const TrainedParameter<T>& parameter : parameters) {
        gradients_.push_back({parameter.gradient, {parameter.size}});
      }
      detail::AgreedFields fields;
      fields.add("count", count);
      detail::add_parameters(fields, parameters);
      return fields;
    });
    for (int rank = 0; rank < communicator.size(); ++rank) {
      blocks_.push_back(parts_.ranges_of(rank, kBlock));
      add_nodes_of(rank);
    }
    next_ = micro_batches().begin;
  }

  /// The micro-batches of this rank.
  IndexRange micro_batches() const { return micro_batches_of(communicator_.rank()); }

  /// Takes over the gradients of micro-batch n, and its loss. Sets the gradients to 0 for the next
  /// micro-batch; after the last one they hold a sum of this rank, which must not change until
  /// finish(). Throws ValueError unless this rank adds its micro-batches in order, and
  /// std::bad_alloc; both leave gradients and tree unchanged.
  void add(index_t n, double loss = 0) {
    if (n != next_ || n >= micro_batches().end) {
      throw ValueError(message("GradientTree::add", "n",
                               next_ < micro_batches().end
                                   ? detail::join({"be ", to_string(next_), ", the next one"})
                                   : "not be given: all micro-batches of this rank were added",
                               to_string(n)));
    }
    const bool is_last = n + 1 == micro_batches().end;
    const detail::TreeNode node{0, n};
    const bool merges = !stack_.entries.empty() && stack_.entries.back().node.is_left_of(node);
    stack_.entries.reserve(stack_.entries.size() + 1);
    losses_.reserve(losses_.size() + 1);
    spare_.reserve(stack_.entries.size() + 2);
    if (!is_last && !merges && spare_.empty()) spare_.emplace_back(parts_.size());
    // Nothing below throws.
    next_ = n + 1;
    losses_.push_back(loss);
    stack_.push(node, Sum(),
                [&](Sum& left, Sum& right) { add_to(left, std::move(right), is_last); });
    Sum& last = stack_.entries.back().sum;
    if (is_last || !is_in_gradients(last)) return;
    last = std::move(spare_.back());
    spare_.pop_back();
    each_gradient(last, [](T* sum, T* gradient, index_t size) {
      std::copy_n(gradient, size, sum);
      std::fill_n(gradient, size, T{0});
    });
  }

  /// Sets the gradients of every rank to the sum over all micro-batches, and returns the sum of
  /// their losses. Every rank calls it after its last add(); the tree is then ready for the next
  /// step. Throws ValueError on every rank if a micro-batch is missing on one; add it and call
  /// finish() again.
  double finish() {
    return finish([] {}, true);
  }

  /// Sets only the gradients of this rank's part of the optimizer, which is all that its
  /// gradient_norm() and step() need. The other gradients are unspecified and must not be read.
  /// Throws ValueError on every rank if the optimizer has other parameters or another communicator.
  template <class Optimizer>
  double finish(const ShardedOptimizer<Optimizer>& optimizer) {
    return finish([&] { check_optimizer(optimizer.communicator(), optimizer.parameters()); },
                  false);
  }

 private:
  /// Elements of one message, which fit a core's cache: sums are added block by block.
  static constexpr index_t kBlock = index_t{1} << 16;
  /// Blocks that a rank sends to each other one before it waits for its own: it waits for a slower
  /// rank only if it is this many blocks ahead. Bounds the messages that are sent but not received,
  /// which LocalCommunicator copies.
  static constexpr std::size_t kSentAhead = 256;

  /// A sum over micro-batches: elements of all parameters, or empty if the gradients are the sum.
  using Sum = Buffer<T>;
  static bool is_in_gradients(const Sum& sum) { return sum.size() == 0; }

  /// A sum that a rank has after its last micro-batch.
  struct RankNode {
    int rank;
    detail::TreeNode node;
  };

  /// The messages of one block of this rank's part.
  struct Arrival {
    detail::Requests receives;
    Buffer<T> received;  ///< a block for each of nodes_
  };

  /// Calls f(sum, gradient, size) for the elements of each parameter.
  template <class F>
  void each_gradient(const Sum& sum, F f) {
    for (std::size_t n = 0; n < gradients_.size(); ++n) {
      f(sum.data() + parts_.begin(n), gradients_[n].data(), gradients_[n].size());
    }
  }

  /// left += right, which may be the gradients. After the last micro-batch they are right, and the
  /// sum replaces them.
  void add_to(Sum& left, Sum right, bool is_last) {
    if (!is_in_gradients(right)) {
      add_elements(left.data(), right.data(), left.size());
      spare_.push_back(std::move(right));
    } else if (is_last) {
      each_gradient(
          left, [](const T* sum, T* gradient, index_t size) { add_elements(gradient, sum, size); });
      spare_.push_back(std::move(left));
    } else {
      each_gradient(left, [](T* sum, T* gradient, index_t size) {
        add_elements(sum, gradient, size);
        std::fill_n(gradient, size, T{0});
      });
    }
  }
  static void add_elements(T* sum, const T* x, index_t size) {
    for (index_t n = 0; n < size; ++n) sum[n] += x[n];
  }

  IndexRange micro_batches_of(index_t rank) const {
    const index_t ranks = communicator_.size();
    return {stack_.count * rank / ranks, stack_.count * (rank + 1) / ranks};
  }

  void add_nodes_of(int rank) {
    struct Nothing {};
    detail::TreeStack<Nothing> stack{stack_.count};
    for (index_t n = micro_batches_of(rank).begin; n < micro_batches_of(rank).end; ++n) {
      stack.push({0, n}, {}, [](Nothing&, const Nothing&) {});
    }
    for (const auto& entry : stack.entries) nodes_.push_back({rank, entry.node});
  }

  void check_optimizer(const Communicator& communicator,
                       const std::vector<TrainedParameter<T>>& parameters) const {
    const auto is_own = [](const TrainedParameter<T>& parameter, const TensorView1<T>& gradient) {
      return parameter.gradient == gradient.data() && parameter.size == gradient.size();
    };
    if (&communicator == &communicator_ &&
        std::equal(parameters.begin(), parameters.end(), gradients_.begin(), gradients_.end(),
                   is_own)) {
      return;
    }
    throw ValueError(message("GradientTree::finish", "optimizer",
                             "have the tree's communicator and parameters", "others"));
  }

  template <class Check>
  double finish(const Check& check, bool gathers) {
    detail::agree(communicator_, "GradientTree::finish", [&] {
      check();
      if (next_ != micro_batches().end) {
        throw ValueError(message("GradientTree::finish", "all micro-batches of this rank",
                                 "have been added", to_string(next_) + " as the next one"));
      }
      detail::AgreedFields fields;
      fields.add("whether an optimizer is given", index_t{gathers ? 0 : 1});
      return fields;
    });
    double loss = 0;
    detail::run_or_fail(communicator_, [&] {
      add_part();
      if (gathers) {
        detail::gather_parts(communicator_, parts_,
                             [&](std::size_t n) { return gradients_[n].data(); });
      }
      loss = sum_losses();
    });
    for (auto& entry : stack_.entries) {
      if (!is_in_gradients(entry.sum)) spare_.push_back(std::move(entry.sum));
    }
    stack_.entries.clear();
    losses_.clear();
    next_ = micro_batches().begin;
    return loss;
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

  /// Sets the gradients of this rank's part to the sums over all ranks. A block arrives while the
  /// one before it is added.
  void add_part() {
    std::size_t blocks = 0, sent = 0;
    for (const auto& of_rank : blocks_) blocks = (std::max)(blocks, of_rank.size());
    detail::Requests sends;
    for (std::size_t block = 0; block <= blocks; ++block) {
      for (; sent < (std::min)(block + kSentAhead, blocks); ++sent) send(sent, sends);
      if (block < blocks) receive(block, arrivals_[block % 2]);
      if (block > 0) add_block(block - 1, arrivals_[(block - 1) % 2]);
    }
    detail::wait_for(sends);
  }

  /// Sends this rank's sums of a block of each other rank's part.
  void send(std::size_t block, detail::Requests& sends) {
    detail::each_peer(communicator_, [&](int to, int) {
      const detail::ParameterRange* range = block_of(to, block);
      if (range == nullptr) return;
      for (const auto& entry : stack_.entries) {
        const std::span<T> elements(at(entry.sum, *range), static_cast<std::size_t>(range->size()));
        sends.push_back(communicator_.send(to, std::as_bytes(elements)));
      }
    });
  }

  void receive(std::size_t block, Arrival& arrival) {
    const detail::ParameterRange* own = block_of(communicator_.rank(), block);
    if (own == nullptr) return;
    const index_t slots = static_cast<index_t>(nodes_.size());
    if (arrival.received.size() == 0) arrival.received = Buffer<T>(slots * kBlock);
    detail::each_peer(communicator_, [&](int, int from) {
      for (index_t slot = 0; slot < slots; ++slot) {
        if (nodes_[static_cast<std::size_t>(slot)].rank != from) continue;
        const std::span<T> elements(arrival.received.data() + slot * kBlock,
                                    static_cast<std::size_t>(own->size()));
        arrival.receives.push_back(communicator_.receive(from, std::as_writable_bytes(elements)));
      }
    });
  }

  void add_block(std::size_t block, Arrival& arrival) {
    const detail::ParameterRange* range = block_of(communicator_.rank(), block);
    if (range == nullptr) return;
    detail::wait_for(arrival.receives);
    detail::TreeStack<T*> sums{stack_.count};
    auto own = stack_.entries.begin();
    T* received = arrival.received.data();
    for (const RankNode& node : nodes_) {
      const bool is_own = node.rank == communicator_.rank();
      sums.push(node.node, is_own ? at((own++)->sum, *range) : received,
                [&](T* left, const T* right) { add_elements(left, right, range->size()); });
      received += kBlock;
    }
    const T* sum = sums.entries.front().sum;
    T* const gradient = at({}, *range);
    if (sum != gradient) std::copy_n(sum, range->size(), gradient);
  }

  /// nullptr if the part of `rank` has fewer blocks.
  const detail::ParameterRange* block_of(int rank, std::size_t block) const {
    const auto& blocks = blocks_[static_cast<std::size_t>(rank)];
    return block < blocks.size() ? &blocks[block] : nullptr;
  }
  T* at(const Sum& sum, const detail::ParameterRange& range) const {
    T* const begin = is_in_gradients(sum) ? gradients_[range.parameter].data()
                                          : sum.data() + parts_.begin(range.parameter);
    return begin + range.range.begin;
  }

  Communicator& communicator_;
  detail::ParameterParts parts_;
  std::vector<TensorView1<T>> gradients_;
  std::vector<std::vector<detail::ParameterRange>> blocks_;  ///< of each rank's part
  std::vector<RankNode> nodes_;                              ///< of all ranks, in order
  std::vector<double> losses_;                               ///< of this rank's micro-batches
  index_t next_ = 0;
  detail::TreeStack<Sum> stack_;
  std::vector<Sum> spare_;  ///< kept for the next step
  std::array<Arrival, 2> arrivals_;
};

ATTN_NAMESPACE_END
