// The memory of a model's weights by element type: weight_bytes(), and the growth of a process.
#pragma once

#include <cstdio>
#include <fstream>
#include <string>
#include <sys/wait.h>
#include <unistd.h>

#include "attn/models/quantize.hpp"
#include "attn/models/sentence_encoder.hpp"

namespace bench {

/// Resident memory of this process, in bytes.
inline double resident_bytes() {
  std::ifstream status("/proc/self/status");
  for (std::string word; status >> word;) {
    double kilobytes = 0;
    if (word == "VmRSS:" && status >> kilobytes) return 1024 * kilobytes;
  }
  return 0;
}

struct WeightMemory {
  double weights = 0;   ///< weight_bytes()
  double resident = 0;  ///< growth of the process by loading and encoding a line
};

/// Measures an encoder in a separate process.
inline WeightMemory weight_memory(const std::filesystem::path& model,
                                  const attn::PretrainedOptions& options) {
  int ends[2];
  WeightMemory result;
  if (pipe(ends) != 0) return result;
  const pid_t child = fork();
  if (child == 0) {
    const double before = resident_bytes();
    attn::SentenceEncoder<float> encoder(model, options);
    const std::string line = "How do I get my money back?";
    static_cast<void>(encoder.encode({&line, 1}));
    result.resident = resident_bytes() - before;
    result.weights = static_cast<double>(attn::weight_bytes(encoder));
    _exit(write(ends[1], &result, sizeof result) == sizeof result ? 0 : 1);
  }
  close(ends[1]);
  if (read(ends[0], &result, sizeof result) != sizeof result) result = {};
  close(ends[0]);
  waitpid(child, nullptr, 0);
  return result;
}

inline void print_memory(const std::filesystem::path& model) {
  struct Case {
    const char* name;
    attn::PretrainedOptions options;
  };
  const Case cases[] = {{"float", {.pack = false}},
                        {"float, packed", {}},
                        {"bfloat16", {.weights = attn::DType::BF16}},
                        {"float16", {.weights = attn::DType::F16}}};
  std::printf("| weights | weight_bytes() | resident | of float's |\n| --- | --- | --- | --- |\n");
  double of_float = 0;
  for (const Case& one : cases) {
    const WeightMemory memory = weight_memory(model, one.options);
    if (of_float == 0) of_float = memory.resident;
    std::printf("| %s | %.1f MB | %.1f MB | %.2f |\n", one.name, memory.weights * 1e-6,
                memory.resident * 1e-6, memory.resident / of_float);
  }
}

}  // namespace bench
