// Tiles: the order of sums in docs/precision.md, and exact products of 8-bit integers.
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

#include "simd/tile_ops.hpp"
#include "support/isas.hpp"
#include "support/random.hpp"

namespace attn {
namespace {

const TileOps* tile_ops() {
  if (!is_available(Isa::amx)) return nullptr;
  return &detail::table_of<TileOps>(Isa::amx);
}

/// Sums over even and odd k, each a chain of multiply-adds from 0; then their sum is added to C.
float sum_of_pairs(const bfloat16* a, const bfloat16* b, int column, int depth, float c) {
  float sums[2] = {0, 0};
  for (int k = 0; k < depth / 2; ++k) {
    sums[k % 2] = std::fma(float{a[k]}, float{b[k / 2 * 32 + 2 * column + k % 2]}, sums[k % 2]);
  }
  return (sums[0] + sums[1]) + c;
}

TEST(Tiles, PairsAreSummedInTheStatedOrder) {
  const TileOps* const ops = tile_ops();
  if (ops == nullptr) GTEST_SKIP() << "needs AMX";
  for (std::uint64_t draw = 0; draw < 200; ++draw) {
    attn_test::Random random(draw);
    const int depth = random.pick<int>({64, 32, 16});
    std::vector<bfloat16> a(static_cast<std::size_t>(8 * depth)), b(a.size());
    std::vector<float> c(256);
    const auto number = [&] {
      return static_cast<float>(random.normal() * std::exp2(10 * random.uniform()));
    };
    for (bfloat16& x : a) x = bfloat16(number());
    for (bfloat16& x : b) x = bfloat16(number());
    for (float& x : c) x = number() * 100;
    std::vector<float> found = c;
    ops->add_pairs(depth, a.data(), b.data(), found.data());
    for (int row = 0; row < 16; ++row) {
      for (int column = 0; column < 16; ++column) {
        const auto at = static_cast<std::size_t>(row * 16 + column);
        ASSERT_EQ(found[at],
                  sum_of_pairs(a.data() + row * depth / 2, b.data(), column, depth, c[at]))
            << random.trace() << ": " << row << ", " << column << ", depth " << depth;
      }
    }
  }
}

TEST(Tiles, DenormalsCountAsZeroAndOthersKeepTheirPlace) {
  const TileOps* const ops = tile_ops();
  if (ops == nullptr) GTEST_SKIP() << "needs AMX";
  constexpr float kInf = std::numeric_limits<float>::infinity();
  std::vector<bfloat16> a(512, bfloat16(0)), b(512, bfloat16(0));
  std::vector<float> c(256, 0.0f);
  const auto at = [](int row, int column) { return static_cast<std::size_t>(16 * row + column); };
  for (int column = 0; column < 16; ++column) b[at(0, 2 * column)] = bfloat16(0x1p100f);
  a[at(0, 0)] = std::numeric_limits<bfloat16>::denorm_min();
  a[2 * at(1, 0)] = bfloat16(kInf);
  a[2 * at(2, 0)] = bfloat16(std::nanf(""));
  c[at(3, 0)] = 0x1p-140f;
  a[2 * at(4, 0)] = bfloat16(0x1p-120f), b[at(0, 2)] = bfloat16(0x1p-20f);  // a subnormal product
  ops->add_pairs(64, a.data(), b.data(), c.data());
  EXPECT_EQ(c[at(0, 0)], 0);
  EXPECT_EQ(c[at(1, 0)], kInf);
  EXPECT_TRUE(std::isnan(c[at(2, 5)]));
  EXPECT_EQ(c[at(3, 0)], 0);
  EXPECT_EQ(c[at(4, 0)], 0x1p-20f);
  EXPECT_EQ(c[at(4, 1)], 0);
  EXPECT_EQ(c[at(5, 5)], 0);
}

TEST(Tiles, BytesAreExact) {
  const TileOps* const ops = tile_ops();
  if (ops == nullptr) GTEST_SKIP() << "needs AMX";
  for (std::uint64_t draw = 0; draw < 200; ++draw) {
    attn_test::Random random(draw);
    const int depth = random.pick<int>({64, 32, 16});
    const bool is_extreme = random.chance(0.3);
    const auto code = [&] {
      if (is_extreme) return random.pick<std::uint8_t>({0x80, 0x7f, 0xff, 0, 0x81});
      return static_cast<std::uint8_t>(random.uniform() * 256);
    };
    std::vector<std::uint8_t> a(static_cast<std::size_t>(16 * depth)), b(a.size());
    for (std::uint8_t& x : a) x = code();
    for (std::uint8_t& x : b) x = code();
    std::vector<std::int32_t> c(256);
    for (std::int32_t& x : c) x = static_cast<std::int32_t>(random.normal() * 1e6);
    std::vector<std::int32_t> plain = c, with_sign = c;
    ops->add_bytes(depth, a.data(), b.data(), plain.data());
    ops->add_signed_bytes(depth, a.data(), b.data(), with_sign.data());
    for (int row = 0; row < 16; ++row) {
      for (int column = 0; column < 16; ++column) {
        const auto at = static_cast<std::size_t>(row * 16 + column);
        std::int32_t expected[2] = {c[at], c[at]};
        for (int k = 0; k < depth; ++k) {
          const int x = static_cast<std::int8_t>(a[static_cast<std::size_t>(row * depth + k)]);
          const std::uint8_t y = b[static_cast<std::size_t>(k / 4 * 64 + column * 4 + k % 4)];
          expected[0] += x * y;
          expected[1] += x * static_cast<std::int8_t>(y);
        }
        ASSERT_EQ(plain[at], expected[0]) << random.trace() << ": " << row << ", " << column;
        ASSERT_EQ(with_sign[at], expected[1]) << random.trace() << ": " << row << ", " << column;
      }
    }
  }
}

}  // namespace
}  // namespace attn
