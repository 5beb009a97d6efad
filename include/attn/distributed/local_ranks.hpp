// LocalCommunicator, run_local_ranks: ranks that are threads of one process.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstring>
#include <exception>
#include <map>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "attn/distributed/communicator.hpp"

ATTN_NAMESPACE_BEGIN

namespace detail {

/// Messages between the threads of run_local_ranks(). They are copied: if an exception on a rank
/// frees its buffers, no other thread may still write to them.
class LocalMessages {
 public:
  /// The group, sender and receiver of a message, whether it is part of a collective call, and its
  /// number among such messages.
  using Key = std::tuple<std::string, int, int, bool, std::size_t>;

  explicit LocalMessages(std::optional<std::chrono::milliseconds> limit) : limit_(limit) {}

  void put(const Key& key, std::span<const std::byte> data) {
    const std::lock_guard lock(mutex_);
    throw_if_failed();
    waiting_[key].assign(data.begin(), data.end());
    arrived_.notify_all();
  }

  /// Copies the message to `data` if it has arrived; returns whether it has.
  bool take(const Key& key, std::span<std::byte> data) {
    const std::lock_guard lock(mutex_);
    return take_locked(key, data);
  }

  /// Waits for the message, up to the time limit.
  void wait(const Key& key, std::span<std::byte> data) {
    std::unique_lock lock(mutex_);
    const auto arrived = [&] { return take_locked(key, data); };
    if (!limit_) return arrived_.wait(lock, arrived);
    if (arrived_.wait_for(lock, *limit_, arrived)) return;
    throw std::runtime_error("[run_local_ranks] rank " + std::to_string(std::get<2>(key)) +
                             " waited longer than the limit of time for rank " +
                             std::to_string(std::get<1>(key)) + ".");
  }

  /// Called within a handler of the exception that ends a rank.
  void fail(int rank, std::string_view text) {
    const std::lock_guard lock(mutex_);
    if (failure_) return;
    failure_ = std::current_exception();
    failure_text_ = "rank " + std::to_string(rank) + " failed: " + std::string(text);
    arrived_.notify_all();
  }
  /// The first exception that ended a rank; null if there was none.
  std::exception_ptr failure() {
    const std::lock_guard lock(mutex_);
    return failure_;
  }

 private:
  void throw_if_failed() const {
    if (failure_) throw std::runtime_error(failure_text_);
  }

  bool take_locked(const Key& key, std::span<std::byte> data) {
    const auto found = waiting_.find(key);
    if (found == waiting_.end()) {
      throw_if_failed();
      return false;
    }
    if (found->second.size() != data.size()) {
      throw ValueError(message("Communicator", "a message",
                               "have the size of its receive, " + std::to_string(data.size()),
                               std::to_string(found->second.size())));
    }
    if (!data.empty()) std::memcpy(data.data(), found->second.data(), data.size());
    waiting_.erase(found);
    return true;
  }

  std::optional<std::chrono::milliseconds> limit_;
  std::mutex mutex_;
  std::condition_variable arrived_;
  std::map<Key, std::vector<std::byte>> waiting_;
  std::exception_ptr failure_;
  std::string failure_text_;
};

}  // namespace detail

/// A rank that is a thread. By default a group of one rank, for programs that run without MPI.
class LocalCommunicator final : public Communicator {
 public:
  LocalCommunicator()
      : LocalCommunicator(std::make_shared<detail::LocalMessages>(std::nullopt), "", 0, 1) {}
  /// One of `size` ranks that share `messages`; run_local_ranks() makes them.
  LocalCommunicator(std::shared_ptr<detail::LocalMessages> messages, std::string group, int rank,
                    int size)
      : messages_(std::move(messages)),
        group_(std::move(group)),
        rank_(rank),
        size_(size),
        sent_(static_cast<std::size_t>(2 * size)),
        received_(static_cast<std::size_t>(2 * size)) {}

  int rank() const override { return rank_; }
  int size() const override { return size_; }

  std::unique_ptr<Request> send(int to, std::span<const std::byte> data) override {
    detail::check_rank("Communicator::send", "to", to, size_);
    messages_->put(next_to(to, false), data);
    return std::make_unique<Sent>();
  }
  std::unique_ptr<Request> receive(int from, std::span<std::byte> data) override {
    detail::check_rank("Communicator::receive", "from", from, size_);
    return std::make_unique<Receive>(messages_, next_from(from, false), data);
  }

