// Products of floats as bfloat16 parts: what MatmulPrecision selects below highest.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attn/kernels/gemm/gemm_elements.hpp"

ATTN_NAMESPACE_BEGIN

namespace detail {

/// Kernels of one precision; null where precision_on() gives a more exact one.
struct PartKernels {
  Kernel<ElementsProblem<float>> gemm;
  Kernel<PackProblem<float>> pack_weights;
};

template <class Acc>
struct Backend<family::PartProducts, float, Acc> {
  static constexpr bool kExtended = true;
  index_t panel_width;  ///< columns of a panel of packed weights
  index_t k_step;       ///< packed weights are padded to a multiple of this many k
  PartKernels high, medium;

  const PartKernels& of(MatmulPrecision precision) const {
    return precision.parts() == 2 ? high : medium;
  }
  /// Number of floats whose memory packed k x n weights take.
  index_t packed_size(MatmulPrecision precision, index_t k, index_t n) const {
    const index_t elements = round_up(k, k_step) * round_up(n, panel_width);
    return elements * precision.parts() / 2;
  }

  static constexpr std::uint64_t kLayout = layout_hash(
      {sizeof(Backend), offsetof(Backend, k_step), offsetof(Backend, high),
       offsetof(Backend, medium), offsetof(PartKernels, pack_weights), elements_layout<float>()});
};

/// The table of `isa` for a precision below highest.
template <class T>
const Backend<family::PartProducts, T>& part_products([[maybe_unused]] MatmulPrecision precision,
                                                      Isa isa) {
#if defined(ATTN_COMPILED)
  return backend<family::PartProducts, T>(isa);
#else
  return precision.tables().products(isa);
#endif
}

}  // namespace detail

ATTN_NAMESPACE_END

#define ATTN_KERNEL_TEXT_EXTENDED
#define ATTN_KERNEL_TEXT "attn/kernels/gemm/gemm_parts.inc.hpp"
#include "attn/simd/foreach_isa.hpp"
