// Products of 16-bit elements, widened when packed or multiplied in pairs.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attn/kernels/gemm/float_parts.hpp"
#include "attn/kernels/gemm/gemm_problem.hpp"
#include "attn/simd/pairs.hpp"
#include "attn/simd/tiles.hpp"

ATTN_NAMESPACE_BEGIN

namespace detail {

/// A batch of products with an epilogue, after the checks; matrices that serve the whole batch have
/// batch stride 0.
template <class E>
struct ElementsProblem {
  TensorView3<const E> a, b;  ///< (batch, m, k), (batch, k, n)
  const E* packed_b;          ///< instead of b; or nullptr
  TensorView3<E> c = {};
  float alpha;
  const E* bias;
  Activation activation;
  float beta;
  TensorView3<const E> residual = {};  ///< may be c
  // For a float c, instead of c and residual: unrounded sums plus beta times a float residual.
  // sums_bias: a float bias, instead of bias.
  TensorView3<float> sums = {};
  TensorView3<const float> sums_residual = {};
  const float* sums_bias = nullptr;

  /// (batch, m, n)
  const Shape<3>& shape() const { return sums ? sums.shape() : c.shape(); }
};

/// Unpacks rows [first, first + to.extent(0)) of the transpose (n, k) of packed weights.
template <class E>
struct UnpackProblem {
  const E* packed;
  index_t k, n, first;
  TensorView2<E> to;
};

/// The layout of the problems of elements, for layout_hash().
template <class E>
constexpr std::uint64_t elements_layout() {
  using Problem = ElementsProblem<E>;
  return layout_hash({sizeof(PackProblem<E>), offsetof(PackProblem<E>, packed), sizeof(Problem),
                      offsetof(Problem, b), offsetof(Problem, packed_b), offsetof(Problem, c),
                      offsetof(Problem, alpha), offsetof(Problem, bias),
                      offsetof(Problem, activation), offsetof(Problem, beta),
                      offsetof(Problem, residual), offsetof(Problem, sums),
                      offsetof(Problem, sums_residual), offsetof(Problem, sums_bias)});
}

template <Float16Element E>
struct Backend<family::Products, E, float> {
  static constexpr bool kExtended = true;
  index_t panel_width;  ///< columns of a panel of packed weights
  index_t k_step;       ///< packed weights are padded to a multiple of this many k
  Kernel<ElementsProblem<E>> gemm;
  Kernel<PackProblem<E>> pack_weights;
  Kernel<UnpackProblem<E>> unpack_weights;

  /// Number of elements that packed k x n weights take.
  index_t packed_size(index_t k, index_t n) const {
    return round_up(k, k_step) * round_up(n, panel_width);
  }
  /// Whether pairs of elements are multiplied, instead of elements widened to float.
  bool multiplies_pairs() const { return k_step > 1; }

  static constexpr std::uint64_t kLayout =
      layout_hash({sizeof(Backend), offsetof(Backend, k_step), offsetof(Backend, gemm),
                   offsetof(Backend, pack_weights), offsetof(Backend, unpack_weights),
                   sizeof(UnpackProblem<E>), offsetof(UnpackProblem<E>, to), elements_layout<E>()});
};

}  // namespace detail

ATTN_NAMESPACE_END

#define ATTN_KERNEL_TEXT_EXTENDED
#define ATTN_KERNEL_TEXT "attn/kernels/gemm/gemm_elements.inc.hpp"
#include "attn/simd/foreach_isa.hpp"
