// error: attention's backward: d_q must have as many axes as q
#include <attn/train.hpp>

void f(const attn::Tensor4<float>& q, const attn::Tensor3<float>& lse, attn::Tensor3<float>& d_q,
       attn::Tensor4<float>& d) {
  attn::scaled_dot_product_attention_backward(q, q, q, q, q, lse, d_q, d, d);
}
