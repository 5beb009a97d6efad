// disturbance(): whether a row's time and its limit were taken while something else ran.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>
#include <span>
#include <string>

namespace bench {

/// Why a row is not to be believed; empty where it is. `limits`: how fast its limit was in each
/// pass; `share`: what the row has of the limit, where it can have no more than all of it, else
/// NaN.
///
/// Another program takes from the limit as well as from the row, and not at the same moments: the
/// limit that fell says that one ran, and a share above 1 that the limit is not the machine's.
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
