// PartProducts: the kernels for floats in bfloat16 parts, which MatmulPrecision names.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attn/attention/paths/pair_path.hpp"
#include "attn/kernels/gemm/gemm_parts.hpp"

ATTN_NAMESPACE_BEGIN

namespace detail {

template <class T>
struct PartProducts {
  static constexpr PartTables<T> kTables{.products = &table_of<Backend<family::PartProducts, T, T>>,
                                         .attention = &pair_products<T>};
};

}  // namespace detail

ATTN_NAMESPACE_END
