// error: mask_mod: the functor must be callable as f(b, h, i, j)
#include <attn/attention.hpp>

void f(const attn::Tensor4<float>& q, attn::Tensor4<float>& out) {
  attn::scaled_dot_product_attention(q, q, q, out, {},
                                     attn::mask_mod([](int i, int j) { return j <= i; }));
}
