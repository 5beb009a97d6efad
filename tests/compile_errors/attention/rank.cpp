// error: attention: q must have 4 axes (batch, heads, seq, dim; split_heads() makes them), has 3
#include <attn/attention.hpp>

void f(const attn::Tensor3<float>& q, const attn::Tensor4<float>& k) {
  attn::scaled_dot_product_attention(q, k, k);
}
