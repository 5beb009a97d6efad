// gemm with quantised weights: x W^T with activations in float or 8 bits.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>

#include "attn/kernels/gemm/gemm.hpp"
#include "attn/kernels/quantized/quantized_matrix.hpp"
#include "attn/kernels/rows/convert.hpp"
#include "attn/simd/int8/int8.hpp"

ATTN_NAMESPACE_BEGIN

/// How activations are converted before they are multiplied by quantised weights.
enum class ActivationFormat {
  exact,  ///< unconverted floats: bit for bit the products with the weights of dequantize()
  /// Rounded to bfloat16, to nearest even; then computed as with exact, but with WeightFormat::bf16
  /// in pairs where that is faster.
  bf16,
  /// Quantised to 8 bits: scale = max |x| / 127 for every 32 consecutive k (if weights have one
  /// scale per row: for each half of the row, or each third and so on if halves would be longer
  /// than 1024); sums are integers.
  int8,
  /// Quantised as the sum of two int8 terms, the values of int8 and their residual: each row is
  /// multiplied as two rows. The error is a 254th of int8's.
  int16,
};

namespace detail {

/// Whether activations become integers.
constexpr bool is_integer(ActivationFormat activations) {
  return activations == ActivationFormat::int8 || activations == ActivationFormat::int16;
}

struct QuantizedProblem {
  GemmProblem<float> product;      ///< without B
  const QuantizedMatrix* weights;  ///< stacked along their rows, with the same k
  index_t parts;                   ///< number of weights
};

template <class Acc>
struct Backend<family::QuantizedProducts, float, Acc> {
  static constexpr bool kExtended = true;
  Kernel<QuantizedProblem> multiply_floats, multiply_int8, multiply_int16;

  static constexpr std::uint64_t kLayout = layout_hash(
      {sizeof(Backend), offsetof(Backend, multiply_int8), offsetof(Backend, multiply_int16),
       sizeof(QuantizedProblem), offsetof(QuantizedProblem, product),
       offsetof(QuantizedProblem, weights), offsetof(QuantizedProblem, parts),
       sizeof(QuantizedMatrix), offsetof(QuantizedMatrix, n), offsetof(QuantizedMatrix, k),
       offsetof(QuantizedMatrix, format), sizeof(QuantizedFormat), offsetof(QuantizedFormat, block),
       offsetof(QuantizedFormat, zero), offsetof(QuantizedFormat, has_offset),
       offsetof(QuantizedFormat, has_wide), offsetof(QuantizedFormat, float_scales)});
};

}  // namespace detail

ATTN_NAMESPACE_END

#define ATTN_KERNEL_TEXT_EXTENDED
#define ATTN_KERNEL_TEXT "attn/kernels/quantized/quantized.inc.hpp"
#include "attn/simd/foreach_isa.hpp"

ATTN_NAMESPACE_BEGIN

namespace detail {

/// Calls f(rounded) with activations (m, k) as floats that are exact in bfloat16.
template <class F>
void with_bfloat16_activations(const TensorView2<const float>& a, const Execution& execution,
                               F&& f) {
  Scratch<bfloat16> narrow(execution.scratch(), a.size());
  const TensorView2<bfloat16> rounded(narrow.data(), a.shape());
  convert(a, rounded, execution);
  Scratch<float> wide(execution.scratch(), a.size());
  const TensorView2<float> widened(wide.data(), a.shape());
  convert(rounded, widened, execution);
  f(TensorView2<const float>(widened));
}

/// gemm() with several quantised weights stacked along the columns of c: rounds a once, and few
/// rows take one parallel region.
inline void gemm(const TensorView2<const float>& a, std::span<const QuantizedMatrix> weights,
                 ActivationFormat activations, const TensorView2<float>& c,
                 const Epilogue<float>& epilogue, const Execution& execution) {
  index_t n = 0;
  for (const QuantizedMatrix& part : weights) {
    check_shape("gemm", "a", Shape<2>{a.extent(0), part.k}, a.shape());
    n += part.n;
  }
  if (activations == ActivationFormat::bf16) {
    return with_bfloat16_activations(a, execution, [&](const TensorView2<const float>& rounded) {
      gemm(rounded, weights, ActivationFormat::exact, c, epilogue, execution);
    });
  }
  const auto& kernels = backend<family::QuantizedProducts, float>(execution);
  const bool is_exact = activations == ActivationFormat::exact;
  const auto& kernel = is_exact                                ? kernels.multiply_floats
                       : activations == ActivationFormat::int8 ? kernels.multiply_int8
                                                               : kernels.multiply_int16;
  gemm<float, 2>("gemm", a, {}, n, c, epilogue, execution, is_exact,
                 [&](const GemmProblem<float>& problem) {
                   kernel({problem, weights.data(), std::ssize(weights)}, execution);
                 });
}

}  // namespace detail

/// c = a W^T with an epilogue, W (n, k) quantised: a (m, k), c (m, n), as for the other gemm(). A
/// NaN or infinity in a makes its row of c NaN, and no other. Source: contract of the instruction
/// VPDPBUSD; rows of results have the same bits on every instruction set except for the rounding of
/// multiply-adds. Throws ShapeError.
template <TensorLike A, TensorLike C>
void gemm(const A& a, const QuantizedWeights& b, ActivationFormat activations, C&& c,
          const Epilogue<float>& epilogue = {}, const Execution& execution = {}) {
  ATTN_ASSERT_INPUT(A, float, 2, "gemm: a", "(m, k)", "what quantised weights multiply, float");
  ATTN_ASSERT_OUTPUT(C, float, 2, "gemm: c", "(m, n)", "what quantised weights give, float");
  const detail::QuantizedMatrix matrix = b.matrix();
  detail::gemm(detail::view_as<const float, 2>(a), {&matrix, 1}, activations,
               detail::view_as<float, 2>(c), epilogue, execution);
}

ATTN_NAMESPACE_END
