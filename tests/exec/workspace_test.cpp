// Workspace: aligned scratch memory as a stack; a repeated pattern of use allocates nothing.
#include "attn/exec/workspace.hpp"

#include <cstdint>
#include <cstring>
#include <limits>
#include <optional>
#include <thread>

#include <gtest/gtest.h>

namespace attn {
namespace {

TEST(Workspace, GivesAlignedMemoryThatDoesNotOverlap) {
  Workspace workspace;
  const Scratch<float> a(workspace, 3);
  const Scratch<double> b(workspace, 1000);
  const Scratch<std::byte> c(workspace, 65);
  std::memset(a.data(), 1, 3 * sizeof(float));
  std::memset(b.data(), 2, 1000 * sizeof(double));
  std::memset(c.data(), 3, 65);
  for (const void* p : {static_cast<const void*>(a.data()), static_cast<const void*>(b.data()),
                        static_cast<const void*>(c.data())}) {
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(p) % kAlignment, 0u);
  }
  EXPECT_EQ(reinterpret_cast<const unsigned char*>(a.data())[11], 1);
  EXPECT_EQ(reinterpret_cast<const unsigned char*>(b.data())[7999], 2);
  EXPECT_EQ(b.size(), 1000);
}

TEST(Workspace, NothingAskedForGivesNothing) {
  Workspace workspace;
  const Scratch<float> none(workspace, 0);
  EXPECT_EQ(none.data(), nullptr);
  EXPECT_EQ(workspace.capacity(), 0u);
}

/// Two nested scratches, then a third in place of the inner one.
void nested(Workspace& workspace, index_t size) {
  const Scratch<float> outer(workspace, size);
  float* first = nullptr;
  {
    const Scratch<float> inner(workspace, 2 * size);
    first = inner.data();
    inner.data()[2 * size - 1] = 1;
  }
  const Scratch<float> again(workspace, size);
  EXPECT_EQ(again.data(), first);
  outer.data()[size - 1] = 1;
}

TEST(Workspace, ReusesItsMemory) {
  Workspace workspace;
  nested(workspace, 100);
  const std::size_t peak = workspace.peak(), capacity = workspace.capacity();
  EXPECT_GE(peak, 1200u);
  EXPECT_GE(capacity, peak);
  for (int i = 0; i < 5; ++i) nested(workspace, 100);
  EXPECT_EQ(workspace.peak(), peak);
  EXPECT_EQ(workspace.capacity(), capacity);
  nested(workspace, 1000);
  EXPECT_GE(workspace.peak(), 12000u);
}

TEST(Workspace, OneBlockAfterGrowingPieceByPiece) {
  Workspace workspace;
  { const Scratch<float> a(workspace, 100), b(workspace, 10000), c(workspace, 5); }
  // Memory that was in pieces is now one block: the three are adjacent.
  const Scratch<float> a(workspace, 100), b(workspace, 10000), c(workspace, 5);
  EXPECT_EQ(b.data() - a.data(), 112);  // 400 bytes rounded up to 448
  EXPECT_GT(c.data(), b.data());
}

TEST(Workspace, ReservedMemorySuffices) {
  Workspace measured;
  nested(measured, 500);
  Workspace workspace(measured.peak());
  const std::size_t capacity = workspace.capacity();
  nested(workspace, 500);
  EXPECT_EQ(workspace.capacity(), capacity);
  workspace.reserve(1);
  EXPECT_EQ(workspace.capacity(), capacity);
  workspace.reserve(capacity + 1);
  EXPECT_GT(workspace.capacity(), capacity);
}

TEST(Workspace, GrowsWhileInUseWithoutMovingWhatIsInUse) {
  Workspace workspace;
  const Scratch<int> first(workspace, 4);
  first.data()[3] = 42;
  const Scratch<int> large(workspace, 1 << 20);
  large.data()[(1 << 20) - 1] = 7;
  EXPECT_EQ(first.data()[3], 42);
}

TEST(Workspace, SizesThatDoNotFitThrow) {
  Workspace workspace;
  EXPECT_ANY_THROW(Scratch<double>(workspace, std::numeric_limits<index_t>::max()));
  EXPECT_ANY_THROW(Scratch<double>(workspace, index_t{1} << 61));  // 2^64 bytes, which wraps to 0
  const Scratch<double> still_works(workspace, 10);
  still_works.data()[9] = 1;
}

TEST(Workspace, DefaultIsOnePerThread) {
  Workspace* other = nullptr;
  std::thread([&] { other = &default_workspace(); }).join();
  EXPECT_NE(other, &default_workspace());
  EXPECT_EQ(&default_workspace(), &default_workspace());
}

}  // namespace
}  // namespace attn
