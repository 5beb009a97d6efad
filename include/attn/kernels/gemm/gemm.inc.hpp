// Kernel text: the table of matrix products.
// SPDX-License-Identifier: Apache-2.0

#include "attn/kernels/gemm/gemm_blocked.inc.hpp"

template <class T>
struct TargetTable<detail::Backend<family::Products, T, T>> {
  static constexpr detail::Backend<family::Products, T, T> kTable{
      .panel_width = TileShape<T>::NR,
      .gemm = detail::kKernel<gemm<T>>,
      .pack_weights = detail::kKernel<pack_weights<T>>};
};
