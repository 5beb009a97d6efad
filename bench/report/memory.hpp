// The rows `memory` and `memory_train`: the memory of attention over 65,536 tokens in a fresh
// process.
#pragma once

#include <fstream>
#include <string>

#include "attn/attn.hpp"

#include "support/inputs.hpp"
#include "support/machine.hpp"
#include "support/training.hpp"

namespace bench {

inline constexpr attn::Shape<4> kMemoryShape{1, 1, 65536, 64};
/// Bytes of q, k, v and out.
inline constexpr double kMemoryInputs = 4.0 * 65536 * 64 * sizeof(float);
/// Bytes of these and of d_out, d_q, d_k, d_v and lse.
inline constexpr double kMemoryTrainInputs = 2 * kMemoryInputs + 65536 * sizeof(float);

/// The peak resident size of this process, in bytes. From /proc, not from getrusage, whose maximum
/// survives exec and so would be the parent's.
inline double peak_resident_bytes() {
  std::ifstream status("/proc/self/status");
  for (std::string word; status >> word;) {
    double kilobytes = 0;
    if (word == "VmHWM:" && status >> kilobytes) return 1024 * kilobytes;
  }
  return std::numeric_limits<double>::quiet_NaN();
}

/// Runs in the child process: bytes beyond inputs and output, including the program itself.
inline double measure_memory(bool all) {
  const auto q = random_tensor<float, 4>(kMemoryShape, 1);
  const auto k = random_tensor<float, 4>(kMemoryShape, 2);
  const auto v = random_tensor<float, 4>(kMemoryShape, 3);
  attn::Tensor4<float> out(kMemoryShape);
  attn::scaled_dot_product_attention(q, k, v, out, {.execution = {.executor = &executor_of(all)}});
  return peak_resident_bytes() - kMemoryInputs;
}

/// measure_memory() for forward and backward.
inline double measure_training_memory(bool all) {
  AttentionStep<float> step = random_attention_step(kMemoryShape);
  step.run({.execution = {.executor = &executor_of(all)}});
  return peak_resident_bytes() - kMemoryTrainInputs;
}

}  // namespace bench
