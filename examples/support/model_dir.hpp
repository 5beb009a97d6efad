// The folders of the models for examples and tests; fetch_model.sh and fetch_llm.sh fill them.
#pragma once

#include <cstdlib>
#include <filesystem>
#include <string>
#include <system_error>

namespace examples {

// The folder ${VARIABLE:-${XDG_CACHE_HOME:-$HOME/.cache}/attn/MODEL}, as the shell of the fetching
// scripts expands it: a variable that is set but empty counts as not set. Independent of the build
// folder and the working directory. The folder need not exist.
inline std::filesystem::path folder_of(const char* own_variable, const char* model) {
  const auto variable = [](const char* name) -> std::string {
    const char* value = std::getenv(name);
    return value == nullptr ? "" : value;
  };
  if (const std::string dir = variable(own_variable); !dir.empty()) return dir;
  const std::string cache = variable("XDG_CACHE_HOME");
  const std::filesystem::path base = cache.empty() ? variable("HOME") + "/.cache" : cache;
  return base / "attn" / model;
}

// The folder of all-MiniLM-L6-v2.
inline std::filesystem::path model_dir() { return folder_of("ATTN_MODEL_DIR", "all-MiniLM-L6-v2"); }

// True if the model's files exist: looks for the last two that are fetched.
inline bool model_is_present() {
  std::error_code ignored;
  return std::filesystem::is_regular_file(model_dir() / "modules.json", ignored) &&
         std::filesystem::is_regular_file(model_dir() / "model.safetensors", ignored);
}

// One line that explains how to get the model.
inline std::string missing_model_message() {
  return "the weights of all-MiniLM-L6-v2 are not in " + model_dir().string() +
         "; `sh examples/fetch_model.sh` downloads them (84 MB)";
}

// The file of SmolLM2-135M-Instruct.
inline std::filesystem::path llm_path() {
  return folder_of("ATTN_LLM_DIR", "SmolLM2-135M-Instruct") / "SmolLM2-135M-Instruct.Q4_1.gguf";
}

inline bool llm_is_present() {
  std::error_code ignored;
  return std::filesystem::is_regular_file(llm_path(), ignored);
}

inline std::string missing_llm_message() {
  return "SmolLM2-135M-Instruct is not at " + llm_path().string() +
         "; `sh examples/fetch_llm.sh` downloads it (91 MB)";
}

}  // namespace examples
