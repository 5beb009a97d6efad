// Communicator: what attn needs of a group of processes that work together.
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

/// A message under way. Its bytes must stay valid until poll() has returned true or wait() has
/// returned; the destructor gives the message up.
class Request {
 public:
  virtual ~Request() = default;
  /// Whether the message has arrived, or may be overwritten. Also moves other messages on: MPI
  /// transfers only while it is called.
  virtual bool poll() = 0;
  virtual void wait() = 0;
};

/// A group of ranks 0 .. size() - 1, as Executor is a group of threads. Every rank calls broadcast,
/// all_gather, barrier and split in the same order. Messages between two ranks arrive in the order
/// in which they were sent; receives take them in the order in which they were started. Data is
/// bytes, also more than 2^31. One thread of a rank calls at a time.
class Communicator {
 public:
  virtual ~Communicator() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;

  /// Starts to send `data` to rank `to`, which starts a receive of the same size.
  virtual std::unique_ptr<Request> send(int to, std::span<const std::byte> data) = 0;
  virtual std::unique_ptr<Request> receive(int from, std::span<std::byte> data) = 0;

  /// data = that of rank `root`.
  virtual void broadcast(int root, std::span<std::byte> data) = 0;
  /// all = the data of all ranks, each of the same size, in the order of ranks.
  virtual void all_gather(std::span<const std::byte> mine, std::span<std::byte> all) = 0;
  /// Returns when every rank has called it.
  virtual void barrier() = 0;

  /// Returns the group of all ranks that pass the same `group`, at least 0, in the order of their
  /// ranks here.
  virtual std::unique_ptr<Communicator> split(int group) = 0;

  /// Called in a handler of an exception that ends the work of this rank: ranks that wait for it
  /// must not wait for ever. They throw, or the program ends with `text`.
  virtual void fail(std::string_view text) noexcept = 0;
};

ATTN_NAMESPACE_END
