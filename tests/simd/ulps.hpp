// UlpRuler: errors in units in the last place, and exact activations to compare with.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <type_traits>
#include <vector>

namespace attn_test {

/// x / (1 + e^-x), with its limit at -inf. W is wider than the tested type: where e^-x overflows in
/// W, results are 0.
inline constexpr auto exact_silu = [](auto x) {
  using W = decltype(x);
  return x == -std::numeric_limits<W>::infinity() ? W{0} : x / (1 + std::exp(-x));
};

/// x (1 + erf(x / sqrt 2)) / 2 without cancellation, with its limit at -inf.
inline constexpr auto exact_gelu = [](auto x) {
  using W = decltype(x);
  constexpr W kRootHalf = W(0.707106781186547524400844362104849039L);
  return x == -std::numeric_limits<W>::infinity() ? W{0} : x * std::erfc(-x * kRootHalf) / 2;
};

/// |got - exact| in units in the last place of the T nearest to `exact`; infinity counts as the
/// power of two after the largest number. 0 for two NaNs, infinity for one.
///
/// A table with one entry per exponent: std::nextafter is a call, which would take most of the time
/// for 2^32 floats.
template <class T, class Exact>
class UlpRuler {
 public:
  UlpRuler() {
    // Subnormals have the spacing of the smallest normal numbers, infinity that of the largest.
    for (int exponent = Limits::min_exponent - 1; exponent <= Limits::max_exponent + 1;
         ++exponent) {
      const int unit = std::min(std::max(exponent, Limits::min_exponent), Limits::max_exponent);
      per_unit_.push_back(std::ldexp(Exact{1}, Limits::digits - unit));
    }
  }

  double operator()(T got, Exact exact) const {
    if (std::isnan(got) || std::isnan(exact)) {
      return std::isnan(got) && std::isnan(exact) ? 0 : std::numeric_limits<double>::infinity();
    }
    const Bits bits = std::bit_cast<Bits>(static_cast<T>(exact)) << 1 >> Limits::digits;
    return static_cast<double>(std::abs(finite(got) - finite(exact)) *
                               per_unit_[static_cast<std::size_t>(bits)]);
  }

 private:
  using Limits = std::numeric_limits<T>;
  using Bits = std::conditional_t<sizeof(T) == 4, std::uint32_t, std::uint64_t>;

  Exact finite(Exact x) const { return std::min(std::max(x, -past_), past_); }

  Exact past_ = std::ldexp(Exact{1}, Limits::max_exponent);
  std::vector<Exact> per_unit_;
};

}  // namespace attn_test
