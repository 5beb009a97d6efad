// Buffers: alignment whatever the size and type, checked sizes, ownership.
#include "attn/core/buffer.hpp"

#if ATTN_HAS_ZERO_PAGES
#include <unistd.h>
#endif

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <new>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "support/error_of.hpp"

namespace attn {
namespace {

using attn_test::contains;
using attn_test::error_of;

template <class T>
void expect_aligned() {
  std::vector<Buffer<T>> kept;  // kept, so that each block lies elsewhere
  for (index_t size = 1; size < 70; ++size) {
    kept.emplace_back(size);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(kept.back().data()) % 64, 0u) << size;
    EXPECT_EQ(kept.back().size(), size);
    kept.back().data()[0] = T{};
    kept.back().data()[size - 1] = T{};
  }
}

TEST(Buffer, AlignedToACacheLine) {
  static_assert(kAlignment == 64);
  expect_aligned<std::byte>();
  expect_aligned<bool>();
  expect_aligned<float>();
  expect_aligned<double>();
  expect_aligned<index_t>();
}

TEST(Buffer, NothingHasNoMemory) {
  EXPECT_EQ(Buffer<float>().data(), nullptr);
  EXPECT_EQ(Buffer<float>(0).data(), nullptr);
  EXPECT_EQ(Buffer<float>(0).size(), 0);
}

TEST(Buffer, ZerosWhereMemoryWasUsedBefore) {
  for (const index_t size : {1, 1000, 1 << 15, (1 << 15) + 1, 1 << 20}) {
    for (const bool pages : {false, true}) {
      {
        const Buffer<float> used(size);
        std::fill_n(used.data(), size, 1.0f);
      }
      Buffer<float> made = pages ? Buffer<float>::zero_pages(size) : Buffer<float>::zeros(size);
      EXPECT_EQ(reinterpret_cast<std::uintptr_t>(made.data()) % 64, 0u) << size;
      Buffer<float> moved(1);
      moved = std::move(made);
      ASSERT_EQ(moved.size(), size);
      EXPECT_EQ(std::count(moved.data(), moved.data() + size, 0.0f), size) << "pages: " << pages;
      moved.data()[size - 1] = 1;
    }
  }
  EXPECT_EQ(Buffer<float>::zero_pages(0).data(), nullptr);
  EXPECT_THROW(Buffer<float>::zero_pages(-1), ShapeError);
}

#if ATTN_HAS_ZERO_PAGES
TEST(Buffer, ZeroPagesTakeNoMemoryBeforeTheyAreTouched) {
  constexpr index_t kSize = 1 << 24;
  const auto page = static_cast<index_t>(::sysconf(_SC_PAGESIZE));
  const auto resident = [&](const Buffer<char>& buffer) {
    std::vector<unsigned char> pages(static_cast<std::size_t>((kSize + page - 1) / page));
    EXPECT_EQ(::mincore(buffer.data(), kSize, pages.data()), 0);
    return std::count_if(pages.begin(), pages.end(), [](unsigned char p) { return (p & 1) != 0; });
  };
  for (int i = 0; i < 2; ++i) {  // twice: a heap may reuse memory that it has freed
    std::vector<Buffer<char>> used;
    for (int n = 0; n < 64; ++n) {
      used.emplace_back(kSize / 64);
      std::fill_n(used.back().data(), kSize / 64, 'x');
    }
    used.clear();
    const Buffer<char> made = Buffer<char>::zero_pages(kSize);
    EXPECT_EQ(resident(made), 0);
    made.data()[kSize / 2] = 'x';
    EXPECT_GT(resident(made), 0);
  }
}
#endif

TEST(Buffer, SizesThatDoNotFitThrow) {
  EXPECT_TRUE(contains(error_of<ShapeError>([] { Buffer<double>(index_t{1} << 60); }),
                       "[Buffer] the size in bytes must fit 63 bits; found 1152921504606846976 "
                       "elements."));
  EXPECT_THROW(Buffer<float>(-1), ShapeError);
}

TEST(Buffer, MemoryThatIsNotThereThrowsBadAlloc) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "a sanitizer's allocator ends the program instead";
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
  GTEST_SKIP() << "a sanitizer's allocator ends the program instead";
#endif
#endif
  EXPECT_THROW(Buffer<std::byte>((index_t{1} << 62)), std::bad_alloc);
}

TEST(Buffer, MovesItsMemory) {
  Buffer<int> a(3);
  int* data = a.data();
  data[2] = 7;
  Buffer<int> b = std::move(a);
  EXPECT_EQ(b.data(), data);
  EXPECT_EQ(b.data()[2], 7);
  static_assert(!std::is_copy_constructible_v<Buffer<int>>);
  EXPECT_EQ(a.size(), 0);
  EXPECT_EQ(a.data(), nullptr);
  a = std::move(b);
  EXPECT_EQ(a.size(), 3);
  EXPECT_EQ(b.size(), 0);
}

}  // namespace
}  // namespace attn
