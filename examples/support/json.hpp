// JSON output of the programs: keys in insertion order, numbers with the digits of a float.
#pragma once

#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

namespace examples {

using Json = nlohmann::basic_json<nlohmann::ordered_map, std::vector, std::string, bool,
                                  std::int64_t, std::uint64_t, float>;

// Seven decimals are the precision of a float in [0, 1]; as doubles, some numbers would print with
// seventeen.
inline float seven_decimals(double x) { return static_cast<float>(std::round(x * 1e7) / 1e7); }

}  // namespace examples
