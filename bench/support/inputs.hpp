// Inputs of the benchmarks: random numbers that are reproducible and fast to make.
#pragma once

#include <cstdint>

#include "attn/core/tensor.hpp"

namespace bench {

/// A 64-bit linear congruential generator (Knuth's constants): the same sequence for a seed on
/// every machine. Its high half is random enough for timing.
class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed * 0x9E3779B97F4A7C15u + 1) {}

  std::uint32_t next() {
    state_ = state_ * 6364136223846793005u + 1442695040888963407u;
    return static_cast<std::uint32_t>(state_ >> 32);
  }

  /// Uniform with mean 0 and variance 1, so that scores spread like those of normal numbers.
  template <class T>
  T number() {
    constexpr double scale = 1.7320508075688772 / 2147483648.0;  // sqrt(3) / 2^31
    return static_cast<T>(static_cast<double>(static_cast<std::int32_t>(next())) * scale);
  }

  /// 0 .. count - 1.
  attn::index_t below(attn::index_t count) {
    return static_cast<attn::index_t>((std::uint64_t{next()} * static_cast<std::uint64_t>(count)) >>
                                      32);
  }

 private:
  std::uint64_t state_;
};

template <class T, int Rank>
attn::Tensor<T, Rank> random_tensor(const attn::Shape<Rank>& shape, std::uint64_t seed,
                                    T times = 1) {
  auto tensor = attn::Tensor<T, Rank>::uninitialized(shape);
  Random random(seed);
  for (T& element : tensor.elements()) element = times * random.number<T>();
  return tensor;
}

}  // namespace bench
