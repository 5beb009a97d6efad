// error: AttentionOptions<T>: T must be the element type of the call
#include <attn/attention.hpp>

void f(const attn::Tensor4<float>& q, attn::Tensor4<float>& out) {
  const attn::AttentionOptions<double> options;
  attn::scaled_dot_product_attention(q, q, q, out, options);
}
