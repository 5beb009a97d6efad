// Tolerances of results that are rounded to 16 bits.
#pragma once

#include <cmath>
#include <limits>
#include <sstream>
#include <string>

#include "attn/core/element.hpp"

#include "support/tolerance.hpp"

namespace attn_test {

/// Empty if every element of `got` lies within `bound` plus half a step of E of `want`. Otherwise
/// describes the first one that does not.
template <class E>
std::string rounding_difference(const Array<E>& got, const Array<double>& want, double bound,
                                attn::Isa isa) {
  using Limits = std::numeric_limits<E>;
  for (std::size_t i = 0; i < got.data.size(); ++i) {
    const double x = want.data[i], size = std::abs(x) + bound;
    const double half_step =
        std::max(double{Limits::epsilon()} * size, double{Limits::denorm_min()}) / 2;
    const double found = double{float{got.data[i]}};
    if (size + half_step > double{Limits::max()} && std::isinf(found)) continue;
    if (distance(found, x) <= bound + half_step) continue;
    std::ostringstream text;
    text.precision(9);
    text << index_text(got.shape, i) << " of " << shape_text(got.shape) << " on " << attn::name(isa)
         << ": " << found << ", expected " << x << ", allowed " << bound + half_step;
    return text.str();
  }
  return "";
}

}  // namespace attn_test
