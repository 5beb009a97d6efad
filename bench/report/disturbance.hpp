// disturbance(): whether another program ran while a row's time and its limit were measured.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>
#include <span>
#include <string>

namespace bench {

/// Why a row's measurement is unreliable; empty if it is reliable. `limits`: the speed of its limit
/// in each pass. `share`: the row's share of its limit if that cannot exceed 1, otherwise NaN.
///
/// Another program slows down both the limit and the row, but not at the same moments. A limit that
/// fell between passes shows that one ran; a share above 1 shows that the limit was measured too
/// low.
inline std::string disturbance(std::span<const double> limits, double share) {
  constexpr double kVaries = 0.1;
  char text[64] = "";
  if (share > 1) {
    std::snprintf(text, sizeof(text), "%.2f of the limit", share);
  } else if (!limits.empty()) {
    const auto [least, most] = std::ranges::minmax(limits);
    const double varied = 1 - least / most;
    if (varied > kVaries) {
      std::snprintf(text, sizeof(text), "the limit varied by %.0f %%", 100 * varied);
    }
  }
  return text;
}

}  // namespace bench
