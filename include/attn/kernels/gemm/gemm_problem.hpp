// GemmProblem: a checked product; its backend table; cache block sizes.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attn/exec/caches.hpp"
#include "attn/kernels/gemm/tile.hpp"
#include "attn/kernels/rows/activation.hpp"

ATTN_NAMESPACE_BEGIN

namespace detail {

/// A B that is not a matrix of T (16-bit or quantised): write() makes a packed panel of rows [k, k
/// + kc) and `width` columns from `column` on.
template <class T>
struct PanelSource {
  const void* matrix = nullptr;
  void (*write)(const void* matrix, index_t k, index_t kc, index_t column, index_t width,
                T* panel) = nullptr;
};

/// Products as the kernels take them: pointers and strides, after the checks, c with unit column
/// stride.
template <class T>
struct GemmProblem {
  index_t m, n, k;
  const T* a;
  index_t a_row, a_k;
  const T* b;  ///< nullptr if packed_b or a source is given
  index_t b_k, b_column;
  const T* packed_b = nullptr;
  T* c;
  index_t c_row;
  T alpha;
  const T* bias;
  Activation activation;
  T beta;
  const T* residual;
  index_t residual_row;
  bool accumulate;  ///< C = beta C + A B, summed from beta C on; else the residual is added last
  index_t batch, a_batch, b_batch, c_batch, residual_batch;  ///< number of products, and strides
                                                             ///< between them
  PanelSource<T> source = {};
};

/// Packs b (k, n) of any strides into `packed`, k times panel_columns() elements.
template <class T>
struct PackProblem {
  TensorView2<const T> b;
  T* packed;
};

template <class In, class Acc>
struct Backend<family::Products, In, Acc> {
  index_t panel_width;  ///< columns of a panel of packed weights
  Kernel<GemmProblem<In>> gemm;
  Kernel<PackProblem<In>> pack_weights;

  /// Number of elements that packed k x n weights take.
  index_t packed_size(index_t k, index_t n) const { return k * round_up(n, panel_width); }

  using Gemm = GemmProblem<In>;
  static constexpr std::uint64_t kLayout = layout_hash({sizeof(Backend),
                                                        offsetof(Backend, gemm),
                                                        offsetof(Backend, pack_weights),
                                                        sizeof(PackProblem<In>),
                                                        offsetof(PackProblem<In>, packed),
                                                        sizeof(Gemm),
                                                        offsetof(Gemm, m),
                                                        offsetof(Gemm, n),
                                                        offsetof(Gemm, k),
                                                        offsetof(Gemm, a),
                                                        offsetof(Gemm, a_row),
                                                        offsetof(Gemm, a_k),
                                                        offsetof(Gemm, b),
                                                        offsetof(Gemm, b_k),
                                                        offsetof(Gemm, b_column),
                                                        offsetof(Gemm, packed_b),
                                                        offsetof(Gemm, c),
                                                        offsetof(Gemm, c_row),
                                                        offsetof(Gemm, alpha),
                                                        offsetof(Gemm, bias),
                                                        offsetof(Gemm, activation),
                                                        offsetof(Gemm, beta),
                                                        offsetof(Gemm, residual),
                                                        offsetof(Gemm, residual_row),
                                                        offsetof(Gemm, accumulate),
                                                        offsetof(Gemm, batch),
                                                        offsetof(Gemm, a_batch),
                                                        offsetof(Gemm, b_batch),
                                                        offsetof(Gemm, c_batch),
                                                        offsetof(Gemm, residual_batch),
                                                        offsetof(Gemm, source)});
};

// BLIS's block sizes. KC: each block of k reads and writes C once more, and rows of C a multiple of
// 4 KB apart evict one another. A large KC therefore pays even though a panel of B (KC x NR floats
// of AVX2: 32 KB) then fills an L1 of 32 KB (attn_report's gemm rows). MC: a block of A (MC x KC)
// takes 3/8 of L2, where it stays while the panels of B pass.
inline constexpr index_t kGemmMaxKC = 512;
inline constexpr index_t kGemmNC = 4096;

/// MC for elements of the given size in bytes: 192 floats for a cache of 1 MB.
inline index_t gemm_mc(index_t element_size) {
  const index_t rows = second_level_cache() * 3 / 8 / (kGemmMaxKC * element_size);
  return std::clamp(rows, index_t{48}, index_t{384});
}

/// KC of a product over k: equal blocks.
constexpr index_t gemm_kc(index_t k) {
  const index_t blocks = (k + kGemmMaxKC - 1) / kGemmMaxKC;
  return blocks <= 1 ? kGemmMaxKC : (k + blocks - 1) / blocks;
}

}  // namespace detail

ATTN_NAMESPACE_END

#define ATTN_KERNEL_TEXT "attn/kernels/gemm/gemm.inc.hpp"
#include "attn/simd/foreach_isa.hpp"
