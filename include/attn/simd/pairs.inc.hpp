// Kernel text: multiply-add of bfloat16 pairs.
// SPDX-License-Identifier: Apache-2.0
//
// The operations. A vector of floats holds pairs: in each lane, two bfloat16 of consecutive k.
//   pairs::MultiplyAdd::add(a, b, sum): sum + both products of each lane

#if defined(ATTN_TARGET_PAIRS)
namespace pairs {
#include ATTN_TARGET_PAIRS
}  // namespace pairs
#endif
