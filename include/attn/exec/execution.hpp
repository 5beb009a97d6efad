// Execution: how a call runs: executor, workspace, instruction set, precision of products.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string_view>

#include "attn/exec/executor.hpp"
#include "attn/exec/workspace.hpp"
#include "attn/simd/isa.hpp"

ATTN_NAMESPACE_BEGIN

/// Arithmetic of products of floats, with the values of torch.set_float32_matmul_precision. Other
/// element types ignore it. docs/precision.md gives the errors.
enum class MatmulPrecision {
  highest,  ///< products and sums in float
  high,     ///< each float as the sum of two bfloat16: three products, summed in float
  medium,   ///< each float rounded to bfloat16: one product, summed in float
};

constexpr std::string_view name(MatmulPrecision precision) {
  constexpr std::string_view kNames[] = {"highest", "high", "medium"};
  return kNames[static_cast<int>(precision)];
}

/// The precision used on an instruction set: `precision` if it is faster there, otherwise highest.
/// high needs amx; medium needs amx or avx512bf16.
constexpr MatmulPrecision precision_on(Isa isa, MatmulPrecision precision) {
  const bool is_faster =
      precision == MatmulPrecision::medium ? multiplies_pairs(isa) : isa == Isa::amx;
  return is_faster ? precision : MatmulPrecision::highest;
}

/// How a call runs: the last argument of every function.
struct Execution {
  const Executor* executor = nullptr;  ///< threads; default_executor() if null
  Workspace* workspace = nullptr;      ///< scratch memory; one per thread if null
  /// Instruction set; active_isa() if not given, ValueError if the machine lacks it.
  std::optional<Isa> isa = {};
  /// Precision of float products; matmul_precision_used() returns the one used.
  MatmulPrecision matmul_precision = MatmulPrecision::highest;

  const Executor& threads() const { return executor != nullptr ? *executor : default_executor(); }
  Workspace& scratch() const { return workspace != nullptr ? *workspace : default_workspace(); }
  Isa instruction_set() const { return isa ? require_isa(*isa) : active_isa(); }
  MatmulPrecision matmul_precision_used() const {
    return matmul_precision == MatmulPrecision::highest
               ? MatmulPrecision::highest
               : precision_on(instruction_set(), matmul_precision);
  }
};

ATTN_NAMESPACE_END
