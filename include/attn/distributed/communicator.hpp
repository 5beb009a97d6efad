// Communicator: the interface to a group of ranks that exchange messages.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "attn/core/buffer.hpp"
#include "attn/core/error.hpp"

ATTN_NAMESPACE_BEGIN

/// A send or receive in progress. Its bytes must stay valid until poll() has returned true or
/// wait() has returned; the destructor abandons the message.
class Request {
 public:
  virtual ~Request() = default;
  /// Whether the receive is complete, or the sent bytes may be overwritten. Also advances other
  /// messages: MPI transfers data only while it is called.
  virtual bool poll() = 0;
  virtual void wait() = 0;
};

/// A group of ranks 0 .. size() - 1. All ranks call broadcast, all_gather, barrier and split in the
/// same order. Messages between two ranks arrive in the order of the sends, and match receives in
/// the order of the receive calls. Data may be larger than 2^31 bytes. Only one thread of a rank
/// may call at a time. Throws ValueError for a rank outside the group, or an `all` of another size.
class Communicator {
 public:
  virtual ~Communicator() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;

  /// Starts sending `data` to rank `to`, which must start a receive of the same size.
  virtual std::unique_ptr<Request> send(int to, std::span<const std::byte> data) = 0;
  virtual std::unique_ptr<Request> receive(int from, std::span<std::byte> data) = 0;

  /// Sets `data` on every rank to that of rank `root`.
  virtual void broadcast(int root, std::span<std::byte> data) = 0;
  /// Sets `all` to the `mine` of every rank, in the order of ranks. Every `mine` has the same size.
  virtual void all_gather(std::span<const std::byte> mine, std::span<std::byte> all) = 0;
  /// Returns when every rank has called it.
  virtual void barrier() = 0;

  /// Returns the group of all ranks that pass the same `group`, in the order of their ranks here.
  /// Throws ValueError on every rank if a `group` is below 0.
  virtual std::unique_ptr<Communicator> split(int group) = 0;

  /// Call it in the handler of an exception that ends the work of this rank, so that ranks that
  /// wait for it do not wait forever: they throw, or the program ends with `text`.
  virtual void fail(std::string_view text) noexcept = 0;
};

namespace detail {

/// Throws ValueError unless `rank` is one of `ranks`.
inline void check_rank(std::string_view function, std::string_view argument, int rank, int ranks) {
  if (rank >= 0 && rank < ranks) return;
  throw ValueError(message(function, argument,
                           join({"lie in 0 .. ", to_string(std::ptrdiff_t{ranks - 1})}),
                           to_string(std::ptrdiff_t{rank})));
}

/// Throws ValueError unless `all` holds a `mine` of every rank.
inline void check_all_gather(std::span<const std::byte> mine, std::span<const std::byte> all,
                             int ranks) {
  const std::size_t bytes = mine.size() * static_cast<std::size_t>(ranks);
  if (all.size() == bytes) return;
  const auto text = [](std::size_t size) { return to_string(static_cast<std::ptrdiff_t>(size)); };
  throw ValueError(message("Communicator::all_gather", "all",
                           join({"have the bytes of all ranks, ", text(bytes)}), text(all.size())));
}

/// The `group` that each rank passes to split(). Throws ValueError on every rank if one is below 0.
inline std::vector<int> gather_groups(Communicator& communicator, int group) {
  std::vector<int> groups(static_cast<std::size_t>(communicator.size()));
  communicator.all_gather(std::as_bytes(std::span(&group, 1)),
                          std::as_writable_bytes(std::span(groups)));
  for (const int other : groups) {
    if (other >= 0) continue;
    throw ValueError(
        message("Communicator::split", "group", "be at least 0", to_string(std::ptrdiff_t{other})));
  }
  return groups;
}

using Requests = std::vector<std::unique_ptr<Request>>;

/// Waits for all, and forgets them.
inline void wait_for(Requests& requests) {
  for (const auto& request : requests) request->wait();
  requests.clear();
}

template <class T>
std::span<std::byte> bytes_of(Buffer<T>& x) {
  return std::as_writable_bytes(std::span(x.data(), static_cast<std::size_t>(x.size())));
}

}  // namespace detail

ATTN_NAMESPACE_END
