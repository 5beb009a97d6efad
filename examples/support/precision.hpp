// The option --precision: full or compressed weights, and the arithmetic of products of floats.
#pragma once

#include <map>
#include <string>

#include <CLI/CLI.hpp>

#include "attn/models/quantize.hpp"

#include "command_line.hpp"

namespace examples {

/// The format of a language model's activations.
inline const std::map<std::string, attn::ActivationFormat> kActivations = {
    {"exact", attn::ActivationFormat::exact},
    {"bf16", attn::ActivationFormat::bf16},
    {"int8", attn::ActivationFormat::int8}};

inline void add_precision(CLI::App& app, std::string& precision) {
  app.add_option("--precision", precision,
                 "exact (float), high or medium (PyTorch's matmul precision), bf16, int8, or f16 "
                 "(weights)")
      ->capture_default_str();
}

inline void check_precision(const std::string& precision) {
  for (const char* known : {"exact", "high", "medium", "bf16", "f16", "int8"}) {
    if (precision == known) return;
  }
  throw UsageError("--precision must be exact, high, medium, bf16, f16 or int8; found " +
                   precision);
}

inline attn::MatmulPrecision matmul_precision(const std::string& precision) {
  if (precision == "high") return attn::MatmulPrecision::high;
  if (precision == "medium") return attn::MatmulPrecision::medium;
  return attn::MatmulPrecision::highest;
}

template <class Module>
void set_precision(Module& module, const std::string& precision) {
  if (precision == "bf16") {
    attn::quantize(
        module, {.weights = attn::WeightFormat::bf16, .activations = attn::ActivationFormat::bf16});
  }
  if (precision == "f16") attn::quantize(module, {.weights = attn::WeightFormat::f16});
  if (precision == "int8") {
    attn::quantize(module, {.activations = attn::ActivationFormat::int8});
  }
}

}  // namespace examples
