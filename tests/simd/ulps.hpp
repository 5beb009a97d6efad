// UlpRuler: errors of float and double in units in the last place.
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

/// |got - exact| in units of the last place of the T nearest to `exact`, an infinity being the power of two after the
/// largest number; 0 for two NaNs and infinity for one.
///
/// One entry of a table per exponent: std::nextafter, a call, would take most of the time of 2^32 floats.
template <class T, class Exact>
class UlpRuler {
 public:
  UlpRuler() {
    // The spacing of subnormals is that of the smallest normal numbers; infinity has that of the largest.
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
