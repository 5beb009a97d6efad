// error: attention: out must not be const
#include <attn/attention.hpp>

void f(const attn::Tensor4<float>& q, const attn::Tensor4<float>& out) {
  attn::scaled_dot_product_attention(q, q, q, out);
}
