// Kernel text: counter-based random numbers (Philox), and dropout of one row of weights.
// SPDX-License-Identifier: Apache-2.0

/// Philox 4x32-10 for 16 counters: word[w][x] is word w of counter (first + x, i, h, b), with
/// `first` a multiple of 16. Words occupy the low halves of 64-bit lanes, as the 32 x 32-bit
/// multiplication requires. Two vectors at a time hide its latency: even counters and odd ones,
/// whose words store_low() interleaves.
struct Philox {
  static constexpr int kCounters = 16;
  std::uint32_t word[4][kCounters];

  Philox(std::uint64_t seed, index_t first, index_t i, index_t h, index_t b) {
    using V = Vec<std::uint64_t>;
    constexpr std::uint64_t kSteps[kCounters] = {0, 2, 4, 6, 8, 10, 12, 14,
                                                 1, 3, 5, 7, 9, 11, 13, 15};
    const V times0 = V::all(0xD2511F53), times2 = V::all(0xCD9E8D57);
    const auto all = [](index_t x) { return V::all(static_cast<std::uint64_t>(x)); };
    for (int x = 0; x < kCounters / 2; x += V::kLanes) {
      V w[2][4];
      ATTN_UNROLL
      for (int odd = 0; odd < 2; ++odd) {
        w[odd][0] = all(first) ^ V::load(kSteps + odd * kCounters / 2 + x);
        w[odd][1] = all(i);
        w[odd][2] = all(h);
        w[odd][3] = all(b);
      }
      auto key0 = static_cast<std::uint32_t>(seed), key1 = static_cast<std::uint32_t>(seed >> 32);
      for (int round = 0; round < 10; ++round) {
        ATTN_UNROLL
        for (int odd = 0; odd < 2; ++odd) {
          const V p0 = low_product(w[odd][0], times0), p2 = low_product(w[odd][2], times2);
          w[odd][0] = p2.high() ^ w[odd][1] ^ V::all(key0);
          w[odd][1] = p2;
          w[odd][2] = p0.high() ^ w[odd][3] ^ V::all(key1);
          w[odd][3] = p0;
        }
        key0 += 0x9E3779B9u;
        key1 += 0xBB67AE85u;
      }
      ATTN_UNROLL
      for (int n = 0; n < 4; ++n) store_low(w[0][n], w[1][n], word[n] + 2 * x);
    }
  }
};

/// The factor of each weight, from its random word: 1 / (1 - p) if it is kept, otherwise 0.
template <class T>
struct DropoutFactors {
  T kept;
  std::int32_t threshold;

  // (word >> 8) 2^-24 >= p if and only if word >> 8 >= `threshold`; both fit in 24 bits, so a
  // signed comparison is correct.
  explicit DropoutFactors(double p)
      : kept(T(1 / (1 - p))), threshold(static_cast<std::int32_t>(std::ceil(p * 16777216))) {}

  ATTN_INLINE void write(const std::uint32_t (&word)[Philox::kCounters],
                         T (&factor)[Philox::kCounters]) const {
    const T one = kept;  // locals: members would be reloaded for each word
    const std::int32_t bound = threshold;
    ATTN_VECTOR_LOOP
    for (index_t x = 0; x < Philox::kCounters; ++x) {
      factor[x] = static_cast<std::int32_t>(word[x] >> 8) >= bound ? one : T{0};
    }
  }
};

/// The key at position j uses word (j / 16) % 4 of counter 16 (j / 64) + j % 16; it is kept if and
/// only if (word >> 8) 2^-24 >= p.
template <class T>
inline void apply_dropout(index_t n, T* weights, const Dropout& dropout, index_t b, index_t h,
                          index_t i, index_t first_key) {
  constexpr index_t kLanes = Philox::kCounters, kGroup = 4 * kLanes;
  const DropoutFactors<T> factors(dropout.p);
  for (index_t group = first_key / kGroup; group * kGroup < first_key + n; ++group) {
    const Philox random(dropout.seed, group * kLanes, i, h, b);
    for (index_t part = 0; part < 4; ++part) {
      const index_t at = group * kGroup + part * kLanes - first_key;
      T factor[kLanes];
      factors.write(random.word[part], factor);
      if (at >= 0 && at + kLanes <= n) {
        for (index_t x = 0; x < kLanes; ++x) weights[at + x] *= factor[x];
      } else {
        const index_t end = (std::min)(at + kLanes, n);
        for (index_t j = (std::max)(at, index_t{0}); j < end; ++j) weights[j] *= factor[j - at];
      }
    }
  }
}
