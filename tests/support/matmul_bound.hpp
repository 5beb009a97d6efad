// The error of products by MatmulPrecision.
#pragma once

#include "attn/attention.hpp"

namespace attn_test {

/// The bound of docs/precision.md relative to the sum of |a b|, beyond the rounding of float.
inline double matmul_bound(attn::MatmulPrecision precision) {
  if (precision == attn::MatmulPrecision::highest) return 0;
  return precision == attn::MatmulPrecision::high ? 0x1.01p-15 : 0x1.01p-7;
}

}  // namespace attn_test
