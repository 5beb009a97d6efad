// Gradients of micro-batches on any number of ranks have the bits of one process.
#include <algorithm>
#include <cstring>
#include <thread>  // ranks are of std::thread: the thread sanitizer runs this file

#include <gtest/gtest.h>

#include "attn/distributed.hpp"

#include "support/error_of.hpp"
#include "support/random.hpp"

namespace attn {
namespace {

using attn_test::error_of;
using attn_test::Random;
using namespace std::chrono_literals;

constexpr std::size_t kSizes[] = {7, 1, 130};
using Gradient = std::vector<float>;  // of all parameters, joined

/// The gradients of micro-batch n.
Gradient gradient_of(index_t n) {
  Random random(static_cast<std::uint64_t>(n));
  Gradient gradient(7 + 1 + 130);
  for (float& x : gradient)
    x = static_cast<float>(random.normal() * std::exp2(random.integer(-9, 9)));
  return gradient;
}

/// The sum of micro-batches [first, first + size) of `count`; size is a power of two.
Gradient sum_of(index_t first, index_t size, index_t count) {
  if (size == 1) return gradient_of(first);
  Gradient left = sum_of(first, size / 2, count);
  if (first + size / 2 >= count) return left;
  const Gradient right = sum_of(first + size / 2, size / 2, count);
  for (std::size_t x = 0; x < left.size(); ++x) left[x] += right[x];
  return left;
}

/// The parameters whose gradients lie in `memory`.
std::vector<TrainedParameter<float>> parameters_in(Gradient& memory) {
  std::vector<TrainedParameter<float>> parameters;
  float* at = memory.data();
  for (const std::size_t size : kSizes) {
    parameters.push_back(
        {.name = "weight", .value = nullptr, .gradient = at, .size = static_cast<index_t>(size)});
    at += size;
  }
  return parameters;
}

TEST(DistributedGradientTree, HasTheBitsOfOneProcess) {
  for (index_t count : {1, 2, 3, 5, 6, 8, 13, 16, 21}) {
    const Gradient expected = sum_of(0, 32, count);
    for (int ranks : {1, 2, 3, 4, 7}) {
      SCOPED_TRACE(std::to_string(count) + " micro-batches on " + std::to_string(ranks));
      run_local_ranks(
          ranks,
          [&](Communicator& comm) {
            Gradient memory(expected.size());
            GradientTree<float> tree(comm, parameters_in(memory), count);
            for (int step = 0; step < 2; ++step) {
              const IndexRange own = tree.micro_batches();
              for (index_t n = own.begin; n < own.end; ++n) {
                if (n > own.begin) {
                  EXPECT_EQ(memory, Gradient(memory.size()));
                }
                const Gradient gradient = gradient_of(n);
                std::copy(gradient.begin(), gradient.end(), memory.begin());
                tree.add(n);
              }
              tree.finish();
              EXPECT_EQ(
                  std::memcmp(memory.data(), expected.data(), expected.size() * sizeof(float)), 0);
            }
          },
          20s);
    }
  }
}

/// Parts of several messages, the last of another size; with an optimizer, only a part is summed.
TEST(DistributedGradientTree, AddsLongParameters) {
  constexpr index_t kSize = 300'001, kCount = 5;
  const auto element = [](index_t n, index_t k) {
    return std::ldexp(static_cast<float>((k * 7919 + n * 104729) % 10007), static_cast<int>(n));
  };
  for (const bool gathers : {true, false}) {
    run_local_ranks(
        3,
        [&](Communicator& comm) {
          Gradient value(kSize), memory(kSize);
          const std::vector<TrainedParameter<float>> parameters{
              {.name = "w", .value = value.data(), .gradient = memory.data(), .size = kSize}};
          GradientTree<float> tree(comm, parameters, kCount);
          const ShardedOptimizer<Sgd<float>> optimizer(comm, parameters);
          for (index_t n = tree.micro_batches().begin; n < tree.micro_batches().end; ++n) {
            for (index_t k = 0; k < kSize; ++k) memory[std::size_t(k)] = element(n, k);
            tree.add(n, static_cast<double>(n));
          }
          EXPECT_EQ(gathers ? tree.finish() : tree.finish(optimizer), 10);
          index_t wrong = 0;
          for (index_t k = 0; k < kSize; ++k) {
            if (!gathers && k / 100'001 != comm.rank()) continue;
            const float left = (element(0, k) + element(1, k)) + (element(2, k) + element(3, k));
            if (memory[std::size_t(k)] != left + element(4, k)) ++wrong;
          }
          EXPECT_EQ(wrong, 0);
        },
        20s);
  }
}

TEST(DistributedGradientTree, RefusesWrongArguments) {
  Gradient memory(7 + 1 + 130);
  const auto parameters = parameters_in(memory);
  LocalCommunicator alone;
  EXPECT_EQ(error_of<ValueError>([&] { GradientTree<float>(alone, parameters, 0); }),
            "[GradientTree] count must be at least 1; found 0.");
  GradientTree<float> tree(alone, parameters, 2);
  EXPECT_EQ(error_of<ValueError>([&] { tree.add(1); }),
            "[GradientTree::add] n must be 0, the next one; found 1.");
  tree.add(0);
  EXPECT_EQ(error_of<ValueError>([&] { tree.finish(); }),
            "[GradientTree::finish] all micro-batches of this rank must have been added; found 1 "
            "as the next one.");
  tree.add(1);
  EXPECT_EQ(error_of<ValueError>([&] { tree.add(2); }),
            "[GradientTree::add] n must not be given: all micro-batches of this rank were added; "
            "found 2.");
  run_local_ranks(
      2,
      [&](Communicator& comm) {
        EXPECT_EQ(
            error_of<ValueError>([&] { GradientTree<float>(comm, parameters, 4 + comm.rank()); }),
            "[GradientTree] count must be the same on every rank; found 4 on rank 0, 5 on "
            "rank 1.");
      },
      20s);
}

TEST(DistributedGradientTree, OtherSizesOfParametersOnOneRankAreAnErrorOnAll) {
  run_local_ranks(
      2,
      [](Communicator& comm) {
        Gradient memory(7 + 1 + 130);
        auto parameters = parameters_in(memory);
        if (comm.rank() == 1) std::swap(parameters[0], parameters[2]);
        EXPECT_EQ(error_of<ValueError>([&] { GradientTree<float>(comm, parameters, 4); }),
                  "[GradientTree] the sizes of the parameters must be the same on every rank; "
                  "found another on rank 1 than on rank 0.");
      },
      20s);
}

TEST(DistributedGradientTree, AMissingMicroBatchOfOneRankIsAnErrorOnAll) {
  const std::string text =
      "[GradientTree::finish] all micro-batches of this rank must have been added; found 3 as the "
      "next one.";
  run_local_ranks(
      2,
      [&](Communicator& comm) {
        Gradient memory(7 + 1 + 130);
        GradientTree<float> tree(comm, parameters_in(memory), 4);
        for (const index_t n : {0, 1, 2, 3}) {
          if (n < tree.micro_batches().begin || n >= tree.micro_batches().end) continue;
          if (n == 3) {
            EXPECT_EQ(error_of<ValueError>([&] { tree.finish(); }), text);
          }
          std::fill(memory.begin(), memory.end(), 1.0f);
          tree.add(n);
        }
        if (comm.rank() == 0) {
          EXPECT_EQ(error_of<ValueError>([&] { tree.finish(); }),
                    "[GradientTree::finish] rank 1: " + text);
        }
        tree.finish();  // of the same step
        EXPECT_EQ(memory, Gradient(memory.size(), 4.0f));
      },
      20s);
}

}  // namespace
}  // namespace attn
