// Local ranks: messages, collective calls, groups, failures, time limits; token layouts.
#include <atomic>
#include <chrono>
#include <limits>
#include <stdexcept>
#include <thread>  // ranks are of std::thread: the thread sanitizer runs this file

#include <gtest/gtest.h>

#include "attn/distributed.hpp"

#include "distributed/communicator_check.hpp"
#include "support/error_of.hpp"

namespace attn {
namespace {

using attn_test::contains;
using attn_test::error_of;
using namespace std::chrono_literals;

TEST(DistributedLocalRanks, ExchangeMessages) {
  for (int ranks : {1, 2, 3, 4, 7}) {
    std::atomic<int> right = 0;
    run_local_ranks(
        ranks, [&](Communicator& comm) { right += attn_test::exchanges_are_right(comm) ? 1 : 0; },
        20s);
    EXPECT_EQ(right, ranks);
  }
  LocalCommunicator alone;
  EXPECT_TRUE(attn_test::exchanges_are_right(alone));
}

TEST(DistributedLocalRanks, AnExceptionEndsTheRanksThatWait) {
  std::atomic<int> ended = 0;
  const auto run = [&] {
    run_local_ranks(
        3,
        [&](Communicator& comm) {
          if (comm.rank() == 1) throw std::domain_error("no more memory");
          try {
            comm.barrier();
          } catch (const std::runtime_error& error) {
            EXPECT_STREQ(error.what(), "rank 1 failed: no more memory");
            ++ended;
            throw;
          }
        },
        20s);
  };
  EXPECT_EQ(error_of<std::domain_error>(run), "no more memory");
  EXPECT_EQ(ended, 2);
}

TEST(DistributedLocalRanks, ADeadlockEndsByTheLimitOfTime) {
  const auto run = [] {
    run_local_ranks(
        2,
        [](Communicator& comm) {
          std::byte data{};
          comm.receive(1 - comm.rank(), std::span(&data, 1))->wait();
        },
        50ms);
  };
  EXPECT_TRUE(contains(error_of<std::runtime_error>(run), "waited longer than the limit of time"));
}

TEST(DistributedLocalRanks, RefuseWrongArguments) {
  EXPECT_EQ(error_of<ValueError>([] { run_local_ranks(0, [](Communicator&) {}); }),
            "[run_local_ranks] ranks must be at least 1; found 0.");
  LocalCommunicator alone;
  EXPECT_EQ(error_of<ValueError>([&] { alone.split(-1); }),
            "[Communicator::split] group must be at least 0; found -1.");
  std::byte two[2] = {};
  alone.send(0, two);
  EXPECT_EQ(error_of<ValueError>([&] { alone.receive(0, std::span(two, 1))->wait(); }),
            "[Communicator] a message must have the size of its receive, 1; found 2.");
  for (int rank : {-1, 1}) {
    const std::string found = " must lie in 0 .. 0; found " + std::to_string(rank) + ".";
    EXPECT_EQ(error_of<ValueError>([&] { alone.send(rank, two); }),
              "[Communicator::send] to" + found);
    EXPECT_EQ(error_of<ValueError>([&] { alone.receive(rank, two); }),
              "[Communicator::receive] from" + found);
    EXPECT_EQ(error_of<ValueError>([&] { alone.broadcast(rank, two); }),
              "[Communicator::broadcast] root" + found);
  }
  EXPECT_EQ(error_of<ValueError>([&] { alone.all_gather(two, std::span(two, 1)); }),
            "[Communicator::all_gather] all must have the bytes of all ranks, 2; found 1.");
}

TEST(DistributedLocalRanks, AWrongGroupOfOneRankIsAnErrorOnAll) {
  std::atomic<int> errors = 0;
  run_local_ranks(
      3,
      [&](Communicator& comm) {
        EXPECT_EQ(error_of<ValueError>([&] { comm.split(comm.rank() == 1 ? -7 : 0); }),
                  "[Communicator::split] group must be at least 0; found -7.");
        ++errors;
      },
      20s);
  EXPECT_EQ(errors, 3);
}

TEST(DistributedContextLayout, EachTokenHasOneRankAndZigzagSharesTheWork) {
  for (const auto kind : {ContextLayout::Kind::contiguous, ContextLayout::Kind::zigzag}) {
    for (index_t seq : {0, 1, 5, 16, 1001}) {
      for (int ranks : {1, 2, 3, 7}) {
        const ContextLayout layout(seq, ranks, kind);
        std::vector<int> seen(static_cast<std::size_t>(seq));
        for (int rank = 0; rank < ranks; ++rank) {
          index_t tokens = 0;
          for (const IndexRange& range : layout.ranges(rank)) {
            for (index_t i = range.begin; i < range.end; ++i)
              ++seen.at(static_cast<std::size_t>(i));
            tokens += range.end - range.begin;
          }
          EXPECT_EQ(layout.size(rank), tokens);
          EXPECT_LE(std::abs(tokens * ranks - seq), 2 * ranks);
        }
        EXPECT_EQ(std::count(seen.begin(), seen.end(), 1), seq);
      }
    }
  }
  EXPECT_EQ(error_of<ValueError>([] { ContextLayout(-1, 2); }),
            "[ContextLayout] seq must be at least 0; found -1.");
  EXPECT_EQ(error_of<ValueError>([] { ContextLayout(4, 0); }),
            "[ContextLayout] ranks must be at least 1; found 0.");
  const Tensor4<float> x({1, 1, 5, 2});
  EXPECT_TRUE(contains(error_of<ShapeError>([&] { local_tokens(ContextLayout(4, 2), 0, x); }),
                       "[local_tokens] x must have shape (batch, heads, seq, dim) = (1, 1, 4, 2)"));
  for (const auto kind : {ContextLayout::Kind::contiguous, ContextLayout::Kind::zigzag}) {
    const ContextLayout layout(5, 2, kind);
    for (int rank : {-1, 2}) {
      const std::string text =
          "[ContextLayout] rank must lie in 0 .. 1; found " + std::to_string(rank) + ".";
      EXPECT_EQ(error_of<ValueError>([&] { layout.ranges(rank); }), text);
      EXPECT_EQ(error_of<ValueError>([&] { layout.size(rank); }), text);
      EXPECT_EQ(error_of<ValueError>([&] { local_tokens(layout, rank, x); }), text);
    }
    // More ranks than half of the largest int.
    const int ranks = std::numeric_limits<int>::max();
    EXPECT_EQ(ContextLayout(5, ranks, kind).size(ranks - 1), 0);
    EXPECT_EQ(ContextLayout(5, ranks, kind).size(4), 1);
  }
}

}  // namespace
}  // namespace attn
