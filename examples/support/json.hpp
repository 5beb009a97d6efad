// Json of the programs: keys in the order they are given, numbers in as few digits as a float needs.
#pragma once

#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

namespace examples {

using Json = nlohmann::basic_json<nlohmann::ordered_map, std::vector, std::string, bool,
                                  std::int64_t, std::uint64_t, float>;

// Seven decimals are what a float's share of 1 is worth. As doubles, some would print with
// seventeen.
inline float seven_decimals(double x) { return static_cast<float>(std::round(x * 1e7) / 1e7); }

}  // namespace examples
