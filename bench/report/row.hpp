// Row: one line of the report, as text for people and as JSON for programs.
#pragma once

#include <cmath>
#include <cstdio>
#include <limits>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "report/target.hpp"

namespace bench {

inline constexpr double kAbsent = std::numeric_limits<double>::quiet_NaN();

struct Row {
  std::string name;
  double value = kAbsent;  ///< NaN: not measured, and `note` says why
  std::string unit = {};
  double limit = kAbsent;       ///< the machine's limit or a baseline's time, in the same unit
  std::string limit_name = {};  ///< "FMA peak"
  std::string note = {};
  std::string disturbed = {};  ///< why value and limit are unreliable; empty if they are not
  int times_measured = 1;      ///< more than 1 after a disturbance
  Target target = {};
  double gflops = kAbsent;     ///< with `intensity`, the row's place under the roofline
  double intensity = kAbsent;  ///< FLOPs per byte of inputs and output

  double ratio() const { return value / limit; }
};

/// null for NaN, which JSON lacks.
inline nlohmann::ordered_json to_json(double x) {
  return std::isfinite(x) ? nlohmann::ordered_json(x) : nlohmann::ordered_json();
}

/// null if there is no target.
inline nlohmann::ordered_json to_json(const Target& target) {
  if (!target) return {};
  return {{"at", target.at},
          {"is", target.at_most ? "at most" : "at least"},
          {"of", target.of_value ? "value" : "ratio"}};
}

inline nlohmann::ordered_json to_json(const Row& row) {
  return {{"name", row.name},
          {"value", to_json(row.value)},
          {"limit", to_json(row.limit)},
          {"ratio", to_json(row.ratio())},
          {"unit", row.unit},
          {"limit_is", row.limit_name},
          {"note", row.note},
          {"disturbed", row.disturbed},
          {"times_measured", row.times_measured},
          {"target", to_json(row.target)},
          {"gflops", to_json(row.gflops)},
          {"flops_per_byte", to_json(row.intensity)}};
}

/// The number with four significant digits; empty for NaN.
inline std::string number_text(double x) {
  if (!std::isfinite(x)) return "-";
  char text[32];
  const double size = std::abs(x);
  const char* format = size >= 1000   ? "%.0f"
                       : size >= 100  ? "%.1f"
                       : size >= 10   ? "%.2f"
                       : size >= 1e-3 ? "%.3f"
                                      : "%.1e";
  std::snprintf(text, sizeof text, format, x);
  return text;
}

inline void print_table(const std::vector<Row>& rows) {
  std::printf("%-20s %9s %-7s %9s %6s  %s\n", "row", "value", "unit", "limit", "ratio", "limit is");
  for (const Row& row : rows) {
    std::string more =
        row.limit_name + (row.note.empty() || row.limit_name.empty() ? "" : "; ") + row.note;
    if (row.times_measured > 1) {
      more += "; measured " + std::to_string(row.times_measured) + " times";
    }
    if (!row.disturbed.empty()) more += "; disturbed: " + row.disturbed;
    const std::string ratio = std::isfinite(row.ratio()) ? number_text(row.ratio()) : "-";
    std::printf("%-20s %9s %-7s %9s %6s%s %s\n", row.name.c_str(), number_text(row.value).c_str(),
                row.unit.c_str(), number_text(row.limit).c_str(), ratio.substr(0, 5).c_str(),
                row.disturbed.empty() ? " " : "!", more.c_str());
  }
}

}  // namespace bench
