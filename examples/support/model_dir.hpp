// Where the examples and tests look for the files of all-MiniLM-L6-v2; fetch_model.sh puts them
// there.
#pragma once

#include <cstdlib>
#include <filesystem>
#include <string>
#include <system_error>

namespace examples {

// The folder ${ATTN_MODEL_DIR:-${XDG_CACHE_HOME:-$HOME/.cache}/attn/all-MiniLM-L6-v2}, word for
// word the shell's rule of fetch_model.sh: a variable that is set but empty counts as not set. It
// depends on neither the build folder nor the working directory. The folder need not exist.
inline std::filesystem::path model_dir() {
  const auto variable = [](const char* name) -> std::string {
    const char* value = std::getenv(name);
    return value == nullptr ? "" : value;
  };
  if (const std::string dir = variable("ATTN_MODEL_DIR"); !dir.empty()) return dir;
  const std::string cache = variable("XDG_CACHE_HOME");
  const std::filesystem::path base = cache.empty() ? variable("HOME") + "/.cache" : cache;
  return base / "attn" / "all-MiniLM-L6-v2";
}

// True if both files of the model are there.
inline bool model_is_present() {
  std::error_code ignored;
  return std::filesystem::is_regular_file(model_dir() / "vocab.txt", ignored) &&
         std::filesystem::is_regular_file(model_dir() / "model.safetensors", ignored);
}

// One line for whoever misses the model.
inline std::string missing_model_message() {
  return "the weights of all-MiniLM-L6-v2 are not in " + model_dir().string() +
         "; `sh examples/fetch_model.sh` downloads them (84 MB)";
}

}  // namespace examples
