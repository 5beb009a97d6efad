// quantize_rows(): rows of floats to int8 with one scale each, as in KV caches.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attn/core/tensor.hpp"
#include "attn/kernels/backend.hpp"
#include "attn/simd/vec/vec.hpp"

ATTN_NAMESPACE_BEGIN

namespace detail {

/// Quantised values with innermost stride 1.
template <class T>
struct QuantizationProblem {
  TensorView4<const T> from;
  TensorView4<std::int8_t> codes;
  TensorView3<T> scales;
};

template <class In, class Acc>
struct Backend<family::RowQuantization, In, Acc> {
  Kernel<QuantizationProblem<In>> quantize;

  using Problem = QuantizationProblem<In>;
  static constexpr std::uint64_t kLayout =
      layout_hash({sizeof(Backend), offsetof(Backend, quantize), sizeof(Problem),
                   offsetof(Problem, from), offsetof(Problem, codes), offsetof(Problem, scales)});
};

}  // namespace detail

ATTN_NAMESPACE_END

#define ATTN_KERNEL_TEXT "attn/kernels/quantized/quantize_rows.inc.hpp"
#include "attn/simd/foreach_isa.hpp"

ATTN_NAMESPACE_BEGIN

namespace detail {

/// Quantises each row x along the last axis: scale = max |x| / 127, value = x / scale rounded to
/// nearest, ties to even. A row of zeros, or whose scale would be subnormal, has scale 0 and values
/// 0; a row with a NaN or an infinity has scale NaN. The same bits on every instruction set. Shapes
/// agree, except that scales lack the last axis.
template <class T>
void quantize_rows(const TensorView4<const T>& from, const TensorView4<std::int8_t>& codes,
                   const TensorView3<T>& scales, const Execution& execution) {
  backend<family::RowQuantization, T, std::int8_t>(execution).quantize({from, codes, scales},
                                                                       execution);
}

}  // namespace detail

ATTN_NAMESPACE_END