  void broadcast(int root, std::span<std::byte> data) override {
    detail::check_rank("Communicator::broadcast", "root", root, size_);
    if (rank_ != root) return messages_->wait(next_from(root, true), data);
    for (int to = 0; to < size_; ++to) {
      if (to != root) messages_->put(next_to(to, true), data);
    }
  }
  void all_gather(std::span<const std::byte> mine, std::span<std::byte> all) override {
    detail::check_all_gather(mine, all, size_);
    for (int to = 0; to < size_; ++to) messages_->put(next_to(to, true), mine);
    for (int from = 0; from < size_; ++from) {
      messages_->wait(next_from(from, true),
                      all.subspan(static_cast<std::size_t>(from) * mine.size(), mine.size()));
    }
  }
  void barrier() override { all_gather({}, {}); }

  std::unique_ptr<Communicator> split(int group) override {
    const std::vector<int> groups = detail::gather_groups(*this, group);
    int rank = 0, size = 0;
    for (int other = 0; other < size_; ++other) {
      if (groups[static_cast<std::size_t>(other)] != group) continue;
      if (other < rank_) ++rank;
      ++size;
    }
    std::string name = group_ + "/" + std::to_string(splits_++) + ":" + std::to_string(group);
    return std::make_unique<LocalCommunicator>(messages_, std::move(name), rank, size);
  }

  void fail(std::string_view text) noexcept override {
    try {
      messages_->fail(rank_, text);
    } catch (...) {  // no memory for the text: waiting ranks end at their time limit
    }
  }

 private:
  using Key = detail::LocalMessages::Key;

  class Sent final : public Request {
   public:
    bool poll() override { return true; }
    void wait() override {}
  };

  class Receive final : public Request {
   public:
    Receive(std::shared_ptr<detail::LocalMessages> messages, Key key, std::span<std::byte> data)
        : messages_(std::move(messages)), key_(std::move(key)), data_(data) {}
    bool poll() override {
      done_ = done_ || messages_->take(key_, data_);
      return done_;
    }
    void wait() override {
      if (!done_) messages_->wait(key_, data_);
      done_ = true;
    }

   private:
    std::shared_ptr<detail::LocalMessages> messages_;
    Key key_;
    std::span<std::byte> data_;
    bool done_ = false;
  };

  static std::size_t at(int rank, bool collective) {
    return static_cast<std::size_t>(2 * rank + (collective ? 1 : 0));
  }
  Key next_to(int to, bool collective) {
    return {group_, rank_, to, collective, sent_.at(at(to, collective))++};
  }
  Key next_from(int from, bool collective) {
    return {group_, from, rank_, collective, received_.at(at(from, collective))++};
  }

  std::shared_ptr<detail::LocalMessages> messages_;
  std::string group_;
  int rank_, size_, splits_ = 0;
  std::vector<std::size_t> sent_, received_;  ///< messages so far, of each rank
};

/// Calls f(Communicator&) on `ranks` threads of this process, each of which is a rank, so that a
/// distributed program runs and is tested without MPI. If f throws on a rank, calls of other ranks
/// that wait for it throw too, and run_local_ranks() throws the first exception. With a `limit`, a
/// rank that waits longer for a message throws std::runtime_error, which ends a deadlock. Throws
/// ValueError for ranks below 1.
template <class F>
void run_local_ranks(int ranks, const F& f,
                     std::optional<std::chrono::milliseconds> limit = std::nullopt) {
  if (ranks < 1) {
    throw ValueError(
        message("run_local_ranks", "ranks", "be at least 1", to_string(std::ptrdiff_t{ranks})));
  }
  const auto messages = std::make_shared<detail::LocalMessages>(limit);
  const auto run = [&](int rank) {
    LocalCommunicator communicator(messages, "", rank, ranks);
    try {
      f(static_cast<Communicator&>(communicator));
    } catch (const std::exception& error) {
      communicator.fail(error.what());
    } catch (...) {
      communicator.fail("unknown exception");
    }
  };
  std::vector<std::thread> threads;
  try {
    for (int rank = 0; rank < ranks; ++rank) threads.emplace_back(run, rank);
  } catch (const std::exception& error) {  // the system has no more: those that run must end
    messages->fail(static_cast<int>(threads.size()), error.what());
  }
  for (std::thread& thread : threads) thread.join();
  if (const std::exception_ptr failure = messages->failure()) std::rethrow_exception(failure);
}

ATTN_NAMESPACE_END
