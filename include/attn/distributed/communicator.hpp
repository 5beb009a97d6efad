// Communicator: the interface to a group of ranks that exchange messages.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string_view>

#include "attn/core/error.hpp"
#include "attn/core/shape.hpp"

ATTN_NAMESPACE_BEGIN

namespace detail {

inline void check_group(int group) {
  if (group >= 0) return;
  throw ValueError(
      message("Communicator::split", "group", "be at least 0", to_string(std::ptrdiff_t{group})));
}

}  // namespace detail

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
/// may call at a time.
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
  /// Sets `all` to the `mine` of every rank, in the order of ranks. All have the same size.
  virtual void all_gather(std::span<const std::byte> mine, std::span<std::byte> all) = 0;
  /// Returns when every rank has called it.
  virtual void barrier() = 0;

  /// Returns the group of all ranks that pass the same `group`, at least 0, in the order of their
  /// ranks here.
  virtual std::unique_ptr<Communicator> split(int group) = 0;

  /// Call it in the handler of an exception that ends the work of this rank, so that ranks that
  /// wait for it do not wait forever: they throw, or the program ends with `text`.
  virtual void fail(std::string_view text) noexcept = 0;
};

ATTN_NAMESPACE_END
