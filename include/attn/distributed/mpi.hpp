// MpiCommunicator: ranks that are processes of an MPI program. Needs MPI: link attn::mpi.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <climits>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

// Only MPI's C interface.
#define OMPI_SKIP_MPICXX 1
#define MPICH_SKIP_MPICXX 1
#include <mpi.h>

#include "attn/distributed/communicator.hpp"

ATTN_NAMESPACE_BEGIN

/// A rank of an MPI program, started by mpirun. Errors of MPI end the program, which is
/// MPI's default. fail() ends it with MPI_Abort.
class MpiCommunicator final : public Communicator {
 public:
  /// All processes of the program. Initialises MPI if the program has not, and then finalises it
  /// when the program ends. Called by every process.
  MpiCommunicator() {
    int is_ready = 0;
    MPI_Initialized(&is_ready);
    if (is_ready == 0) {
      int provided = 0;
      MPI_Init_thread(nullptr, nullptr, MPI_THREAD_FUNNELED, &provided);
      std::atexit([] { MPI_Finalize(); });
    }
    take(MPI_COMM_WORLD);
  }
  /// The processes of a duplicate of `group`. All of them must call it.
  explicit MpiCommunicator(MPI_Comm group) { take(group); }
  MpiCommunicator(const MpiCommunicator&) = delete;
  MpiCommunicator& operator=(const MpiCommunicator&) = delete;
  ~MpiCommunicator() override { MPI_Comm_free(&group_); }

  int rank() const override { return rank_; }
  int size() const override { return size_; }

  std::unique_ptr<Request> send(int to, std::span<const std::byte> data) override {
    detail::check_rank("Communicator::send", "to", to, size_);
    auto request = std::make_unique<MpiRequest>();
    for_pieces(data, [&](std::span<const std::byte> piece) {
      MPI_Isend(piece.data(), static_cast<int>(piece.size()), MPI_BYTE, to, 0, group_,
                request->add());
    });
    return request;
  }
  std::unique_ptr<Request> receive(int from, std::span<std::byte> data) override {
    detail::check_rank("Communicator::receive", "from", from, size_);
    auto request = std::make_unique<MpiRequest>();
    for_pieces(data, [&](std::span<std::byte> piece) {
      MPI_Irecv(piece.data(), static_cast<int>(piece.size()), MPI_BYTE, from, 0, group_,
                request->add());
    });
    return request;
  }

  void broadcast(int root, std::span<std::byte> data) override {
    detail::check_rank("Communicator::broadcast", "root", root, size_);
    for_pieces(data, [&](std::span<std::byte> piece) {
      MPI_Bcast(piece.data(), static_cast<int>(piece.size()), MPI_BYTE, root, group_);
    });
  }
  void all_gather(std::span<const std::byte> mine, std::span<std::byte> all) override {
    detail::check_all_gather(mine, all, size_);
    if (mine.size() <= kMaxBytes) {
      const int bytes = static_cast<int>(mine.size());
      MPI_Allgather(mine.data(), bytes, MPI_BYTE, all.data(), bytes, MPI_BYTE, group_);
      return;
    }
    for (int root = 0; root < size_; ++root) {
      const auto part = all.subspan(static_cast<std::size_t>(root) * mine.size(), mine.size());
      if (root == rank_) std::copy(mine.begin(), mine.end(), part.begin());
      broadcast(root, part);
    }
  }
  void barrier() override { MPI_Barrier(group_); }

  std::unique_ptr<Communicator> split(int group) override {
    detail::gather_groups(*this, group);
    MPI_Comm part = MPI_COMM_NULL;
    MPI_Comm_split(group_, group, rank_, &part);
    auto result = std::make_unique<MpiCommunicator>(part);
    MPI_Comm_free(&part);
    return result;
  }

  void fail(std::string_view text) noexcept override {
    std::fprintf(stderr, "rank %d failed: %.*s\n", rank_, static_cast<int>(text.size()),
                 text.data());
    MPI_Abort(group_, 1);
  }

 private:
  /// MPI counts bytes in an int: longer messages are sent in pieces.
  static constexpr std::size_t kMaxBytes = std::size_t{1} << 30;
  static_assert(kMaxBytes <= INT_MAX);

  class MpiRequest final : public Request {
   public:
    MpiRequest() = default;
    MpiRequest(const MpiRequest&) = delete;
    MpiRequest& operator=(const MpiRequest&) = delete;
    ~MpiRequest() override {
      for (MPI_Request& piece : pieces_) {
        if (piece != MPI_REQUEST_NULL) MPI_Cancel(&piece);
      }
      wait();
    }

    MPI_Request* add() { return &pieces_.emplace_back(MPI_REQUEST_NULL); }
    bool poll() override {
      int is_done = 0;
      MPI_Testall(count(), pieces_.data(), &is_done, MPI_STATUSES_IGNORE);
      return is_done != 0;
    }
    void wait() override { MPI_Waitall(count(), pieces_.data(), MPI_STATUSES_IGNORE); }

   private:
    int count() const { return static_cast<int>(pieces_.size()); }
    std::vector<MPI_Request> pieces_;
  };

  void take(MPI_Comm group) {
    MPI_Comm_dup(group, &group_);
    MPI_Comm_rank(group_, &rank_);
    MPI_Comm_size(group_, &size_);
  }

  /// Calls f for each piece of `data`; once if it is empty, since both sides exchange a message.
  template <class Byte, class F>
  static void for_pieces(std::span<Byte> data, const F& f) {
    do {
      const std::size_t bytes = (std::min)(data.size(), kMaxBytes);
      f(data.first(bytes));
      data = data.subspan(bytes);
    } while (!data.empty());
  }

  MPI_Comm group_ = MPI_COMM_NULL;
  int rank_ = 0, size_ = 0;
};

ATTN_NAMESPACE_END
