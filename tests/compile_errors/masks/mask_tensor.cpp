// error: a mask says what its elements mean: keep_mask(m) where true keeps a key
#include <attn/attention.hpp>

auto f(const attn::Tensor4<float>& q, const attn::Tensor2<bool>& mask) {
  return attn::scaled_dot_product_attention(q, q, q, {.mask = mask});
}
