// Random: the same numbers for a seed on every machine, and the seed in messages of failed tests.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "support/array.hpp"

namespace attn_test {

/// The environment variable ATTN_TEST_SEED, or a fixed seed.
inline std::uint64_t test_seed() {
  const char* text = std::getenv("ATTN_TEST_SEED");
  return text != nullptr && *text != '\0' ? std::strtoull(text, nullptr, 10) : 20170612;
}

/// The number of draws of a long test: the environment variable ATTN_TEST_DRAWS, or `all`; an eighth
/// without optimization or with assertions, as in the presets of the sanitizers, where a draw takes
/// several times as long.
inline std::uint64_t draws(std::uint64_t all) {
  const char* text = std::getenv("ATTN_TEST_DRAWS");
  if (text != nullptr && *text != '\0') return std::strtoull(text, nullptr, 10);
#if defined(__OPTIMIZE__) && defined(NDEBUG)
  return all;
#else
  return (all + 7) / 8;
#endif
}

/// The standard specifies mt19937_64 to the bit, but not distributions, so these are our own.
class Random {
 public:
  /// `draw` is the number of a test case: cases do not depend on each other, so one can run alone.
  explicit Random(std::uint64_t draw = 0) : draw_(draw), engine_(test_seed() * 1000003 + draw) {}

  /// Takes numbers from a fuzzer first, 8 bytes each; `fuzzed` must outlive this.
  explicit Random(std::span<const std::uint8_t> fuzzed) : Random() { fuzzed_ = fuzzed; }

  /// For SCOPED_TRACE.
  std::string trace() const {
    return "ATTN_TEST_SEED=" + std::to_string(test_seed()) + ", draw " + std::to_string(draw_);
  }

  /// Both ends included.
  Index integer(Index least, Index most) {
    return least + static_cast<Index>(next() % static_cast<std::uint64_t>(most - least + 1));
  }
  bool chance(double probability) { return uniform() < probability; }
  /// [0, 1)
  double uniform() { return static_cast<double>(next() >> 11) * 0x1p-53; }
  /// Sum of 12 uniforms: close enough to normal, and within 6 of 0.
  double normal() {
    double sum = -6;
    for (int i = 0; i < 12; ++i) sum += uniform();
    return sum;
  }
  template <class T>
  const T& pick(const std::vector<T>& choices) {
    return choices.at(static_cast<std::size_t>(integer(0, static_cast<Index>(choices.size()) - 1)));
  }

  template <class T>
  Array<T> array(std::vector<Index> shape, double scale = 1) {
    Array<T> x(std::move(shape));
    for (T& value : x.data) value = static_cast<T>(scale * normal());
    return x;
  }
  /// Zeros and ones; ones have the given probability.
  Array<double> bits(std::vector<Index> shape, double probability) {
    Array<double> x(std::move(shape));
    for (double& value : x.data) value = chance(probability) ? 1 : 0;
    return x;
  }
  template <class T, int Rank>
  attn::Tensor<T, Rank> tensor(const attn::Shape<Rank>& shape, double scale = 1) {
    attn::Tensor<T, Rank> x(shape);
    for (T& value : x.elements()) value = static_cast<T>(scale * normal());
    return x;
  }

 private:
  std::uint64_t next() {
    std::uint64_t number = engine_();
    if (fuzzed_.size() >= sizeof(number)) {
      std::memcpy(&number, fuzzed_.data(), sizeof(number));
      fuzzed_ = fuzzed_.subspan(sizeof(number));
    }
    return number;
  }

  std::uint64_t draw_;
  std::mt19937_64 engine_;
  std::span<const std::uint8_t> fuzzed_ = {};
};

}  // namespace attn_test
