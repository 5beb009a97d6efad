// error: AttentionOptions<T>: T must be the element type of the call
#include <attn/train.hpp>

void f(const attn::Tensor4<float>& q, const attn::Tensor3<float>& lse, attn::Tensor4<float>& d_q) {
  const attn::AttentionOptions<double> options;
  attn::scaled_dot_product_attention_backward(q, q, q, q, q, lse, d_q, d_q, d_q, options);
}
