// The error of products by MatmulPrecision.
#pragma once

#include "attn/exec/execution.hpp"

namespace attn_test {

/// The bound of docs/precision.md relative to the sum of |a b|, beyond the rounding of float.
inline double matmul_bound(attn::MatmulPrecision precision) {
  switch (precision) {
    case attn::MatmulPrecision::highest:
      return 0;
    case attn::MatmulPrecision::high:
      return 0x1.01p-15;
    case attn::MatmulPrecision::medium:
      return 0x1.01p-7;
  }
  return 0;
}

}  // namespace attn_test
