// The memory of this process.
#pragma once

#include <fstream>
#include <optional>
#include <string>

namespace examples {

struct MemoryUse {
  double resident = 0, most = 0;  // current and peak, in MB of 10^6 bytes
};

// No value if the system has no /proc/self/status.
inline std::optional<MemoryUse> memory_use() {
  std::ifstream file("/proc/self/status");
  MemoryUse use;
  for (std::string word; file >> word;) {
    double kibibytes = 0;
    if (word == "VmRSS:" && file >> kibibytes) use.resident = kibibytes * 1024 / 1e6;
    if (word == "VmHWM:" && file >> kibibytes) use.most = kibibytes * 1024 / 1e6;
  }
  return use.resident > 0 ? std::optional(use) : std::nullopt;
}

}  // namespace examples
