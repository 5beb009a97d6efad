// error: additive_mask: bias must have the element type of q
#include <attn/attention.hpp>

void f(const attn::Tensor4<float>& x, attn::Tensor4<float>& out, const attn::Tensor2<double>& m) {
  attn::scaled_dot_product_attention(x, x, x, out,
                                     {.mask = attn::causal() & attn::additive_mask(m)});
}
