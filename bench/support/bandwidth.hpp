// The machine's measured read bandwidth on a buffer: the limit of works bound by memory.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>

#include "attn/core/buffer.hpp"
#include "attn/simd/isa.hpp"

#include "support/threads.hpp"

namespace bench {
namespace detail {

// Reads `Streams` places at once, a cache line from each in turn. Hardware prefetchers follow
// several streams; the best number depends on the machine. Zen 3, one core, 128 MB in pages of 4
// KB: 20 GB/s with one stream, 25 with two, 29 with four, 31 with eight; software prefetch added
// nothing. Values are combined by `or`, whose latency of one cycle does not delay the loads.
#define ATTN_BENCH_DEFINE_READ(name, target)                                                   \
  template <int Streams>                                                                       \
  target __attribute__((noinline)) std::int32_t name(const std::int32_t* from, index_t size) { \
    typedef std::int32_t Vec __attribute__((vector_size(32), aligned(4), may_alias));          \
    const index_t part = size / Streams / 16 * 16;                                             \
    Vec left{}, right{};                                                                       \
    for (index_t i = 0; i < part; i += 16) {                                                   \
      for (int stream = 0; stream < Streams; ++stream) {                                       \
        const std::int32_t* line = from + stream * part + i;                                   \
        left |= *reinterpret_cast<const Vec*>(line);                                           \
        right |= *reinterpret_cast<const Vec*>(line + 8);                                      \
      }                                                                                        \
    }                                                                                          \
    left |= right;                                                                             \
    return left[0] | left[1];                                                                  \
  }

using attn::index_t;

ATTN_BENCH_DEFINE_READ(read_plain, )
#if ATTN_ARCH_X86
ATTN_BENCH_DEFINE_READ(read_avx2, __attribute__((target("avx2"))))
#endif
#undef ATTN_BENCH_DEFINE_READ

template <int Streams>
std::int32_t read(const std::int32_t* from, index_t size) {
#if ATTN_ARCH_X86
  if (attn::is_available(attn::Isa::avx2)) return read_avx2<Streams>(from, size);
#endif
  return read_plain<Streams>(from, size);
}

inline std::int32_t read(int streams, const std::int32_t* from, index_t size) {
  switch (streams) {
    case 1:
      return read<1>(from, size);
    case 2:
      return read<2>(from, size);
    case 4:
      return read<4>(from, size);
    default:
      return read<8>(from, size);
  }
}

}  // namespace detail

/// A buffer of `bytes`, allocated like attn's tensors, and the best bandwidth measured on it so
/// far. Passes over a buffer that fits in a cache measure that cache, as a second call on the same
/// keys and values would.
class ReadBandwidth {
 public:
  explicit ReadBandwidth(attn::index_t bytes)
      : buffer_(bytes / attn::index_t{sizeof(std::int32_t)}) {
    std::fill_n(buffer_.data(), buffer_.size(), 1);
  }

  /// One pass each with 1, 2, 4 and 8 streams per thread; returns the best B/s.
  double measure(int threads) {
    double fastest = 0;
    const attn::index_t share = buffer_.size() / threads;
    for (int streams : {1, 2, 4, 8}) {
      const double time = run_together(threads, [&](int id) {
        const volatile std::int32_t kept =
            detail::read(streams, buffer_.data() + id * share, share);
        static_cast<void>(kept);
      });
      fastest =
          std::max(fastest, static_cast<double>(share * threads) * sizeof(std::int32_t) / time);
    }
    best_[threads] = std::max(best_[threads], fastest);
    return fastest;
  }

  /// The best of all measurements; 0 if there was none.
  double best(int threads) const {
    const auto found = best_.find(threads);
    return found == best_.end() ? 0 : found->second;
  }

 private:
  attn::Buffer<std::int32_t> buffer_;
  std::map<int, double> best_;
};

}  // namespace bench
