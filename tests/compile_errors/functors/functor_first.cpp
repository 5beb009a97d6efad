// error: attention: functors follow the options
#include <attn/attention.hpp>

void f(const attn::Tensor4<float>& q) {
  attn::scaled_dot_product_attention(q, q, q,
                                     attn::mask_mod([](int, int, int i, int j) { return j <= i; }));
}
