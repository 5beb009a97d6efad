// error: attention's backward: d_k must not be const: it is written
#include <attn/train.hpp>

void f(const attn::Tensor4<float>& q, const attn::Tensor3<float>& lse, attn::Tensor4<float>& d) {
  attn::scaled_dot_product_attention_backward(q, q, q, q, q, lse, d, q, d);
}
