// error: AttentionOptions<T>: T must be the element type of the call
#include <attn/attention.hpp>

auto f(const attn::Tensor4<attn::bfloat16>& q) {
  const attn::AttentionOptions<attn::bfloat16> options;
  return attn::scaled_dot_product_attention(q, q, q, options);
}
