// Plays: Shakespeare's plays as one text of character ids, from the folder of fetch_plays.sh.
#pragma once

#include <algorithm>
#include <array>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <string>
#include <vector>

namespace examples {

// ${ATTN_PLAYS_DIR:-${XDG_CACHE_HOME:-$HOME/.cache}/attn/plays}, the rule of fetch_plays.sh.
inline std::filesystem::path plays_dir() {
  const auto variable = [](const char* name) -> std::string {
    const char* value = std::getenv(name);
    return value == nullptr ? "" : value;
  };
  if (const std::string dir = variable("ATTN_PLAYS_DIR"); !dir.empty()) return dir;
  const std::string cache = variable("XDG_CACHE_HOME");
  const std::filesystem::path base = cache.empty() ? variable("HOME") + "/.cache" : cache;
  return base / "attn" / "plays";
}

inline bool plays_are_present() {
  std::error_code ignored;
  return std::filesystem::is_regular_file(plays_dir() / "COMPLETE", ignored);
}

// All texts, by name, one after another.
struct Plays {
  std::vector<int> ids;
  std::vector<char> characters;  // of each id

  explicit Plays(const std::filesystem::path& folder) {
    std::vector<std::filesystem::path> files;
    for (const auto& entry : std::filesystem::directory_iterator(folder)) {
      if (entry.path().extension() == ".txt") files.push_back(entry.path());
    }
    std::sort(files.begin(), files.end());
    std::string text;
    for (const auto& file : files) {
      std::ifstream stream(file, std::ios::binary);
      text.append(std::istreambuf_iterator<char>(stream), {});
    }
    if (text.empty()) throw std::runtime_error("no plays in " + folder.string());
    std::array<int, 256> id_of{};
    std::string sorted = text;
    std::sort(sorted.begin(), sorted.end(), [](char a, char b) { return byte(a) < byte(b); });
    for (char c : sorted) {
      if (!characters.empty() && characters.back() == c) continue;
      id_of[byte(c)] = static_cast<int>(characters.size());
      characters.push_back(c);
    }
    for (char c : text) ids.push_back(id_of[byte(c)]);
  }

 private:
  static std::size_t byte(char c) { return static_cast<unsigned char>(c); }
};

}  // namespace examples
