// error: attention: q, k, v and out must have one element type
#include <attn/attention.hpp>

void f(const attn::Tensor4<float>& q, const attn::Tensor4<double>& k, attn::Tensor4<float>& out) {
  attn::scaled_dot_product_attention(q, k, k, out);
}
