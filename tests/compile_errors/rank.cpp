// error: attention: q, k, v and out must have four axes, (batch, heads, seq, dim)
#include <attn/attention.hpp>

void f(const attn::Tensor3<float>& q, const attn::Tensor4<float>& k) {
  attn::scaled_dot_product_attention(q, k, k);
}
