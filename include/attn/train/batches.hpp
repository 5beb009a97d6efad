// Batches: example indices in a random order per epoch, resumable.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <numeric>
#include <span>
#include <string>
#include <vector>

#include "attn/core/error.hpp"
#include "attn/core/random.hpp"
#include "attn/core/shape.hpp"
#include "attn/core/view.hpp"

ATTN_NAMESPACE_BEGIN

/// Batches of indices of examples 0 .. count - 1. An epoch's order depends only on the seed and the
/// epoch's number. Examples that do not fill the last batch of an epoch are skipped.
class Batches {
 public:
  /// The state that a checkpoint saves.
  struct Position {
    std::uint64_t seed = 0;
    index_t epoch = 0, batch = 0;
    bool operator==(const Position&) const = default;
  };

  /// Throws ValueError unless 1 <= batch_size <= count.
  Batches(index_t count, index_t batch_size, std::uint64_t seed) : size_(batch_size) {
    if (batch_size < 1 || batch_size > count) {
      throw ValueError(message("Batches", "batch_size", "lie in 1 .. " + std::to_string(count),
                               std::to_string(batch_size)));
    }
    order_.resize(static_cast<std::size_t>(count));
    move_to({.seed = seed});
  }

  const Position& position() const { return position_; }
  index_t per_epoch() const { return static_cast<index_t>(order_.size()) / size_; }

  /// Continues from a saved position. Throws ValueError for a batch outside the epoch.
  void move_to(const Position& position) {
    if (position.batch < 0 || position.batch > per_epoch()) {
      throw ValueError(message("Batches", "position.batch",
                               "lie in 0 .. " + std::to_string(per_epoch()),
                               std::to_string(position.batch)));
    }
    position_ = position;
    shuffle();
  }

  /// The next batch, valid until the next call.
  std::span<const index_t> next() {
    if (position_.batch == per_epoch()) {
      ++position_.epoch;
      position_.batch = 0;
      shuffle();
    }
    const std::size_t first = static_cast<std::size_t>(position_.batch++ * size_);
    return std::span<const index_t>(order_).subspan(first, static_cast<std::size_t>(size_));
  }

 private:
  /// Fisher-Yates: the standard does not specify std::shuffle to the bit.
  void shuffle() {
    std::iota(order_.begin(), order_.end(), index_t{0});
    detail::MersenneTwister random({static_cast<std::uint32_t>(position_.seed),
                                    static_cast<std::uint32_t>(position_.seed >> 32),
                                    static_cast<std::uint32_t>(position_.epoch)});
    for (std::size_t n = order_.size(); n > 1; --n) {
      std::swap(order_[n - 1], order_[random() % n]);
    }
  }

  index_t size_;
  Position position_;
  std::vector<index_t> order_;
};

/// Micro-batch n of the `count` equal ones of a batch. Throws ValueError unless count divides the
/// batch's size and n lies in 0 .. count - 1.
inline std::span<const index_t> micro_batch(std::span<const index_t> batch, index_t n,
                                            index_t count) {
  if (count < 1 || std::ssize(batch) % count != 0) {
    throw ValueError(message("micro_batch", "count",
                             "divide the batch's size, " + std::to_string(std::ssize(batch)),
                             std::to_string(count)));
  }
  if (n < 0 || n >= count) {
    throw ValueError(
        message("micro_batch", "n", "lie in 0 .. " + std::to_string(count - 1), std::to_string(n)));
  }
  const index_t size = std::ssize(batch) / count;
  return batch.subspan(static_cast<std::size_t>(n * size), static_cast<std::size_t>(size));
}
template <TemporaryOwner X>
std::span<const index_t> micro_batch(X&&, index_t, index_t) = delete;  // would dangle

ATTN_NAMESPACE_END
