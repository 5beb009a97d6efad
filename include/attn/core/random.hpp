// Random bits: the standard's 64-bit Mersenne Twister, in attn's namespace.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>

#include "attn/core/config.hpp"

ATTN_NAMESPACE_BEGIN

namespace detail {

/// std::mt19937_64 and its seeding by std::seed_seq, to the bit ([rand.eng.mers],
/// [rand.util.seedseq]). The linker keeps one copy of each standard library function in a program,
/// perhaps one compiled with -m flags that an old processor does not support. These functions are
/// in attn's namespace, whose name encodes the flags.
class MersenneTwister {
 public:
  /// Seeds like std::mt19937_64(seed).
  explicit MersenneTwister(std::uint64_t seed) {
    state_[0] = seed;
    for (std::size_t i = 1; i < kSize; ++i) {
      state_[i] = 6364136223846793005U * (state_[i - 1] ^ (state_[i - 1] >> 62)) + i;
    }
  }

  /// Seeds like std::mt19937_64 of std::seed_seq(words).
  explicit MersenneTwister(std::initializer_list<std::uint32_t> words) {
    constexpr std::size_t n = 2 * kSize, t = 11, p = (n - t) / 2, q = p + t;
    std::array<std::uint32_t, n> b;
    b.fill(0x8b8b8b8bU);
    const std::size_t s = words.size();
    const auto mixed = [](std::uint32_t x) { return x ^ (x >> 27); };
    for (std::size_t k = 0; k < n; ++k) {
      const std::uint32_t r1 = 1664525U * mixed(b[k] ^ b[(k + p) % n] ^ b[(k + n - 1) % n]);
      const std::uint32_t word = k == 0 || k > s ? 0 : *(words.begin() + (k - 1));
      const std::uint32_t r2 = r1 + static_cast<std::uint32_t>(k == 0 ? s : k) + word;
      b[(k + p) % n] += r1;
      b[(k + q) % n] += r2;
      b[k] = r2;
    }
    for (std::size_t k = 0; k < n; ++k) {
      const std::uint32_t r3 = 1566083941U * mixed(b[k] + b[(k + p) % n] + b[(k + n - 1) % n]);
      const std::uint32_t r4 = r3 - static_cast<std::uint32_t>(k);
      b[(k + p) % n] ^= r3;
      b[(k + q) % n] ^= r4;
      b[k] = r4;
    }
    for (std::size_t i = 0; i < kSize; ++i) {
      state_[i] = b[2 * i] | static_cast<std::uint64_t>(b[2 * i + 1]) << 32;
    }
  }

  /// The next 64 bits.
  std::uint64_t operator()() {
    if (next_ == kSize) twist();
    std::uint64_t x = state_[next_++];
    x ^= (x >> 29) & 0x5555555555555555U;
    x ^= (x << 17) & 0x71d67fffeda60000U;
    x ^= (x << 37) & 0xfff7eee000000000U;
    return x ^ (x >> 43);
  }

 private:
  static constexpr std::size_t kSize = 312, kShift = 156;

  void twist() {
    for (std::size_t i = 0; i < kSize; ++i) {
      const std::uint64_t low = (std::uint64_t{1} << 31) - 1;
      const std::uint64_t y = (state_[i] & ~low) | (state_[(i + 1) % kSize] & low);
      state_[i] = state_[(i + kShift) % kSize] ^ (y >> 1) ^ ((y & 1) * 0xb5026f5aa96619e9U);
    }
    next_ = 0;
  }

  std::array<std::uint64_t, kSize> state_;
  std::size_t next_ = kSize;
};

}  // namespace detail

ATTN_NAMESPACE_END
